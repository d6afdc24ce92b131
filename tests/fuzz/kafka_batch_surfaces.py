"""What Kafka clients send: record batches, and what each decompressor gets."""

from __future__ import annotations

import random
import resource
import struct
from functools import partial

from crc32c import crc32c

from ledgermq.buffers import MIB
from ledgermq.protocol.batches.record_rules import check_records
from ledgermq_broker.kafka.wire.batches.compression import decompress
from ledgermq_broker.kafka.wire.batches.decoding import decode_records
from ledgermq_broker.kafka.wire.batches.encoding import encode_records
from ledgermq_broker.kafka.wire.batches.head import read_head
from ledgermq_broker.kafka.wire.batches.strict import ReadRecord, read_records
from tests.fuzz.surface import Surface, Untyped
from tests.worlds.batches import mutate
from tests.worlds.kafka_batches import (
    COMPRESS,
    Fields,
    Read,
    Row,
    batch_of,
    read_by_kafka_python,
    seeded_rows,
    with_body,
)

BOUND = 4 * MIB
GROWTH_MAX = 256 * MIB
CODECS = {"gzip": 1, "snappy": 2, "java-snappy": 2, "lz4": 3, "zstd": 4}
_HEAD_BYTES, _COVERED_FROM = 61, 21
_rng = random.Random(2)


def batch_seeds() -> list[bytes]:
    found = [
        batch_of(seeded_rows(_rng, count), Fields(codec=codec, producer=(9, 0, 0)))
        for codec in COMPRESS
        for count in (1, 6, 40)
    ]
    return [*found, batch_of(seeded_rows(_rng, 320)), batch_of([Row(None, None)] * 2000, Fields(codec="zstd"))]


def spoil_batch(rng: random.Random, data: bytes) -> bytes:
    """Most inputs get a fitting length and checksum, without which nothing behind them is read."""
    if rng.random() < 0.1:
        return mutate(rng, data, data)
    if rng.random() < 0.3:
        covered = mutate(rng, data[_COVERED_FROM:_HEAD_BYTES], data)[: _HEAD_BYTES - _COVERED_FROM].ljust(40, b"\0")
        covered += data[_HEAD_BYTES:]
        return data[:17] + struct.pack(">I", crc32c(covered)) + covered
    return with_body(data, mutate(rng, data[_HEAD_BYTES:], data))


def check_batch(data: bytes) -> None:
    """What is accepted fulfils the rules of records, is what the strict reader reads, and comes back to clients."""
    before = _peak()
    try:
        made = decode_records(data, decoded_bytes_max=BOUND)
    finally:
        _check_growth(before)
    made.records.validate(full=True)
    check_records(made.records)
    head = read_head(data)
    body = decompress(memoryview(data)[_HEAD_BYTES:], data[22] & 7, BOUND)
    strict = read_records(body, head.record_count, head.base_timestamp_ms)
    again = b"".join(encode_records([(5, made.records)]))
    wanted = [_seen(5 + number, record) for number, record in enumerate(strict)]
    if [_seen(read.offset, read) for read in read_by_kafka_python(again)] != wanted:
        raise Untyped("a client reads something else than was sent")


def _seen(offset: int, record: ReadRecord | Read) -> tuple[object, ...]:
    """Without the order of headers, since the one with the tag comes first."""
    ms = None if record.timestamp_ms == -1 else record.timestamp_ms
    return offset, record.key, record.value, sorted(record.headers, key=repr), ms


def check_decompressed(data: bytes, codec: int) -> None:
    before = _peak()
    try:
        if len(decompress(data, codec, BOUND)) > BOUND:
            raise Untyped("more was decompressed than the bound allows")
    finally:
        _check_growth(before)


def _peak() -> int:
    """The largest memory that this process has ever had, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _check_growth(before: int) -> None:
    if _peak() - before > GROWTH_MAX:
        raise Untyped(f"one input took {(_peak() - before) // MIB} MiB")


def codec_seeds(name: str) -> list[bytes]:
    plain = (b"", b"a", bytes(5 * MIB), _rng.randbytes(3000), b"the same again and again, " * 3000)
    return [COMPRESS[name](data) for data in plain[1:2] + plain[3:] + plain[:1] + plain[2:3]]


def surfaces() -> list[Surface]:
    found = [Surface("kafka-record-batch", batch_seeds(), check_batch, spoil_batch, weight=4)]
    for name, codec in CODECS.items():
        found.append(Surface(f"kafka-{name}", codec_seeds(name), partial(check_decompressed, codec=codec)))
    return found
