"""Decide about the timed messages of one bundle: the fold of its records, and each change of it.

How a broker uses it (one term, one bundle; no call waits):

    t = BundleTimers(limits)
    for record in snapshot + tail: t.apply(record.key, record.value)
    decision = t.delivered(chunk.to, loaded)       # append decision.records and the chunk's batches, as ONE group
    decision = t.flushed_to(end, horizon, moved, closed)   # append decision.records and the blocks of `moved`, as
                                                           # ONE group; place, cut and decide in one turn
    decision = t.turned(…)                         # the same; False: what was read is no longer there
    decision = t.recall(id, due_us, delivering_to, durable, topic_id)    # answer when decision.records are durable

The state is ahead of the log. Log starts may move when everything that the state knew is durable: take
`intake_start` and `range_starts` (and the ends of the partitions without a range), wait, then move (W15).

The state is a map from keys to values. So the records of one decision may be applied in any order, and a
snapshot with the newest value of each key gives the same state. All other fields are derived from the map.

Invariants: the watermark only grows, and passes no range that is neither loaded nor turned. The flushed
pieces ascend. A new range begins above `closed`, and a range's begin only grows. The rules R1 to R16 are
in docs/design.md, chapter 17.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq_broker.timed.state.blocks import START, Block, Id, Key, end_of
from ledgermq_broker.timed.state.limits import EXPIRED_AT_ONCE_MAX, LOAD_LEAD_US, TimerLimits
from ledgermq_broker.timed.state.memory.cut import Moved
from ledgermq_broker.timed.state.memory.rows import Rows
from ledgermq_broker.timed.state.places import Range, RangeId
from ledgermq_broker.timed.state.recalls import RecallAnswer, Recalled, Recalls
from ledgermq_broker.timed.state.records import (
    Entry,
    Flushed,
    FlushedEntry,
    Piece,
    RangeEntry,
    RecallEntry,
    WatermarkEntry,
    decode,
    encode,
)
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL, Shares

T = TypeVar("T")


class BundleTimers:
    """`watermark`, `flushed`, `ranges`: the values of the log. The rules of recalls are in `Recalls`."""

    def __init__(self, limits: TimerLimits) -> None:
        self.watermark = START
        self.flushed = Flushed()
        self.ranges: dict[RangeId, Range] = {}
        self._recalls = Recalls(limits)

    @property
    def recalls(self) -> Mapping[Id, Recalled]:
        """Return the recalled messages that are remembered."""
        return self._recalls.known

    @property
    def recall_shares(self) -> Shares:
        return self._recalls.shares

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log. Raises DataDamaged, FormatNotSupported."""
        self._take(decode(key, value))

    def entries(self) -> list[Entry]:
        """Return the whole state as entries of the log."""
        return [
            WatermarkEntry(self.watermark),
            FlushedEntry(self.flushed),
            *(RangeEntry(range_id, found) for range_id, found in sorted(self.ranges.items(), key=lambda item: item[0])),
            *(RecallEntry(message, *recalled) for message, recalled in sorted(self.recalls.items())),
        ]

    # What may be done

    def deliverable_to(self, now_us: int, loaded: Collection[RangeId]) -> int:
        """Return up to which due time, inclusive, messages may be delivered: the present, but below every
        range that is neither loaded nor turned (W2).
        """
        return min([now_us, *(r.from_us - 1 for range_id, r in self.ranges.items() if range_id not in loaded)])

    def live(self, rows: Rows, exists: Callable[[int], bool]) -> Rows:
        """Leave out rows that are recalled, and those of topics that do not exist. `exists`: by topic id.
        The bodies of all blocks have to be in memory.
        """
        removed = [number for number, block in rows.blocks.items() if not exists(block.topic_id)]
        if removed:
            rows = rows.filter(pc.invert(pc.is_in(rows.of, pa.array(removed, pa.uint32()))))
        if not self._recalls.rows or not len(rows):
            return rows
        offsets = pc.unique(rows.ids.offsets).to_pylist()
        hit = [offset for offset in offsets if offset in self._recalls.rows]
        if not hit:
            return rows
        suspects = pc.indices_nonzero(pc.is_in(rows.ids.offsets, pa.array(hit, pa.int64())))
        ids = zip(rows.ids.offsets.take(suspects).to_pylist(), rows.ids.rows.take(suspects).to_pylist(), strict=True)
        recalled = [
            at
            for at, (offset, row) in zip(suspects.to_pylist(), ids, strict=True)
            if row in self._recalls.rows[offset]
            and self.is_recalled(Id(offset, row), rows.blocks[rows.of[at].as_py()].topic_id)
        ]
        positions = pa.array(range(len(rows)), pa.int64())
        return rows.filter(pc.invert(pc.is_in(positions, pa.array(recalled, pa.int64()))))

    def is_recalled(self, message: Id, topic_id: int) -> bool:
        """Return whether a message of this topic is recalled."""
        return self._recalls.holds(message, topic_id)

    def horizon_of(self, offset: int) -> int | None:
        """Return the horizon of the flushed piece that has this block of the intake; None: it was not
        flushed. No row is due before the horizon of a block whose rows are all delivered or moved.
        """
        if offset < self.flushed.begin_offset:
            return START.due_us
        return next((piece.horizon_us for piece in self.flushed.pieces if offset < piece.end_offset), None)

    def to_load(self, now_us: int, loaded: Collection[RangeId]) -> list[RangeId]:
        """Return the near ranges that should be in memory and are not, the earliest first. A range waits
        until each wider one that contains it is turned, because that may still move messages to it.
        """
        found = [
            (near.from_us, range_id) for range_id, near in self._near(loaded) if now_us >= near.from_us - LOAD_LEAD_US
        ]
        return [range_id for _, range_id in sorted(found)]

    def to_turn(self, now_us: int) -> RangeId | None:
        """Return the far range that should be turned now: the earliest one, of these the widest. Ranges
        are turned one after the other.
        """
        far = [(r.from_us, -r.width_us, range_id) for range_id, r in self.ranges.items() if range_id.far]
        due = [found for found in far if now_us >= self.ranges[found[2]].turn_us]
        return min(due)[2] if due else None

    def next_move_us(self, loaded: Collection[RangeId]) -> int | None:
        """Return when something is to be loaded or turned next; None if nothing waits for it."""
        times = [found.turn_us for range_id, found in self.ranges.items() if range_id.far]
        times += [near.from_us - LOAD_LEAD_US for _, near in self._near(loaded)]
        return min(times, default=None)

    def _near(self, loaded: Collection[RangeId]) -> list[tuple[RangeId, Range]]:
        """Return the near ranges that are not loaded, and may be when their time comes."""
        far = [found for range_id, found in self.ranges.items() if range_id.far]
        return [
            (range_id, near)
            for range_id, near in self.ranges.items()
            if not range_id.far
            and range_id not in loaded
            and not any(wider.overlaps(near.from_us, near.to_us) for wider in far)
        ]

    def frees(self, to_us: int) -> bool:
        """Return True if a watermark that finishes `to_us` would free a range, all that was flushed of the
        intake, or tombstones of recalls.
        """
        last_us = self.flushed.last_us
        ends_flushed = last_us is not None and self.watermark < end_of(last_us) <= end_of(to_us)
        return bool(ends_flushed or self._finished(end_of(to_us)) or self._recalls.expired(to_us, 1))

    def intake_start(self) -> int:
        """Return the log start of the intake: all below it is delivered or moved."""
        return self._unfinished().begin_offset

    def range_starts(self) -> dict[RangeId, int]:
        """Return the log starts of the hidden partitions that have a range. Nothing in the other hidden
        partitions is needed any longer.
        """
        return {range_id: found.begin_offset for range_id, found in self.ranges.items()}

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes that wait in ranges."""
        return sum(found.size_bytes for found in self.ranges.values())

    def waiting_bytes_of(self, principal: int) -> int:
        """Return the bytes that wait in ranges and were sent by a principal."""
        return sum(found.principals.get(principal, 0) for found in self.ranges.values())

    def waiting_of(self, topic_id: int, loaded: Collection[RangeId]) -> int:
        """Return how many messages of a topic wait in ranges that are not loaded."""
        return sum(found.topics.get(topic_id, 0) for range_id, found in self.ranges.items() if range_id not in loaded)

    # Changes

    def waiting_of_unknown(self, loaded: Collection[RangeId]) -> int:
        """Return how many messages wait in ranges that are not in memory, of topics that an earlier release did
        not count.
        """
        aside = (found for range_id, found in self.ranges.items() if range_id not in loaded)
        return sum(found.records - sum(found.topics.values()) for found in aside)

    def delivered(self, to: Key, loaded: Collection[RangeId]) -> Decision[None]:
        """Advance the watermark. Near ranges that are finished, and old tombstones of recalls, go."""
        assert to > self.watermark, f"the watermark of timed messages would go from {self.watermark} to {to}"
        passed = [r for r in self.ranges if r not in loaded and self.ranges[r].from_us <= to.due_us]
        assert not passed, f"the watermark {to} of timed messages would pass ranges that are not loaded: {passed}"
        entries: list[Entry] = [WatermarkEntry(to)]
        entries += [RangeEntry(range_id, None) for range_id in self._finished(to)]
        entries += [RecallEntry(message, None) for message in self._recalls.expired(to.due_us, EXPIRED_AT_ONCE_MAX)]
        return self._decided(entries, None)

    def flushed_to(
        self, end_offset: int, horizon_us: int, moved: Mapping[RangeId, Moved], closed_us: int
    ) -> Decision[None]:
        """Note that the intake is flushed up to `end_offset`: what is due after the horizon was moved."""
        assert end_offset > self.flushed.end_offset, f"the intake is flushed up to {self.flushed}, not to {end_offset}"
        known = self._unfinished()
        pieces = known.pieces
        if pieces and pieces[-1].horizon_us == horizon_us:
            pieces = pieces[:-1]
        flushed = Flushed(known.begin_offset, (*pieces, Piece(end_offset, horizon_us)))
        return self._decided([FlushedEntry(flushed), *self._moves(moved, closed_us)], None)

    def turning(self, range_id: RangeId) -> Decision[None]:
        """Begin to turn a far range: nothing is placed in it any longer."""
        found = self.ranges[range_id]
        assert range_id.far, f"{range_id} is a near range, which is not turned"
        return self._decided([RangeEntry(range_id, replace(found, turning=True))], None)

    def turned(
        self,
        range_id: RangeId,
        from_offset: int,
        to_offset: int,
        blocks: Sequence[Block],
        moved: Mapping[RangeId, Moved],
        closed_us: int,
        *,
        is_last: bool,
    ) -> Decision[bool]:
        """Note that the blocks at offsets [from_offset, to_offset) of a range are moved, or dropped.

        False, without records: the range is no longer as it was when they were read (W3). `is_last`: there
        are no blocks behind them, so the range goes.
        """
        found = self.ranges.get(range_id)
        if found is None or not found.turning or found.begin_offset != from_offset:
            return Decision([], False)
        assert to_offset > from_offset or is_last, f"no block of {range_id} is moved from {from_offset} on"
        for after in moved.values():
            inside = found.from_us <= after.range.from_us < after.range.to_us <= found.to_us
            assert inside, f"{found} cannot be moved to {after.range}"
        left, of_principals = Counter(found.topics), Counter(found.principals)
        for block in blocks:
            left[block.topic_id] -= block.records.num_rows
            of_principals[block.principal] -= block.size_bytes
        rest = replace(
            found,
            begin_offset=to_offset,
            records=max(0, found.records - sum(block.records.num_rows for block in blocks)),
            size_bytes=max(0, found.size_bytes - sum(block.size_bytes for block in blocks)),
            topics=dict(+left),  # without those of which none is left
            principals=dict(+of_principals),
        )
        return self._decided([*self._moves(moved, closed_us), RangeEntry(range_id, None if is_last else rest)], True)

    def recall(
        self,
        message: Id,
        due_us: int,
        delivering_to: Key,
        durable: Key,
        topic_id: int,
        principal: int = NO_PRINCIPAL,
    ) -> Decision[RecallAnswer]:
        """Recall a message of a topic; one of another topic stays. `due_us`: when it is due; of one that is in
        memory the effective time, or its tombstone could go before it is delivered. `delivering_to`: the last key
        that is delivered or being delivered. `durable`: the watermark that is durable. `principal`: a hash of the name
        of the principal that calls; 0: not known.

        Raises ResourceExhausted: too many recalled messages wait for their time, of this topic or of all, or this
        caller has named too many topics for this one; QuotaExceeded: the principal has its share of them. What other
        principals have named keeps none from recalling a message.
        """
        entries, answer = self._recalls.recall(
            message, due_us, topic_id, principal, watermark=self.watermark, delivering_to=delivering_to, durable=durable
        )
        return self._decided(entries, answer)

    def _finished(self, to: Key) -> list[RangeId]:
        """Return the near ranges that have nothing above a watermark."""
        return [r for r in self.ranges if not r.far and end_of(self.ranges[r].to_us - 1) <= to]

    def _unfinished(self) -> Flushed:
        """Return the flushed pieces from the first one on that has something in memory."""
        begin_offset, pieces = self.flushed.begin_offset, self.flushed.pieces
        while pieces and end_of(pieces[0].horizon_us) <= self.watermark:
            begin_offset, pieces = pieces[0].end_offset, pieces[1:]
        return Flushed(begin_offset, pieces)

    def _moves(self, moved: Mapping[RangeId, Moved], closed_us: int) -> list[Entry]:
        """Return the entries of ranges that get blocks (W10)."""
        for range_id, after in moved.items():
            before = self.ranges.get(range_id)
            if before is None:
                assert after.range.from_us > max(closed_us, self.watermark.due_us), f"{after.range} begins too early"
                before = replace(after.range, records=0, size_bytes=0, topics={}, principals={})
            assert not before.turning, f"{range_id} is turning, and takes no messages"
            to = after.range
            grown = replace(before, records=to.records, size_bytes=to.size_bytes, topics=to.topics)
            grown = replace(grown, principals=to.principals)
            assert grown == after.range, f"{range_id} is {before}, and would become {after.range}"
            assert before.records <= grown.records, f"{range_id} would lose messages"
        return [RangeEntry(range_id, after.range) for range_id, after in moved.items()]

    def _decided(self, entries: Sequence[Entry], answer: T) -> Decision[T]:
        for entry in entries:
            self._take(entry)
        return Decision([encode(entry) for entry in entries], answer)

    def _take(self, entry: Entry) -> None:
        match entry:
            case WatermarkEntry(key):
                self.watermark = START if key is None else key
            case FlushedEntry(flushed):
                self.flushed = Flushed() if flushed is None else flushed
            case RangeEntry(range_id, found):
                if found is None:
                    self.ranges.pop(range_id, None)
                else:
                    self.ranges[range_id] = found
            case RecallEntry(message, due_us, topic_ids, principals):
                self._recalls.take(message, None if due_us is None else Recalled(due_us, topic_ids, principals))
