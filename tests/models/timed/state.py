"""What the model of timed messages keeps: messages, blocks, and the fold of one bundle's log.

Two kinds of appends change a state. A `Block` is what a producer sends; the ledger judges its session
and gives it an offset. A `Group` has everything that one decision of the owner writes: all of it
lands, or nothing. The two touch different fields, so they may land in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.models.terms import NOT_OWNER, UNKNOWN
from tests.models.timed.places import Key, Place, Range, finished, places

RETRY, GONE, FENCED, DONE = "RETRY", "gone", "fenced", "done"
RECALLED, TOO_LATE, FORGOTTEN = "recalled", "too late", "forgotten"
NO_ANSWER = (NOT_OWNER, UNKNOWN, RETRY)
BEGINNING = finished(0)
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
    """What a program needs for a recall. `offset` and `row`: the id of the message in its bundle."""

    message: int
    bundle: int
    offset: int
    row: int
    due: int


class Row(NamedTuple):
    """A message that waits. `key`: with its effective due second."""

    key: Key
    message: Message


@dataclass(frozen=True, slots=True)
class Block:
    """What one send stores in the intake. `floor`: no row is due before this second."""

    offset: int
    floor: int
    messages: tuple[Message, ...]
    session: Session

    def rows(self) -> list[Row]:
        return [Row(Key(max(m.due, self.floor), self.offset, row), m) for row, m in enumerate(self.messages)]


class Session(NamedTuple):
    producer: str
    epoch: int
    sequence: int


class Moved(NamedTuple):
    """A block of a range: rows that were moved there in one group."""

    offset: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One partition of a pool, with all that was ever stored there."""

    end: int = 0
    blocks: tuple[Moved, ...] = ()


class Piece(NamedTuple):
    """A flushed stretch of the intake: its rows that are due after `horizon` are in ranges."""

    begin: int
    end: int
    horizon: int

    def is_finished(self, watermark: Key) -> bool:
        return watermark >= finished(self.horizon)


class Visible(NamedTuple):
    """A record of a target partition."""

    message: Message
    topic: Topic
    key: Key


@dataclass(slots=True)
class Group:
    """Records of one decision, and the batches that belong to it. `ranges`, `recalls`: None removes."""

    watermark: Key | None = None
    flushed: tuple[int, tuple[Piece, ...]] | None = None
    ranges: dict[Place, Range | None] = field(default_factory=dict)
    moved: dict[Place, list[Row]] = field(default_factory=dict)
    recalls: dict[tuple[int, int], int | None] = field(default_factory=dict)
    visible: list[Visible] = field(default_factory=list)
    removed: Topic | None = None


@dataclass(slots=True)
class State:
    """The fold of one bundle's log, up to some append. Never changed once it is somewhere's state."""

    intake: tuple[Block, ...] = ()
    sessions: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """producer -> (epoch, offsets of its blocks by sequence)"""
    watermark: Key = BEGINNING
    flushed_to: int = 0
    pieces: tuple[Piece, ...] = ()
    """flushed stretches of the intake, up to `flushed_to`; finished ones at the front are dropped"""
    ranges: dict[Place, Range] = field(default_factory=dict)
    parts: dict[Place, Part] = field(
        default_factory=lambda: {place: Part() for is_far in (False, True) for place in places(is_far)}
    )
    recalled: dict[tuple[int, int], int] = field(default_factory=dict)
    """id -> the second until which it may still be delivered"""
    removed: frozenset[Topic] = frozenset()
    visible: list[Visible] = field(default_factory=list)

    def copy(self) -> State:
        return replace(
            self,
            sessions=dict(self.sessions),
            ranges=dict(self.ranges),
            parts=dict(self.parts),
            recalled=dict(self.recalled),
            visible=list(self.visible),
        )

    @property
    def intake_end(self) -> int:
        return len(self.intake)

    @property
    def intake_begin(self) -> int:
        """Return the first offset of the intake from which something may be needed."""
        return next((piece.begin for piece in self.pieces if not piece.is_finished(self.watermark)), self.flushed_to)

    def next_sequence(self, producer: str, epoch: int) -> int:
        known, offsets = self.sessions.get(producer, (0, ()))
        return len(offsets) if known == epoch else 0

    def add(self, append: Block | Group) -> None:
        if isinstance(append, Group):
            self._add_group(append)
            return
        assert append.offset == self.intake_end
        producer, epoch, sequence = append.session
        known, offsets = self.sessions.get(producer, (0, ()))
        self.sessions[producer] = (epoch, (*(offsets if known == epoch else ())[:sequence], append.offset))
        self.intake = (*self.intake, append)

    def _add_group(self, group: Group) -> None:
        self.watermark = group.watermark or self.watermark
        if group.flushed is not None:
            self.flushed_to, self.pieces = group.flushed
        for place, there in group.ranges.items():
            self.ranges.pop(place, None)
            if there is not None:
                self.ranges[place] = there
        for place, rows in group.moved.items():
            part = self.parts[place]
            self.parts[place] = Part(part.end + 1, (*part.blocks, Moved(part.end, tuple(rows))))
        for number, until in group.recalls.items():
            self.recalled.pop(number, None)
            if until is not None:
                self.recalled[number] = until
        self.visible += group.visible
        if group.removed is not None:
            self.removed |= {group.removed}
