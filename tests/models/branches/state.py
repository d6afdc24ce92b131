"""What the model of branches keeps: roots with their ledgers and files, checkpoints with pins, cuts with holders."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

BUNDLES = (0, 1, 2)
"""Bundle 0 has the registry of cuts; the others have records."""
REGISTRY, REMOVABLE, MOVES, MARK = "registry", "x", "m", "mark"
"""Partitions: of bundle 0; of a topic that is removed; the one that moves. A mark is no record: a seal, an open."""
FOR_EVER = 10**9


class State(StrEnum):
    PENDING = "pending"
    TAKEN = "taken"
    OVER = "over"


LIVE = (State.PENDING, State.TAKEN)


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file of a partition's log; `last` inclusive. Two roots may give the same name `key`: `origin` is the
    root that has put it.
    """

    part: str
    first: int
    last: int
    origin: str
    key: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Slots up to `planned` are in files. `starts`: log starts. `pins`: (cut, number of its base)."""

    number: int = 0
    planned: int = 0
    files: tuple[File, ...] = ()
    starts: tuple[tuple[str, int], ...] = ()
    pins: frozenset[tuple[int, int]] = frozenset()
    removed: bool = False

    def start(self, part: str) -> int:
        return dict(self.starts).get(part, 0)

    def named(self) -> set[File]:
        """The files that a reader by this checkpoint may need."""
        gone = REMOVABLE if self.removed else ""
        return {file for file in self.files if file.last >= self.start(file.part) and file.part != gone}


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the registry. `cut`: the offset of its first record, counted through from the oldest root."""

    cut: int
    state: State
    holders: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Placed:
    """The object of a cut. `truth`: for the judge, each partition's values then."""

    bases: dict[int, int]
    places: dict[int, int]
    truth: dict[str, list[Any]]
    home: int
    removed: bool


@dataclass(slots=True)
class Root:
    """`slots`, `checkpoints`, `files`: its own; what it has of its ancestors it reads there. `ends`: the newest slot of
    each bundle. `truth`: for the judge, each partition's values, inherited ones too.
    """

    name: str
    parent: Root | None = None
    base: Placed | None = None
    holds_on: list[tuple[Root, int]] = field(default_factory=list)
    """Each root that it reads, oldest first, and the cut there."""
    alive: bool = True
    let_go: bool = False
    """It was dropped, and that has ended."""
    slots: dict[int, dict[int, tuple[str, Any]]] = field(default_factory=lambda: {b: {} for b in BUNDLES})
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(BUNDLES, 0))
    checkpoints: dict[int, dict[int, Checkpoint]] = field(default_factory=lambda: {b: {} for b in BUNDLES})
    files: dict[str, list[Any]] = field(default_factory=dict)
    held: dict[str, list[Any]] = field(default_factory=dict)
    cuts: dict[int, Placed] = field(default_factory=dict)
    truth: dict[str, list[Any]] = field(default_factory=dict)
    home: int = 1
    removed: bool = False
    moving: bool = False

    def log(self, part: str) -> list[Any]:
        return self.truth.setdefault(part, [])

    def lives(self) -> bool:
        """Ask it again after each `yield`: another process may have dropped the root."""
        return self.alive

    def lineage(self) -> list[Root]:
        """This root, its parent, and so on."""
        return [self, *(self.parent.lineage() if self.parent else [])]
