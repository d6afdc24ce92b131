"""What the model of transactions keeps: records, staged batches, notes, offsets, and the world."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.models.terms import NOT_OWNER, UNKNOWN, LateCall, TermsWorld
from tests.models.walk import Process, Violation, Walk

LATE_WITHIN = 3000
STEPS = 12_000
OUTPUTS = (1, 2)
COORDINATORS = (0, 3)
"""Ledgers of the coordinators' partitions when the topic was created. Their number is the modulus."""
COORDINATORS_GROWN = (0, 3, 1)
"""Later the topic has one more partition; it holds no ids."""
RETRY = "RETRY"
OK, OVER, FENCED, DONE, COMMIT, ABORT = "ok", "over", "fenced", "done", "commit", "abort"
GAP, CONFLICT = "gap", "conflict"
EXPIRED, KEPT, UNSURE, PREPARED = "expired", "kept", "unsure", "prepared"
UNRESOLVED = "unresolved"
XID, DATABASE, HALF = "xid", "database", "half"
UNRESOLVED_LEDGER = 1
"""where copies of unresolved half messages are kept"""
USED_ONCE = (XID, DATABASE, HALF)
"""How transactional ids begin that are used for one transaction."""
NO_ANSWER = (NOT_OWNER, UNKNOWN, RETRY)


class TransactionId(NamedTuple):
    name: str
    """The transactional id that the program chose."""
    producer: int
    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a decision counts of one bundle."""

    batches: int
    has_offset: bool


@dataclass(frozen=True, slots=True)
class Known:
    """The coordinator's record of one transactional id."""

    producer: int
    epoch: int
    number: int = 0
    decided: str | None = None
    parts: dict[int, Part] = field(default_factory=dict)
    complete: bool = True
    at: int = 0
    """when it was last used"""
    checks: int = 0
    """how often producers were asked about this half message"""
    was_unresolved: bool = False
    nonce: int = 0
    """of the object that began an id that is used once"""
    given_up: frozenset[int] = frozenset()
    """bundles whose part an operator has declared lost"""

    def is_last(self, transaction: TransactionId) -> bool:
        return (self.producer, self.epoch, self.number) == transaction[1:]


@dataclass(frozen=True, slots=True)
class Reference:
    """One staged batch. `at`: when it was written, or carried forward."""

    at: int
    sequence: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Staged:
    at: int
    references: tuple[Reference, ...] = ()
    """In the order of sequences; a completion takes them away from the front."""


@dataclass(frozen=True, slots=True)
class Note:
    """How far a bundle is with the last transaction of a producer that it completes."""

    transaction: TransactionId
    part: Part
    copied: int
    """the next sequence to copy"""
    finished: bool

    @property
    def pair(self) -> tuple[int, int]:
        return self.transaction.epoch, self.transaction.number


@dataclass(slots=True)
class Group:
    epoch: int = 0
    member: str | None = None
    committed: int = 0
    pending: dict[TransactionId, tuple[int, int]] = field(default_factory=dict)
    """(staged at, offset)"""
    plain_at: int = 0
    """when an offset was last committed plainly"""


@dataclass(slots=True)
class State:
    """The fold of the part of one bundle's log that a term has read."""

    known: dict[str, Known] = field(default_factory=dict)
    staged: dict[TransactionId, Staged] = field(default_factory=dict)
    notes: dict[int, Note] = field(default_factory=dict)
    """producer -> its last transaction that is, or was, completed here"""
    notes_gone: int = 0
    visible: list[int] = field(default_factory=list)
    visible_once: list[tuple[str, int]] = field(default_factory=list)
    """(transactional id, value) of ids that are used once"""
    unresolved: list[tuple[TransactionId, tuple[int, ...]]] = field(default_factory=list)
    """copies of half messages about which no producer gave an answer"""
    group: Group = field(default_factory=Group)


class World(TermsWorld[State]):
    def __init__(self, walk: Walk) -> None:
        super().__init__(walk, [State() for _ in range(4)], late_within=LATE_WITHIN)
        self.aborted: set[TransactionId] = set()
        self.prepared: dict[tuple[TransactionId, int], tuple[int, ...]] = {}
        """what a manager was told is prepared, and its value -> the bundles that have the value"""
        self.committed: dict[tuple[str, int], tuple[int, ...]] = {}
        """xids that were prepared and then committed, with the value -> bundles"""
        self.begun: list[str] = []
        """xids that the manager has begun, for its rival"""
        self.resolved: list[str] = []
        """xids that the manager has yet to forget"""
        self.damaged: set[TransactionId] = set()
        """what cannot be read in bundle 2"""
        self.grown_at = walk.random.randrange(STEPS)
        self.ask_after = walk.random.choice((300, 2000))
        """how old what is staged has to be before a bundle asks about it"""
        self.working = 0
        """how many workers have something left to do"""

    def at_rest(self) -> bool:
        """Nothing will happen any more: background processes may end."""
        if not self.healed or self.working:
            return False
        if not all(known.complete for term in self.terms for known in term.state.known.values()):
            return False
        return not any(term.state.staged or term.state.group.pending for term in self.terms)

    def deliver_within(self, steps: int, ledger: int, method: Callable[..., Any], *arguments: Any) -> None:
        """The network delivers a call again that was answered long ago."""
        self.late.append(LateCall(self.now + self.walk.random.randrange(steps), ledger, method, arguments))

    def visible_once(self, bundle: int, kind: str) -> list[tuple[str, int]]:
        return [pair for pair in self.terms[bundle].state.visible_once if pair[0].startswith(kind)]

    def check_rest(self) -> None:
        """All is quiet: nothing may be staged, pending or undecided."""
        for term in self.terms:
            if term.state.staged or term.state.group.pending:
                raise Violation(
                    f"bundle {term.ledger} still holds {list(term.state.staged)} {term.state.group.pending}"
                )
            unfinished = [name for name, known in term.state.known.items() if not known.complete]
            if unfinished:
                raise Violation(f"never completed: {unfinished}")

    def coordinator(self, name: str) -> int:
        """Return the ledger in which this transactional id's coordinator lives."""
        grown = self.breaks("modulus-of-the-topic") and self.now > self.grown_at
        ledgers = COORDINATORS_GROWN if grown else COORDINATORS
        return ledgers[zlib.crc32(name.encode()) % len(ledgers)]


def call_until_answered(world: World, bundle: int, method: Callable[..., Any], *arguments: Any) -> Process:
    while True:
        answer = yield from world.call(bundle, method, *arguments)
        if answer not in NO_ANSWER:
            return answer
        yield


def call_some_times(world: World, bundle: int, method: Callable[..., Any], *arguments: Any) -> Process:
    answer = yield from world.call(bundle, method, *arguments)
    for _ in range(3):
        if answer in (NOT_OWNER, UNKNOWN) and world.walk.chance(0.8):
            answer = yield from world.call(bundle, method, *arguments)
    return answer
