"""What the model of merges stores: small files, merged ones, lists, and the checkpoints of two bundles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.models.walk import Process, Violation, Walk

NAP, LATE = 400, 300


class Merged(NamedTuple):
    """The key of a merged file, or of a list (`first` is `end`)."""

    topic: int
    first: int
    end: int
    number: int
    attempt: int


class Small(NamedTuple):
    topic: int
    first: int
    end: int


@dataclass(slots=True)
class Part:
    topic: int
    start: int = 0
    """The log start. `front`: where the oldest small file begins."""
    front: int = 0
    end: int = 0
    small: tuple[Small, ...] = ()
    number: int = 0
    """Of the newest merge."""
    merged: Merged | None = None
    """The list that it put."""
    first: int = 0
    """Merged files of this list that begin below are gone."""
    frozen: int = 0

    @property
    def generation(self) -> tuple[int, int]:
        return self.topic, self.number


@dataclass(slots=True)
class Checkpoint:
    number: int = 0
    part: Part | None = None
    moved: bool = False
    """The other bundle has the partition."""
    pins: dict[int, Part] = field(default_factory=dict)
    """By cut: what its base names."""

    def copy(self) -> Checkpoint:
        return replace(self, part=replace(self.part) if self.part else None, pins=dict(self.pins))


class World:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.now = 0
        self.is_calm = False
        self.topic = 1
        self.is_removed = False
        self.checkpoints = [Checkpoint(part=Part(1)), Checkpoint(moved=True)]
        self.small: set[Small] = set()
        self.held: set[Small] = set()
        """Handed over to cuts."""
        self.merged: dict[Merged, int] = {}
        """Merged files, and when they came."""
        self.lists: dict[Merged, tuple[Merged, ...]] = {}
        self.made_of: dict[Merged, tuple[Small, ...]] = {}
        self.late: list[tuple[int, Callable[[], object]]] = []
        self.has_collector = walk.chance(0.7)
        """Else brokers alone delete merged files: those behind the front, by the list."""
        self.once_listed: set[Merged] = set()
        self.attempts = self.moves = self.cuts = 0

    def breaks(self, rule: str) -> bool:
        return rule in self.walk.broken

    def put(self, bundle: int, seen: Checkpoint, new: Checkpoint) -> bool:
        now = self.checkpoints[bundle]
        if now.number != seen.number:
            return False
        before, after = now.part, new.part
        if before is not None and after is not None and before.frozen and after.frozen and before != after:
            raise Violation("a frozen list changes")
        new.number = seen.number + 1
        self.checkpoints[bundle] = new
        self.check()
        return True

    def change(self, bundle: int, edit: Callable[[Checkpoint], bool]) -> Process:
        while True:
            yield
            seen = self.checkpoints[bundle].copy()
            yield
            new = seen.copy()
            if not edit(new):
                return False
            if self.put(bundle, seen, new):
                return True

    def in_charge(self) -> Process:
        """Return the bundle in charge and its checkpoint; None between two bundles."""
        bundle = self.walk.random.randrange(2)
        for _ in range(4):
            yield
            seen = self.checkpoints[bundle].copy()
            if seen.part is not None and not seen.part.frozen:
                return bundle, seen
            if seen.part is not None or not seen.moved:
                return None
            bundle = 1 - bundle
        return None

    def check(self) -> None:
        """What the newest checkpoints name is there, and is right."""
        for checkpoint in self.checkpoints:
            part = checkpoint.part
            if part is None or part.merged is None or self.is_removed or part.topic != self.topic:
                continue
            if part.merged not in self.lists:
                raise Violation(f"the newest list {part.merged} is gone")
            self.once_listed.update(self.lists[part.merged])
            borders = {small.first for small in part.small} | {small.end for small in part.small}
            end = 0
            for file in self.lists[part.merged]:
                if file.topic != part.topic:
                    raise Violation(f"{file} is of another topic than {part.topic}")
                if file.first < end:
                    raise Violation(f"{file} is listed beside another merged file of its range")
                end = file.end
                if file.first < part.front:
                    continue
                if file not in self.merged:
                    raise Violation(f"{file} is listed, and is gone")
                if not {file.first, file.end} <= borders:
                    raise Violation(f"{file} stands for no run of the small files {part.small}")

    def check_end(self) -> None:
        if self.late:
            return
        for file in self.merged:
            part = next((c.part for c in self.checkpoints if c.part is not None and c.part.topic == file.topic), None)
            if not self.has_collector and (part is None or file not in self.once_listed):
                continue
            if part is None:
                raise Violation(f"{file} stays, its topic is gone")
            if file.first < part.front:
                raise Violation(f"{file} stays, but records of it were deleted: the front is {part.front}")
            if not self.has_collector:
                continue
            listed = self.lists[part.merged] if part.merged is not None else ()
            if file not in listed and file.number <= part.number:
                raise Violation(f"{file} stays, though nothing can list it")
