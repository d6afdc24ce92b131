"""Encode and decode segments: the bytes of one immutable object of a ledger, without any rule about
their validity.

    | Arrow schema | batch … batch | end of stream | index (protobuf SegmentIndex) | trailer |

    trailer, 28 bytes, little endian:
    | index offset u64 | index length u32 | CRC-32C of index u32 | format version u16 | zero u16 |
    | magic "LMQSEG\\r\\n" |

The part before the index is an Arrow IPC stream that any Arrow reader opens; batches stand there
byte for byte as the producers encoded them. Offsets are in the index only. Index and trailer
together are the *tail*: one suffix GET of its length reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from crc32c import crc32c
from google.protobuf.message import DecodeError

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.protocol.batches.records import END_OF_STREAM, schema_prefix
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.object_store.contract import Buffer, ObjectMissing, ObjectStore

SEGMENT_VERSION = 1
MOVES_VERSION = 2
"""Of a segment whose index has seals or opens. A release that does not know them refuses it."""
MAGIC = b"LMQSEG\r\n"
TRAILER = struct.Struct("<QIIHH8s")
TAIL_GUESS_BYTES = 16 * 1024
"""Size of the first suffix GET for a tail of unknown length: enough for some 150 batches."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A producer's batch on its way into a segment.

    `data`: one Arrow IPC record batch message, checked. `key`: its partition; all that an owner keeps of a partition
    holds this one object.
    """

    topic_id: int
    partition: int
    record_count: int
    crc: int
    timestamp_min_us: int
    timestamp_max_us: int
    data: Buffer
    producer: ProducerSession | None = None
    sent_crc: int = 0
    """The checksum of an idempotent batch as its producer sent it; 0: not known."""
    tag_summary: int = 0
    """See `ledgermq_ledger.log.segments.tag_summary`; 0: not known."""
    append_us: int = 0
    """The timestamp of its records, if the bundle's owner set it (LogAppendTime); 0: their producer did."""
    ids: bytes = b""
    """Hashes of the ids of its records (`ledgermq.protocol.naming.message_ids`); empty: it is not deduplicated."""
    ids_us: int = 0
    """The time by which its ids are judged: that of its append."""
    ids_until_us: int = 0
    """Until when its ids are remembered."""
    ids_principal: int = 0
    """A hash of the name of the principal for which its ids count; 0: not known."""
    expect_end: int | None = None
    """Where its partition has to end for it to be appended; None: anywhere. It is not stored."""
    key: PartitionId = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", PartitionId(self.topic_id, self.partition))

    @property
    def identity(self) -> tuple[bytes, int]:
        """Return the producer's id and the hash of its principal; (b"", 0) of a batch that is not idempotent."""
        return (b"", 0) if self.producer is None else (self.producer.id, self.producer.principal)

    def entry(self, base_offset: int, position: int) -> fmt.BatchEntry:
        entry = fmt.BatchEntry(
            topic_id=self.topic_id,
            partition=self.partition,
            base_offset=base_offset,
            record_count=self.record_count,
            position=position,
            length=len(self.data),
            crc=self.crc,
            timestamp_min_us=self.timestamp_min_us,
            timestamp_max_us=self.timestamp_max_us,
            tag_summary=self.tag_summary,
        )
        if self.producer is not None:
            entry.producer_id = self.producer.id
            entry.producer_epoch = self.producer.epoch
            entry.sequence = self.producer.sequence
            entry.sent_crc = self.sent_crc
            entry.principal = self.producer.principal
        if self.ids:
            entry.message_ids = self.ids
            entry.ids_until_us = self.ids_until_us
            entry.principal = self.ids_principal or entry.principal
        return entry


def keys_of(index: fmt.SegmentIndex) -> list[PartitionId]:
    """Return the partition of each batch in a segment."""
    return [PartitionId(entry.topic_id, entry.partition) for entry in index.batches]


@dataclass(frozen=True, slots=True)
class SlotIndex:
    """An index as read back from slot `index.slot`; `tail_length` in bytes. `stored_ms`: the store's date of the
    segment; 0: no LIST has shown it.
    """

    index: fmt.SegmentIndex
    tail_length: int
    stored_ms: int = 0


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """Result of one read of a segment's end: its index, and `suffix`, all bytes that were read."""

    slot: SlotIndex
    suffix: bytes

    def bytes_of(self, entry: fmt.BatchEntry) -> bytes | None:
        """Return the bytes of a batch of this index, unchecked; None if it begins before the bytes
        that were read.
        """
        start = entry.position - (
            _batches_end(self.slot.index) + len(END_OF_STREAM) + self.slot.tail_length - len(self.suffix)
        )
        return None if start < 0 else self.suffix[start : start + entry.length]


def first_batch_position() -> int:
    return len(schema_prefix())


def encode_segment(index: fmt.SegmentIndex, data: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers of a segment; `data[i]` belongs to `index.batches[i]`, at the position
    that it names. The last buffer is the tail.
    """
    prefix = schema_prefix()
    position = len(prefix)
    for entry, batch in zip(index.batches, data, strict=True):
        if (entry.position, entry.length) != (position, len(batch)):
            raise AssertionError(f"the batch is at byte {position}, but the index says {entry.position}")
        position += len(batch)
    body = index.SerializeToString(deterministic=True)
    trailer = TRAILER.pack(position + len(END_OF_STREAM), len(body), crc32c(body), _version(index), 0, MAGIC)
    return [prefix, *data, END_OF_STREAM, body + trailer]


def _version(index: fmt.SegmentIndex) -> int:
    return MOVES_VERSION if index.seals or index.opens else SEGMENT_VERSION


def tail_length(suffix: bytes, key: str) -> int:
    """Return the length of index and trailer, read from the last bytes of a segment.

    Raises DataDamaged, FormatNotSupported.
    """
    if len(suffix) < TRAILER.size:
        raise DataDamaged(f"{key}: {len(suffix)} bytes are too few for a segment", object_key=key)
    _, length, _, version, _, magic = TRAILER.unpack_from(suffix, len(suffix) - TRAILER.size)
    if magic != MAGIC:
        raise DataDamaged(f"{key}: its end is not that of a segment", object_key=key)
    if version not in (SEGMENT_VERSION, MOVES_VERSION):
        raise FormatNotSupported(
            f"{key}: segment version {version}, this software reads up to {MOVES_VERSION}", object_key=key
        )
    return int(length) + TRAILER.size


async def whose_damage(
    store: ObjectStore, bundle: int, position: int, crc: int, damage: DataDamaged
) -> DataDamaged | ObjectMissing:
    """Return what to raise if the bytes of a batch do not match its index; `damage` names the
    segment.

    A put that was in flight for long can fill a trimmed slot again. Then the batch is not damaged
    but missing, as in an empty slot. Raises FormatNotSupported, the store's errors.
    """
    slot = keys.number(damage.object_key or "")
    try:
        now = (await read_index(store, bundle, slot)).index
    except (ObjectMissing, DataDamaged) as error:
        return error if isinstance(error, ObjectMissing) else damage
    if any((entry.position, entry.crc) == (position, crc) for entry in now.batches):
        return damage
    return ObjectMissing(f"{damage.object_key}: another segment now has its name", object_key=damage.object_key)


def decode_tail(tail: bytes, bundle: int, slot: int) -> SlotIndex:
    """Return the index in a segment's tail; bytes before it are ignored.

    Raises DataDamaged, FormatNotSupported, naming the object.
    """
    key = keys.segment(bundle, slot)
    length = tail_length(tail, key)
    if length > len(tail):
        raise DataDamaged(f"{key}: its index would have {length} bytes, but only {len(tail)} are there", object_key=key)
    body = tail[len(tail) - length : len(tail) - TRAILER.size]
    index_offset, _, crc, version, zero, _ = TRAILER.unpack_from(tail, len(tail) - TRAILER.size)
    index = fmt.SegmentIndex()
    if crc32c(body) != crc:
        raise DataDamaged(f"{key}: the checksum of its index does not match", object_key=key)
    try:
        index.ParseFromString(body)
    except DecodeError as error:
        raise DataDamaged(f"{key}: its index is not valid protobuf: {error}", object_key=key) from error
    if zero or version != _version(index) or index_offset != _batches_end(index) + len(END_OF_STREAM):
        raise DataDamaged(f"{key}: its trailer does not match its index", object_key=key)
    if (index.bundle, index.slot) != (bundle, slot):
        raise DataDamaged(f"{key}: its index says bundle {index.bundle}, slot {index.slot}", object_key=key)
    return SlotIndex(index, length)


def check_whole(data: bytes, bundle: int, slot: int) -> None:
    """Check every byte of a segment against its checksums. Raises DataDamaged, FormatNotSupported,
    naming the object.
    """
    key = keys.segment(bundle, slot)
    found = decode_tail(data, bundle, slot)
    end = _batches_end(found.index)
    if not data.startswith(schema_prefix()) or data[end : len(data) - found.tail_length] != END_OF_STREAM:
        raise DataDamaged(f"{key}: it is not the Arrow stream that its index describes", object_key=key)
    position = first_batch_position()
    for entry in found.index.batches:
        if entry.position != position or crc32c(data[position : position + entry.length]) != entry.crc:
            raise DataDamaged(
                f"{key}: batch at byte {entry.position}: its place or checksum does not match the index", object_key=key
            )
        position += entry.length


def _batches_end(index: fmt.SegmentIndex) -> int:
    return index.batches[-1].position + index.batches[-1].length if index.batches else first_batch_position()


async def read_end(store: ObjectStore, bundle: int, slot: int) -> SegmentEnd:
    """Return the last bytes of a slot by one suffix GET (two if its index is long); of a small
    segment, all bytes.

    Raises ObjectMissing, DataDamaged, FormatNotSupported, the store's errors.
    """
    key = keys.segment(bundle, slot)
    suffix = await store.get_suffix(key, TAIL_GUESS_BYTES)
    length = tail_length(suffix, key)
    if length > len(suffix):
        suffix = await store.get_suffix(key, length)
    return SegmentEnd(decode_tail(suffix, bundle, slot), suffix)


async def read_index(store: ObjectStore, bundle: int, slot: int) -> SlotIndex:
    """Return the index of a slot, read by `read_end`. Raises what `read_end` raises."""
    return (await read_end(store, bundle, slot)).slot
