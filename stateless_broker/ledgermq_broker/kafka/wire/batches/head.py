"""The fixed part of a record batch of the Kafka protocol (format 2, since Kafka 0.11).

| base offset i64 | length i32 | leader epoch i32 | magic i8 = 2 | crc u32 | attributes i16 | last offset delta i32
| base timestamp i64 | max timestamp i64 | producer id i64 | producer epoch i16 | base sequence i32 | count i32
| records, compressed together |                      numbers are big-endian; the CRC-32C covers all behind it

attributes   bits 0-2 compression    3 timestamps are the broker's    4 transactional    5 control
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

from ledgermq.buffers import Buffer
from ledgermq_broker.kafka.wire.batches.compression import CODEC_NAMES
from ledgermq_broker.kafka.wire.batches.refusals import MagicNotSupported, RecordsRefused, WrongCrc

HEAD = struct.Struct(">qiibIhiqqqhii")
MAGIC = 2
NONE = -1
"""Of a timestamp, a producer id, an epoch or a sequence: there is none."""
INT32_MAX = 2**31 - 1
APPEND_TIME = 0x08
_BEHIND_LENGTH = 12
_MAGIC_AT = 16
_CRC_AT, _CRC_FROM = 17, 21
_CODEC, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20


@dataclass(frozen=True, slots=True)
class BatchHead:
    """The fixed part of a batch. `bytes`: of the whole batch. `codec`: name of its compression. Producer id, epoch and
    sequence are -1 where the batch has none. Timestamps are milliseconds since the epoch, -1: none.
    """

    bytes: int
    magic: int
    codec: str
    codec_number: int
    record_count: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    append_time: bool
    base_offset: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    crc: int


def end_of(data: Buffer) -> int:
    """Return the offset behind the last one of a batch that `write_batch` made; it may have gaps."""
    base, _, _, _, _, _, last, *_ = HEAD.unpack_from(data)
    return int(base) + int(last) + 1


def read_head(data: Buffer) -> BatchHead:
    """Return the fixed part of exactly one batch, with no look at its records or its checksum.

    Raises MagicNotSupported, CodecNotSupported, RecordsRefused.
    """
    size = len(data)
    if size > _MAGIC_AT and not data[_MAGIC_AT] == MAGIC:
        raise MagicNotSupported(f"record batches have format (magic) {MAGIC}, this one has {data[_MAGIC_AT]}")
    if size < HEAD.size:
        raise RecordsRefused(f"a record batch has at least {HEAD.size} bytes, this one has {size}")
    base, length, _, magic, crc, attributes, last, first_ms, max_ms, producer, epoch, sequence, count = (
        HEAD.unpack_from(data)
    )
    if length != size - _BEHIND_LENGTH:
        raise RecordsRefused(
            f"the batch claims {length} bytes behind its length, {size - _BEHIND_LENGTH} are there: send exactly one"
            " batch for each partition of a request"
        )
    if count < 1 or last != count - 1:
        raise RecordsRefused(f"the batch claims {count} records, and the last one to be number {last}, from 0")
    if producer >= 0 and (epoch < 0 or sequence < 0):
        raise RecordsRefused(f"a batch of producer {producer} has epoch {epoch} and sequence {sequence}")
    codec = attributes & _CODEC
    name = CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else str(codec)
    return BatchHead(
        bytes=size,
        magic=magic,
        codec=name,
        codec_number=codec,
        record_count=count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=bool(attributes & _TRANSACTIONAL),
        control=bool(attributes & _CONTROL),
        append_time=bool(attributes & APPEND_TIME),
        base_offset=base,
        last_offset_delta=last,
        base_timestamp_ms=first_ms,
        max_timestamp_ms=max_ms,
        crc=crc,
    )


def check_crc(data: Buffer, head: BatchHead) -> None:
    """Raises WrongCrc."""
    if (found := crc32c(memoryview(data)[_CRC_FROM:])) != head.crc:
        raise WrongCrc(f"the checksum of the record batch is {found:#010x}, not {head.crc:#010x}")


def write_batch(
    body: Buffer, base_offset: int, last_delta: int, attributes: int, first_ms: int, max_ms: int, count: int
) -> bytes:
    """Return a batch around encoded records, of no producer and under leader epoch 0."""
    length = HEAD.size + len(body) - _BEHIND_LENGTH
    numbers = (base_offset, length, 0, MAGIC, 0, attributes, last_delta, first_ms, max_ms, NONE, NONE, NONE, count)
    head = bytearray(HEAD.pack(*numbers))
    struct.pack_into(">I", head, _CRC_AT, crc32c(body, crc32c(head[_CRC_FROM:])))
    return b"".join((head, body))


def with_place(data: Buffer, base_offset: int) -> bytes:
    """Return a producer's own batch as a reader gets it: the checksum covers neither base offset nor leader epoch."""
    view = memoryview(data)
    return b"".join((struct.pack(">q", base_offset), view[8:_BEHIND_LENGTH], bytes(4), view[_MAGIC_AT:]))
