"""Decide about the timed messages of one bundle: the fold of its records, and each change of it.

How a broker uses it (one term, one bundle; no call waits):

    t = BundleTimers(limits)
    for record in snapshot + tail: t.apply(record.key, record.value)
    decision = t.delivered(chunk.to)             # append decision.records and the chunk's batches, as ONE group
    decision = t.flushed_to(end, horizon, moved) # append decision.records and the blocks of `moved`, as ONE group
    decision = t.turned(…)                       # the same
    decision = t.recall(id, due_us, delivering_to, durable)    # answer when decision.records are durable

The state is a map from keys to values. So the records of one decision may be applied in any order, and a
snapshot with the newest value of each key gives the same state.

Invariants: the watermark only grows. The flushed pieces ascend. A new range begins above `closed`; a range's
begin offset only grows. The rules R1 to R16 are in docs/design.md, chapter 17.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from ledger.log.log_record import LogRecord
from timers.blocks import Id, Key
from timers.cut import Moved, Rows
from timers.limits import TimerLimits
from timers.places import Range, RangeId
from timers.records import Entry, Flushed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """An answer, and the records that have to be durable before it is sent. `records` go into one group."""

    records: list[LogRecord]
    answer: T


class RecallAnswer(Enum):
    RECALLED = "recalled"
    """Final when the decision's records are durable; without records, when all earlier ones are."""
    TOO_LATE = "too late"
    """The message was delivered, or will be."""
    FORGOTTEN = "forgotten"
    """It was due long ago: whether it was delivered or recalled is no longer known."""
    WAIT = "wait"
    """A delivery that covers it is in flight: ask again when that has an outcome."""


class BundleTimers:
    def __init__(self, limits: TimerLimits) -> None: ...

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log. Raises DataDamaged, FormatNotSupported."""

    def entries(self) -> list[Entry]:
        """Return the whole state as entries of the log."""

    watermark: Key
    flushed: Flushed
    ranges: Mapping[RangeId, Range]
    recalls: Mapping[Id, int]

    # What may be done

    def deliverable_to(self, now_us: int, loaded: Collection[RangeId]) -> int:
        """Return up to which due time, inclusive, messages may be delivered: the present, but below every
        range that is neither loaded nor turned."""

    def live(self, rows: Rows, exists: Callable[[int], bool]) -> Rows:
        """Leave out rows that are recalled, and those of topics that do not exist. `exists`: by topic id."""

    def horizon_of(self, offset: int) -> int | None:
        """Return the horizon of the flushed piece that has this block of the intake; None: it was not flushed."""

    def to_load(self, now_us: int, loaded: Collection[RangeId]) -> list[RangeId]:
        """Return the near ranges that should be in memory and are not, the earliest first."""

    def to_turn(self, now_us: int) -> RangeId | None:
        """Return the far range that should be turned now: the earliest one, of these the widest."""

    def next_move_us(self, loaded: Collection[RangeId]) -> int | None:
        """Return when something is to be loaded or turned next; None if nothing waits for it."""

    def frees(self, to_us: int) -> bool:
        """Return True if a watermark that finishes `to_us` would free a range, or tombstones of recalls."""

    def intake_start(self) -> int:
        """Return the log start of the intake: nothing below it is needed any longer."""

    def range_starts(self) -> dict[RangeId, int]:
        """Return the log starts of the hidden partitions that have a range. All of the others is no longer needed."""

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes that wait in ranges."""

    # Changes

    def delivered(self, to: Key) -> Decision[None]:
        """Advance the watermark. Ranges of a minute that are finished, and old tombstones of recalls, go."""

    def flushed_to(
        self, end_offset: int, horizon_us: int, moved: Mapping[RangeId, Moved], closed_us: int
    ) -> Decision[None]:
        """Note that the intake is flushed up to `end_offset`."""

    def turning(self, range_id: RangeId) -> Decision[None]:
        """Begin to turn a far range: nothing is placed in it any longer."""

    def turned(
        self,
        range_id: RangeId,
        from_offset: int,
        to_offset: int,
        moved: Mapping[RangeId, Moved],
        closed_us: int,
        *,
        is_last: bool,
    ) -> Decision[bool]:
        """Note that the blocks [from_offset, to_offset) of a range are moved. False, without records: the
        range is no longer as it was when they were read. `is_last`: the range is empty then, and goes.
        """

    def recall(self, id: Id, due_us: int, delivering_to: Key, durable: Key) -> Decision[RecallAnswer]:
        """Recall a message. `delivering_to`: the last key that is delivered or being delivered. `durable`:
        the watermark that is durable.

        Raises ResourceExhausted: too many recalled messages wait for their time.
        """
