"""The roots of the model of branches, how each is read through its ancestors, and the judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.models.branches.state import (
    BUNDLES,
    MARK,
    MOVES,
    REGISTRY,
    REMOVABLE,
    Checkpoint,
    File,
    Placed,
    Record,
    Root,
    State,
)
from tests.models.walk import Process, Violation, Walk, need


class World:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.random = walk.random
        self.roots = [Root("main", checkpoints={b: {0: Checkpoint()} for b in BUNDLES})]
        self.by_name = {"main": self.roots[0]}
        self.notes: dict[str, str] = {}
        """Of each `branch.json`: "branch", or "dropped" if what drops was there first."""
        self.wanted: dict[str, list[tuple[Root, int]]] = {}
        """Of each branch whose creation has begun: the cuts it has to hold."""
        self._ids = 0

    def breaks(self, rule: str) -> bool:
        return rule in self.walk.broken

    def new(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}{self._ids}"

    # a root, read through its ancestors

    def checkpoint(self, root: Root, bundle: int, number: int | None = None) -> Checkpoint:
        """The newest one, or that of a number. What is left of a dropped branch needs nothing of its ancestors."""
        own = root.checkpoints[bundle]
        if own and (number is None or number in own):
            return own[max(own) if number is None else number]
        if not own and not root.alive:
            return Checkpoint()
        if root.parent is None or root.base is None or (number is not None and number > root.base.bases[bundle]):
            raise Violation(f"checkpoint {number} of {root.name}/{bundle} is gone")
        found = self.checkpoint(root.parent, bundle, root.base.bases[bundle] if number is None else number)
        return found if self.breaks("pins-come-along") else replace(found, pins=frozenset())

    def put(self, root: Root, bundle: int, base: Checkpoint, **change: Any) -> bool:
        """Put the checkpoint after `base`, if it is absent."""
        if self.checkpoint(root, bundle) != base:
            return False
        root.checkpoints[bundle][base.number + 1] = replace(base, number=base.number + 1, **change)
        return True

    def slot(self, root: Root, bundle: int, slot: int) -> tuple[str, Any]:
        at = root
        while at.parent and at.base and slot <= at.base.places[bundle]:
            at = at.parent
        if slot not in at.slots[bundle] and at.parent and self.breaks("parent-read-above-the-base"):
            at = at.parent
        need(slot in at.slots[bundle], f"slot {slot} of {root.name}/{bundle} is gone")
        return at.slots[bundle][slot]

    def rows(self, root: Root, file: File) -> list[Any] | None:
        if self.breaks("files-found-by-name-alone"):
            found = [at.files.get(file.key) or at.held.get(file.key) for at in reversed(root.lineage())]
            return next((rows for rows in found if rows), None)
        origin = self.by_name[file.origin]
        return origin.files.get(file.key) or origin.held.get(file.key)

    def append(self, root: Root, bundle: int, part: str, value: Any) -> None:
        """Put the next slot. Owners and their terms are in the model of the ledger."""
        root.ends[bundle] += 1
        root.slots[bundle][root.ends[bundle]] = part, value
        if part != MARK:
            root.log(part).append(value)

    # the registry

    def records(self, root: Root) -> dict[int, Record]:
        """The newest record of each cut of this root. Those of the parent came along with its log."""
        found = {}
        own = len(root.base.truth.get(REGISTRY, ())) if root.base else 0
        for value in root.log(REGISTRY):
            if isinstance(value, Record) and (value.cut >= own or self.breaks("parents-cuts-count")):
                found[value.cut] = value
        return found

    def placed(self, root: Root, cut: int) -> Placed:
        """The object of a cut. Objects of cuts are never inherited; only a mutant looks further."""
        return next(at.cuts[cut] for at in root.lineage() if cut in at.cuts)

    def is_busy(self, root: Root) -> bool:
        """A cut is pending, or a partition moves: neither begins beside the other."""
        return root.moving or any(record.state is State.PENDING for record in self.records(root).values())

    def amend(self, root: Root, cut: int, step: Callable[[Record], Record | None]) -> Process:
        """Put the next record of a cut, as the newest catalog judges it; returns whether the step was allowed."""
        seen = self.records(root)[cut]
        yield
        if not self.breaks("judged-by-an-old-catalog"):
            seen = self.records(root)[cut]
        after = step(seen)
        if after is not None and after != seen:
            self.append(root, 0, REGISTRY, after)
        return after is not None

    # the judge

    def read(self, root: Root, bundle: int, base: Checkpoint, upto: int) -> dict[tuple[str, int], Any]:
        """Return all that a reader finds by a checkpoint and the slots after it, from the log starts on."""
        found: dict[tuple[str, int], Any] = {}
        ends: dict[str, int] = {}
        for file in base.files:
            ends[file.part] = file.last + 1
            if file in base.named():
                rows = self.rows(root, file)
                need(rows is not None, f"file {file.key} of {file.origin}, read by {root.name}, is gone")
                found |= {(file.part, file.first + i): value for i, value in enumerate(rows or ())}
        for slot in range(base.planned + 1, upto + 1):
            part, value = self.slot(root, bundle, slot)
            if part != MARK:
                at = value[0] if part == MOVES else ends.get(part, 0)
                found[part, at] = value
                ends[part] = at + 1
        return found

    def look(self) -> None:
        """What a live root or a taken cut names can be read, and has what it had."""
        root = self.random.choice(self.roots)
        for cut, record in self.records(root).items():
            if self._is_in_use(root, record):
                placed = self.placed(root, cut)
                bases = {b: self.checkpoint(root, b, placed.bases[b]) for b in BUNDLES}
                self._compare(f"cut {cut} of {root.name}", root, bases, placed.places, placed.truth, placed.removed)
        if root.alive:
            newest = {b: self.checkpoint(root, b) for b in BUNDLES}
            self._compare(root.name, root, newest, root.ends, root.truth, root.removed)
            for base in newest.values():
                self._check_plain(root, base)
            self.walk.saw("branches read", int(root.parent is not None))

    def _is_in_use(self, root: Root, record: Record) -> bool:
        """A taken cut may be read. Of a dropped root, one that is held only by branches which were dropped before they
        were whole may not: such a create took this hold after the others were released, and lets go when it finds its
        note.
        """
        if record.state is not State.TAKEN or root.alive or not record.holders:
            return record.state is State.TAKEN
        return any(self.notes.get(holder) != "dropped" for holder in record.holders)

    def look_at_holds(self) -> None:
        """What a live branch reads is held by it; what a taken cut of any root reads is taken."""
        for root in self.roots:
            taken = any(self._is_in_use(root, record) for record in self.records(root).values())
            for origin, cut in root.holds_on if root.alive or taken else ():
                record = self.records(origin)[cut]
                need(record.state is State.TAKEN, f"{root.name} reads cut {cut} of {origin.name}, which is over")
                need(not root.alive or root.name in record.holders, f"{root.name} does not hold {cut} of {origin.name}")

    def _compare(
        self,
        what: str,
        root: Root,
        bases: dict[int, Checkpoint],
        places: dict[int, int],
        truth: dict[str, list[Any]],
        is_removed: bool,
    ) -> None:
        found: dict[tuple[str, int], Any] = {}
        for bundle, base in bases.items():
            found |= self.read(root, bundle, base, places[bundle])
        for part, values in truth.items():
            start = max(base.start(part) for base in bases.values())
            for offset in range(start, 0 if part == REMOVABLE and is_removed else len(values)):
                got = found.get((part, offset))
                need(got == values[offset], f"{what}: {part} at {offset} is {got}, not {values[offset]}")
            beyond = [at for name, at in found if name == part and at >= len(values)]
            need(not beyond, f"{what}: {part} has {beyond}, which it never got")

    def _check_plain(self, root: Root, base: Checkpoint) -> None:
        runs: dict[str, list[bool]] = {}
        for file in base.files:
            if file.origin == root.name:
                runs.setdefault(file.part, []).append(file.key in root.files)
        for part, run in runs.items():
            need(run == sorted(run), f"{root.name}: a plain reader finds a gap in {part}")
