"""What the model of timed messages keeps: messages, slots, and the fold of one bundle's log."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.models.terms import NOT_OWNER, UNKNOWN
from tests.models.timed.wheel import COARSE_LEVELS, END, SLOTS, Place, Watermark

RETRY, GONE, DONE, OK = "RETRY", "gone", "done", "ok"
RECALLED, TOO_LATE, FORGOTTEN = "recalled", "too late", "forgotten"
COMMIT, ABORT, OVER = "commit", "abort", "over"
NO_ANSWER = (NOT_OWNER, UNKNOWN, RETRY)
BEGINNING = Watermark(0, END)
RECALL_KEPT = 25
"""For so many seconds after its due second a recall is remembered."""


class Topic(NamedTuple):
    name: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Message:
    """`due`: a second of the store's clock, which the sender fixed. `timestamp`: the record's."""

    id: int
    bundle: int
    topic: Topic
    due: int
    timestamp: int
    delay: int


class Handle(NamedTuple):
    """What a program needs for a recall."""

    message: int
    bundle: int
    due: int


class Record(NamedTuple):
    """A staged message. `offset`: in the hidden partition of its slot."""

    offset: int
    message: Message


@dataclass(frozen=True, slots=True)
class Slot:
    """One hidden partition. `start`: its log start; what is below may be deleted at any time."""

    start: int = 0
    end: int = 0
    records: tuple[Record, ...] = ()

    def put(self, message: Message) -> Slot:
        return replace(self, end=self.end + 1, records=(*self.records, Record(self.end, message)))

    def from_offset(self, start: int) -> Slot:
        return replace(self, start=start, records=tuple(kept for kept in self.records if kept.offset >= start))

    def close(self) -> Slot:
        return Slot(self.end, self.end)


class Visible(NamedTuple):
    """A record of a target partition. `offset`: its staged one; None: it was delivered at once."""

    message: Message
    topic: Topic
    offset: int | None


@dataclass(slots=True)
class State:
    """The fold of one bundle's log, up to some append. Never changed once it is somewhere's state."""

    watermark: Watermark = BEGINNING
    turned: tuple[int, ...] = (0, 0, 0)
    slots: dict[tuple[int, int], Slot] = field(
        default_factory=lambda: {(level, i): Slot() for level in (0, *COARSE_LEVELS) for i in range(SLOTS)}
    )
    visible: list[Visible] = field(default_factory=list)
    sessions: dict[tuple[str, Place | None], int] = field(default_factory=dict)
    """producer -> its next sequence. The place is None: a session is the bundle's, not a slot's."""
    recalled: dict[int, int] = field(default_factory=dict)
    """message -> its due second"""
    removed: frozenset[Topic] = frozenset()
    staged: dict[int, tuple[Message, ...]] = field(default_factory=dict)
    """transaction -> what it has staged here"""
    notes: frozenset[int] = frozenset()
    """transactions that are completed here"""

    def copy(self) -> State:
        return replace(
            self,
            slots=dict(self.slots),
            visible=list(self.visible),
            sessions=dict(self.sessions),
            recalled=dict(self.recalled),
            staged=dict(self.staged),
        )

    def holds_nothing(self) -> bool:
        """Nothing waits, and nothing is remembered of what waited."""
        return not (any(slot.records for slot in self.slots.values()) or self.recalled or self.staged)
