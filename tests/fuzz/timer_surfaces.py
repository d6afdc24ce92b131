"""Timed messages: records of `__timers`, and blocks of hidden partitions. What is taken in means the same when
it is written down again, and a broker that goes on from there raises typed errors only.

input: | length of the key | key | value |
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from ledgermq.errors import LedgerMQError
from ledgermq.protocol.batches.records import encode_batch
from ledgermq_broker.timed.state.blocks import (
    START,
    Id,
    Ids,
    Key,
    Source,
    decode_block,
    effective_dues,
    encode_block,
    end_of,
)
from ledgermq_broker.timed.state.bundle_timers import BundleTimers
from ledgermq_broker.timed.state.format import ledgermq_timers_pb2 as fmt
from ledgermq_broker.timed.state.limits import DAY_US, MINUTE_US, TimerLimits
from ledgermq_broker.timed.state.memory.cut import batches, range_blocks
from ledgermq_broker.timed.state.memory.waiting import Waiting
from ledgermq_broker.timed.state.places import Range, RangeId, flush_horizon, place
from ledgermq_broker.timed.state.records import (
    Entry,
    Flushed,
    FlushedEntry,
    Piece,
    RangeEntry,
    RecallEntry,
    WatermarkEntry,
    encode,
)
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import LogRecord
from tests.fuzz.mutation import mutate_fields
from tests.fuzz.surface import Surface, Untyped
from tests.property.timer_log import batch_of
from tests.worlds.batches import mutate

_LENGTH = struct.Struct("<H")
NOW_US = 20_000 * DAY_US
LIMITS = TimerLimits()
ENTRIES: list[Entry] = [
    WatermarkEntry(Key(NOW_US, 41, 7)),
    FlushedEntry(Flushed(12, (Piece(40, NOW_US), Piece(45, NOW_US + MINUTE_US)))),
    RangeEntry(RangeId(False, 3), Range(NOW_US + MINUTE_US, NOW_US + 2 * MINUTE_US, 7, False, 10, 1000)),
    RangeEntry(RangeId(True, 0), Range(NOW_US + DAY_US, NOW_US + 2 * DAY_US, 0, True, 10, 1000)),
    RecallEntry(Id(41, 9), NOW_US + DAY_US),
]
_MESSAGES: Mapping[bytes, type[Message]] = {
    b"watermark": fmt.Watermark,
    b"flushed": fmt.Flushed,
    b"range": fmt.Range,
    b"recall": fmt.Recall,
}


def record_seeds() -> list[bytes]:
    return [_input(encode(entry)) for entry in ENTRIES]


def block_seeds() -> list[bytes]:
    data = encode_batch(batch_of([1, 2, 3], [NOW_US + 30 * MINUTE_US, None, 5]))
    ids = Ids(pa.array([7, 7, 9], pa.int64()), pa.array([0, 1, 0], pa.uint32()))
    return [_input(encode_block(PartitionId(5, n), n, data, found)) for n, found in enumerate((None, ids))]


def spoil_record(rng: random.Random, data: bytes) -> bytes:
    key, value = _parts(data)
    return _spoil(rng, data, key, value, _MESSAGES.get(key.partition(b"/")[0]), is_key=False)


def spoil_block(rng: random.Random, data: bytes) -> bytes:
    key, value = _parts(data)
    return _spoil(rng, data, key, value, fmt.BlockHeader, is_key=True)


def _spoil(
    rng: random.Random, data: bytes, key: bytes, value: bytes, kind: type[Message] | None, *, is_key: bool
) -> bytes:
    """Change bytes of key and value, or fields of the message that one of them is."""
    if rng.random() < 0.3:
        key = mutate(rng, key, data)
    if kind is None or rng.random() < 0.4:
        return _input(LogRecord(key, mutate(rng, value, data)))
    message = kind()
    with suppress(DecodeError):
        message.ParseFromString(key if is_key else value)
    mutate_fields(rng, message)
    changed = message.SerializeToString()
    return _input(LogRecord(changed, value) if is_key else LogRecord(key, changed))


def check_record(data: bytes) -> None:
    """No value: a tombstone."""
    timers = BundleTimers(LIMITS)
    for record in map(encode, ENTRIES):
        timers.apply(record.key, record.value)
    key, value = _parts(data)
    timers.apply(key, value or None)
    again = BundleTimers(LIMITS)
    for record in map(encode, timers.entries()):
        again.apply(record.key, record.value)
    if again.entries() != timers.entries():
        raise Untyped("a record that was accepted means something else when it is written down again")
    _go_on(timers)


def _go_on(timers: BundleTimers) -> None:
    """What a broker does with the state when it has loaded it."""
    later_us = NOW_US + 3 * DAY_US
    loaded = timers.to_load(later_us, ())
    timers.to_turn(later_us)
    timers.next_move_us(loaded)
    timers.intake_start()
    timers.range_starts()
    timers.horizon_of(41)
    flush_horizon(later_us, timers.ranges, timers.watermark.due_us)
    dues = effective_dues(decode_block(*_parts(block_seeds()[0])))
    place(dues.sort(), later_us, timers.ranges, timers.watermark.due_us, lambda _: 0, loaded=loaded)
    with suppress(LedgerMQError):
        timers.recall(Id(3, 3), later_us, timers.watermark, timers.watermark, 5)
    to = end_of(timers.deliverable_to(later_us, loaded))
    if to > timers.watermark:
        timers.delivered(to, loaded)


def check_block(data: bytes) -> None:
    """Deliver the rows of the block, and move them."""
    block = decode_block(*_parts(data))
    waiting = Waiting()
    count = waiting.add(Source(None, 7), block, above=START)
    chunk = waiting.due(1 << 62, 1 << 40)
    if chunk is None:
        return
    if sum(batch.num_rows for batch in batches(chunk.rows).values()) != count:
        raise Untyped("rows are lost")
    groups = place(chunk.rows.dues, NOW_US, {}, 0, lambda _: 0).groups
    moved = [
        decode_block(record.key, record.value)
        for after in range_blocks(chunk.rows, groups).values()
        for record in after.blocks
    ]
    if sum(found.records.num_rows for found in moved) != sum(group.stop - group.start for group in groups):
        raise Untyped("rows are lost when they are moved")


def _input(record: LogRecord) -> bytes:
    return _LENGTH.pack(len(record.key)) + record.key + (record.value or b"")


def _parts(data: bytes) -> tuple[bytes, bytes]:
    length = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else 0
    return data[_LENGTH.size :][:length], data[_LENGTH.size :][length:]


def surfaces() -> list[Surface]:
    return [
        Surface("timer-record", record_seeds(), check_record, spoil_record),
        Surface("timer-block", block_seeds(), check_block, spoil_block),
    ]
