"""What the model of cuts keeps: checkpoints with pins, bundles and their terms, cuts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

BUNDLES = (0, 1, 2)
"""Bundle 0 has the catalog; the others have records, groups and coordinators."""
USERS = (1, 2)
CATALOG, GROUPS, STAGED, MOVES, KEYED = "catalog", "groups", "staged", "m", "k"
"""Partitions: of bundle 0; of committed offsets and decisions; of staged batches; the one that moves; the keyed one."""
INTERNAL = (CATALOG, GROUPS, STAGED)
KEYED_BUNDLE = 2
FOR_EVER = 10**9


def plain(bundle: int) -> str:
    return f"t{bundle}"


class State(StrEnum):
    PENDING = "pending"
    TAKEN = "taken"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file of a partition's log; `last` inclusive."""

    part: str
    first: int
    last: int
    key: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Slots up to `planned` are in files. `starts`: log starts. `pins`: (cut, number of its base)."""

    number: int = 0
    planned: int = 0
    files: tuple[File, ...] = ()
    starts: tuple[tuple[str, int], ...] = ()
    pins: frozenset[tuple[str, int]] = frozenset()
    removed: frozenset[str] = frozenset()

    def start(self, part: str) -> int:
        return dict(self.starts).get(part, 0)

    def named(self) -> set[File]:
        """The files that a reader by this checkpoint may need."""
        return {
            file
            for file in self.files
            if file.last >= self.start(file.part) and topic_of(file.part) not in self.removed
        }


def topic_of(part: str) -> str:
    return part.split("/", maxsplit=1)[0]


@dataclass(slots=True)
class Term:
    """What one owner has in memory. `seen_open`: transactions that one which was replaced takes for incomplete.
    `has_read`: it has read what its predecessors decided.
    """

    holds: set[str] = field(default_factory=set)
    in_flight: bool = False
    deciding: int = 0
    drawing: int = 0
    seen_open: int = 0
    has_read: bool = True


@dataclass(slots=True)
class Bundle:
    """`history`: the entries of all slots ever put, for the judge. `slots`: those that are still there."""

    history: list[tuple[str, Any]] = field(default_factory=list)
    slots: dict[int, tuple[str, Any]] = field(default_factory=dict)
    checkpoints: dict[int, Checkpoint] = field(default_factory=lambda: {0: Checkpoint()})
    open: set[str] = field(default_factory=set)
    """Transactions that are decided here, and not complete."""
    term: Term = field(default_factory=Term)
    former: list[Term] = field(default_factory=list)

    @property
    def newest(self) -> Checkpoint:
        return self.checkpoints[max(self.checkpoints)]

    def until(self, slot: int | None, part: str) -> list[Any]:
        return [value for found, value in self.history[:slot] if found == part]


@dataclass(slots=True)
class Version:
    """A version of the keyed partition: the newest record of each key below `end`."""

    end: int
    files: frozenset[str]


@dataclass(slots=True)
class Cut:
    name: str
    state: State = State.PENDING
    bases: dict[int, int] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    version: int = 0
    """Of the keyed partition, at the place."""
    lengths: dict[tuple[int, str], int] = field(default_factory=dict)


@dataclass(slots=True)
class Move:
    number: int
    source: int
    target: int
    end: int = 0
