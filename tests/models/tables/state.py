"""What the model of tables stores: files, the lists of bundles' checkpoints, and versions of a table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

PARTITIONS = (0, 1)
FORMATS = ("delta", "iceberg")
HELD, LATE, NAP = 300, 1200, 2000
"""How long a version is held after the next one came, the longest that a commit is on its way, and
that a process sleeps.
"""

Range = tuple[int, int]
"""First offset, and the offset after the last."""
Generation = tuple[int, int]
"""The topic's id, and the setting that made the table: both only rise."""


class File(NamedTuple):
    topic: int
    partition: int
    kind: str
    """`small`: made by a round, in the topic's folder. `merged`: beside it."""
    first: int
    end: int


@dataclass(slots=True)
class Part:
    """A partition, as a checkpoint lists it."""

    topic: int
    start: int = 0
    end: int = 0
    small: list[Range] = field(default_factory=list)
    merged: list[Range] = field(default_factory=list)
    gate: dict[str, int] = field(default_factory=dict)
    """By format: every held version says a start of at least this offset."""
    frozen: int = 0
    """The number of the move that froze the list; 0: not frozen."""

    @property
    def front(self) -> int:
        """Where the oldest small file begins that is not deleted."""
        return self.small[0][0] if self.small else self.end

    def copy(self) -> Part:
        return replace(
            self,
            small=list(self.small),
            merged=list(self.merged),
            gate=dict(self.gate),
        )


@dataclass(slots=True)
class Checkpoint:
    """The newest checkpoint of a bundle; `generation` and `is_set` are what it knows of the table."""

    number: int = 0
    parts: dict[int, Part] = field(default_factory=dict)
    moved_to: dict[int, int] = field(default_factory=dict)
    generation: Generation = (0, 0)
    is_set: bool = False

    def copy(self) -> Checkpoint:
        parts = {partition: part.copy() for partition, part in self.parts.items()}
        return replace(self, parts=parts, moved_to=dict(self.moved_to))


@dataclass(slots=True)
class Commit:
    """A version as it is sent to the table: what is new in it."""

    base: int
    put: float
    generation: Generation
    adds: set[File] = field(default_factory=set)
    removes: set[File] = field(default_factory=set)
    end: dict[int, int] = field(default_factory=dict)
    start: dict[int, int] = field(default_factory=dict)
    changes_rows: bool = True


@dataclass(frozen=True, slots=True)
class Shown:
    """What a reader of one version sees."""

    generation: Generation = (0, 0)
    files: frozenset[File] = frozenset()
    end: dict[int, int] = field(default_factory=dict)
    start: dict[int, int] = field(default_factory=dict)

    def of(self, partition: int) -> list[File]:
        return sorted((file for file in self.files if file.partition == partition), key=lambda file: file.first)

    def after(self, commit: Commit) -> Shown:
        before = self if commit.generation == self.generation else Shown()
        return Shown(
            commit.generation,
            self.files - commit.removes | commit.adds,
            {**before.end, **commit.end},
            {**before.start, **commit.start},
        )
