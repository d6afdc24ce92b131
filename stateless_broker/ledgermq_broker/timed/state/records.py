"""Encode and decode the records of `__timers`: typed entries, and their bytes.

    key                      value
    watermark                Watermark   how far the bundle has delivered
    flushed                  Flushed     which part of the intake was flushed, up to which due times
    range/<0 or 1>/<place>   Range       an interval of due times that has a hidden partition
    recall/<offset>/<row>    Recall      a message that is not delivered

A record without a value deletes its key. 0: near, 1: far. Numbers are decimal.
Invariants: `decode(encode(entry)) == entry`; equal entries have equal bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ledgermq.errors import DataDamaged
from ledgermq_broker.timed.state.blocks import DUE_MAX_US, DUE_MIN_US, OFFSET_END, ROW_END, Id, Key
from ledgermq_broker.timed.state.format import ledgermq_timers_pb2 as fmt
from ledgermq_broker.timed.state.places import NEAR_WIDTH_US, PLACES, WIDTHS_US, Range, RangeId
from ledgermq_ledger import keys
from ledgermq_ledger.log.log_record import LogRecord, RecordCodec


class Piece(NamedTuple):
    """A flushed part of the intake, up to `end_offset`. Its rows that are due after `horizon_us` were
    moved to ranges, the others stay in memory.
    """

    end_offset: int
    horizon_us: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """The flushed pieces of the intake, by ascending `end_offset`. `begin_offset`: of the first one."""

    begin_offset: int = 0
    pieces: tuple[Piece, ...] = ()

    @property
    def end_offset(self) -> int:
        return self.pieces[-1].end_offset if self.pieces else self.begin_offset

    @property
    def last_us(self) -> int | None:
        """Return the highest horizon, which is not always that of the last piece: a flush that found few free
        ranges has a later one. None: there are no pieces.
        """
        return max((piece.horizon_us for piece in self.pieces), default=None)


@dataclass(frozen=True, slots=True)
class WatermarkEntry:
    value: Key | None


@dataclass(frozen=True, slots=True)
class FlushedEntry:
    value: Flushed | None


@dataclass(frozen=True, slots=True)
class RangeEntry:
    range_id: RangeId
    value: Range | None


@dataclass(frozen=True, slots=True)
class RecallEntry:
    """`due_us`: of the recalled message, as the caller named it. `topic_ids`: of the topics by which callers
    named it, ascending; none: of an earlier release, so the message may be of any topic. `principals`: of the same
    topics, a hash of the name of the principal that named each first; 0: not known. None: of no topic.
    """

    message: Id
    due_us: int | None
    topic_ids: tuple[int, ...] = ()
    principals: tuple[int, ...] = ()


Entry = WatermarkEntry | FlushedEntry | RangeEntry | RecallEntry
CODEC: RecordCodec[Entry] = RecordCodec(keys.TIMERS_TOPIC)

_NUMBER = rb"(0|[1-9][0-9]{0,18})"
_RANGE = re.compile(rb"range/([01])/" + _NUMBER + rb"\Z")
_RECALL = re.compile(rb"recall/" + _NUMBER + rb"/" + _NUMBER + rb"\Z")


def encode(entry: Entry) -> LogRecord:
    match entry:
        case WatermarkEntry(key):
            return CODEC.record("watermark", None if key is None else _watermark_to(key))
        case FlushedEntry(flushed):
            return CODEC.record("flushed", None if flushed is None else _flushed_to(flushed))
        case RangeEntry(range_id, found):
            return CODEC.record(f"range/{range_id.far:d}/{range_id.place}", None if found is None else _range_to(found))
        case RecallEntry(message, due_us, topic_ids, principals):
            recall = None if due_us is None else _recall_to(due_us, topic_ids, principals)
            return CODEC.record(f"recall/{message.offset}/{message.row}", recall)


def decode(key: bytes, value: bytes | None) -> Entry:
    """Decode one record. Raises as `RecordCodec.decode`."""
    return CODEC.decode(key, value, _entry_of)


def _entry_of(key: bytes, value: bytes | None) -> Entry | None:
    if key == b"watermark":
        return WatermarkEntry(None if value is None else _watermark_of(value))
    if key == b"flushed":
        return FlushedEntry(None if value is None else _flushed_of(value))
    if (found := _RANGE.match(key)) and int(found[2]) in PLACES[found[1] == b"1"]:
        range_id = RangeId(found[1] == b"1", int(found[2]))
        return RangeEntry(range_id, None if value is None else _range_of(value, range_id))
    if (found := _RECALL.match(key)) and int(found[1]) < OFFSET_END and int(found[2]) < ROW_END:
        return RecallEntry(Id(int(found[1]), int(found[2])), *((None,) if value is None else _recall_of(value)))
    return None


def _due_of(due_us: int) -> int:
    if not DUE_MIN_US <= due_us <= DUE_MAX_US:
        raise DataDamaged(f"{due_us} µs is not a due time")
    return due_us


def _offset_of(offset: int) -> int:
    if offset > OFFSET_END:
        raise DataDamaged(f"{offset} is not an offset")
    return offset


def _watermark_to(key: Key) -> fmt.Watermark:
    return fmt.Watermark(version=CODEC.version, due_us=key.due_us, offset=key.offset, row=key.row)


def _watermark_of(data: bytes) -> Key:
    stored = CODEC.value(fmt.Watermark, data)
    return Key(_due_of(stored.due_us), _offset_of(stored.offset), stored.row)


def _flushed_to(flushed: Flushed) -> fmt.Flushed:
    return fmt.Flushed(
        version=CODEC.version,
        begin_offset=flushed.begin_offset,
        end_offsets=[piece.end_offset for piece in flushed.pieces],
        horizons_us=[piece.horizon_us for piece in flushed.pieces],
    )


def _flushed_of(data: bytes) -> Flushed:
    stored = CODEC.value(fmt.Flushed, data)
    ends, horizons = list(map(_offset_of, stored.end_offsets)), list(map(_due_of, stored.horizons_us))
    if len(ends) != len(horizons):
        raise DataDamaged(f"it has {len(ends)} ends and {len(horizons)} horizons of flushed pieces")
    begins = [_offset_of(stored.begin_offset), *ends[:-1]]
    if any(begin >= end for begin, end in zip(begins, ends, strict=False)):
        raise DataDamaged(f"the flushed pieces from {stored.begin_offset} on do not ascend")
    return Flushed(stored.begin_offset, tuple(map(Piece, ends, horizons)))


def _range_to(found: Range) -> fmt.Range:
    return fmt.Range(
        version=CODEC.version,
        from_us=found.from_us,
        to_us=found.to_us,
        begin_offset=found.begin_offset,
        turning=found.turning,
        records=found.records,
        size_bytes=found.size_bytes,
        topic_ids=sorted(found.topics),
        topic_records=[found.topics[topic_id] for topic_id in sorted(found.topics)],
        principals=sorted(found.principals),
        principal_bytes=[found.principals[principal] for principal in sorted(found.principals)],
    )


def _range_of(data: bytes, range_id: RangeId) -> Range:
    stored = CODEC.value(fmt.Range, data)
    width_us = _due_of(stored.to_us) - _due_of(stored.from_us)
    if width_us not in WIDTHS_US or stored.from_us % width_us or (width_us != NEAR_WIDTH_US) != range_id.far:
        raise DataDamaged(f"[{stored.from_us}, {stored.to_us}) is not an interval of such a range")
    if len(stored.topic_ids) != len(stored.topic_records):
        raise DataDamaged(f"it has {len(stored.topic_ids)} topics and {len(stored.topic_records)} numbers of records")
    if len(stored.principals) != len(stored.principal_bytes):
        raise DataDamaged(f"it has {len(stored.principals)} principals and {len(stored.principal_bytes)} sums of bytes")
    return Range(
        stored.from_us,
        stored.to_us,
        _offset_of(stored.begin_offset),
        stored.turning,
        stored.records,
        stored.size_bytes,
        dict(zip(stored.topic_ids, stored.topic_records, strict=True)),
        dict(zip(stored.principals, stored.principal_bytes, strict=True)),
    )


def _recall_to(due_us: int, topic_ids: tuple[int, ...], principals: tuple[int, ...]) -> fmt.Recall:
    return fmt.Recall(version=CODEC.version, due_us=due_us, topic_ids=topic_ids, principals=principals)


def _recall_of(data: bytes) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    stored = CODEC.value(fmt.Recall, data)
    if any(low >= high for low, high in pairwise(stored.topic_ids)):
        raise DataDamaged(f"the topics {list(stored.topic_ids)[:20]} of a recalled message do not ascend")
    if stored.principals and len(stored.principals) != len(stored.topic_ids):
        raise DataDamaged(f"it has {len(stored.topic_ids)} topics and {len(stored.principals)} principals")
    return _due_of(stored.due_us), tuple(stored.topic_ids), tuple(stored.principals)
