"""The store of the model of cuts: three ledgers, files, versions, and what is held for cuts; and its judge."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tests.models.cuts.state import (
    BUNDLES,
    CATALOG,
    GROUPS,
    INTERNAL,
    KEYED,
    KEYED_BUNDLE,
    MOVES,
    STAGED,
    USERS,
    Bundle,
    Checkpoint,
    Cut,
    Move,
    State,
    Term,
    Version,
    plain,
    topic_of,
)
from tests.models.walk import Process, Violation, Walk, need

Found = dict[tuple[str, int], Any]
"""What a reader finds, by partition and offset."""


class World:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.random = walk.random
        self.bundles = {number: Bundle() for number in BUNDLES}
        self.files: dict[str, list[Any]] = {}
        self.held: dict[str, list[Any]] = {}
        self.versions: dict[int, Version] = {0: Version(0, frozenset())}
        self.keyed: dict[str, dict[int, Any]] = {}
        self.cuts: dict[str, Cut] = {}
        self.transactions: dict[str, tuple[int, int]] = {}
        """By name: a bundle, and how many of its plain records the transaction had read."""
        self.acknowledged: list[tuple[int, str, Any]] = []
        self.move: Move | None = None
        self.home = 1
        """The bundle of the partition that moves."""
        self._ids = 0

    def breaks(self, rule: str) -> bool:
        return rule in self.walk.broken

    def new(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}{self._ids}"

    def put(self, bundle: int, base: Checkpoint, **change: Any) -> bool:
        """Put the checkpoint after `base`, if it is absent."""
        if self.bundles[bundle].newest != base:
            return False
        after = replace(base, number=base.number + 1, **change)
        self.bundles[bundle].checkpoints[after.number] = after
        return True

    def checkpoint(self, bundle: int, number: int) -> Checkpoint:
        found = self.bundles[bundle].checkpoints.get(number)
        if found is None:
            raise Violation(f"checkpoint {number} of bundle {bundle} is gone")
        return found

    def some_owner(self, bundle: int, replaced: float = 0.2) -> Term:
        """The owner of a bundle, or one that was replaced and does not know it."""
        of = self.bundles[bundle]
        return self.random.choice(of.former) if of.former and self.walk.chance(replaced) else of.term

    def append(self, bundle: int, term: Term, part: str, value: Any) -> Process:
        """Put the next slot of a ledger; returns whether this owner won it. One put at a time."""
        while term.in_flight:
            yield
        term.in_flight = True
        yield
        term.in_flight = False
        of = self.bundles[bundle]
        if of.term is not term or (part == MOVES and self.home != bundle):
            return False
        of.slots[len(of.history) + 1] = part, value
        of.history.append((part, value))
        return True

    @property
    def topics(self) -> list[str]:
        """The topics that live, as the newest catalog says."""
        return living(self.bundles[0].until(None, CATALOG))

    # the judge

    def read(self, bundle: int, base: Checkpoint, upto: int) -> Found:
        """Return all that a reader finds by a checkpoint and the slots after it, from the log starts on."""
        found: Found = {}
        ends: dict[str, int] = {}
        for file in base.files:
            ends[file.part] = file.last + 1
            if file in base.named():
                data = self.files.get(file.key) or self.held.get(file.key)
                need(data is not None, f"file {file.key} of bundle {bundle} is gone")
                found |= {(file.part, file.first + i): value for i, value in enumerate(data or ())}
        for slot in range(base.planned + 1, upto + 1):
            entry = self.bundles[bundle].slots.get(slot)
            if entry is None:
                raise Violation(f"slot {slot} of bundle {bundle} is gone")
            part, value = entry
            at = value[0] if part == MOVES else ends.get(part, 0)
            found[part, at] = value
            ends[part] = at + 1
        return found

    def look(self) -> None:
        """Whatever a taken cut names can be read, and so can the newest."""
        taken = [cut for cut in self.cuts.values() if cut.state is State.TAKEN]
        for cut in self.random.sample(taken, min(len(taken), 2)):
            bases = {bundle: self.checkpoint(bundle, cut.bases[bundle]) for bundle in BUNDLES}
            self._compare(f"cut {cut.name}", bases, cut.places, cut.version)
        newest = {number: bundle.newest for number, bundle in self.bundles.items()}
        places = {number: len(bundle.history) for number, bundle in self.bundles.items()}
        self._compare("the newest", newest, places, max(self.versions))
        for bundle in self.bundles.values():
            parts: dict[str, list[bool]] = {}
            for file in bundle.newest.files:
                parts.setdefault(file.part, []).append(file.key in self.files)
            for part, run in parts.items():
                need(run == sorted(run), f"a plain reader finds a gap in {part}")

    def _compare(self, what: str, bases: dict[int, Checkpoint], places: dict[int, int], version: int) -> None:
        found = {number: self.read(number, base, places[number]) for number, base in bases.items()}
        lives = living(self.bundles[0].until(places[0], CATALOG))
        for number, bundle in self.bundles.items():
            removed = bases[number].removed
            parts = {part for part, _ in bundle.history[: places[number]]} - {MOVES, KEYED, "seal", "open"}
            for part in parts:
                if part not in INTERNAL and part != plain(number) and topic_of(part) not in lives:
                    continue
                need(topic_of(part) not in removed, f"{what}: {part} lives, but its files are said to be removed")
                self._same(what, part, found[number], bundle.until(places[number], part), bases[number].start(part))
        self._check_moving(what, bases, places, found)
        self._check_keyed(what, found[KEYED_BUNDLE], places[KEYED_BUNDLE], version)

    def _same(self, what: str, part: str, found: Found, wanted: Iterable[Any], start: int) -> None:
        for offset, value in enumerate(wanted):
            if offset >= start:
                got = found.get((part, offset))
                need(got == value, f"{what}: {part} at {offset} is {got}, not {value}")

    def _check_moving(
        self,
        what: str,
        bases: dict[int, Checkpoint],
        places: dict[int, int],
        found: dict[int, dict[tuple[str, int], Any]],
    ) -> None:
        """The partition that moves ends in one bundle before it begins in the other."""
        opens = sum(len(self.bundles[b].until(places[b], "open")) for b in USERS)
        seals = sum(len(self.bundles[b].until(places[b], "seal")) for b in USERS)
        need(opens in (seals, seals - 1), f"{what}: {MOVES} is opened {opens} times, and sealed {seals} times")
        both = {key: value for b in USERS for key, value in found[b].items() if key[0] == MOVES}
        wanted = sorted(offset for b in USERS for offset, _ in self.bundles[b].until(places[b], MOVES))
        start = max(bases[b].start(MOVES) for b in USERS)
        for offset in wanted:
            if offset >= start:
                got = both.get((MOVES, offset))
                need(got is not None and got[0] == offset, f"{what}: {MOVES} at {offset} is {got}")
        need(wanted == list(range(len(wanted))), f"{what}: {MOVES} has a gap or a record twice")

    def _check_keyed(self, what: str, found: Found, place: int, number: int) -> None:
        """By the version and the log behind it, the newest record of each key is there."""
        version = self.versions.get(number)
        if version is None:
            raise Violation(f"{what}: version {number} is gone")
        rows: dict[int, Any] = {}
        for key in version.files:
            need(key in self.keyed, f"{what}: file {key} of version {number} is gone")
            rows |= self.keyed[key]
        rows |= {at: value for (part, at), value in found.items() if part == KEYED and at >= version.end}
        log = self.bundles[KEYED_BUNDLE].until(place, KEYED)
        for key, offset in {value[0]: offset for offset, value in enumerate(log)}.items():
            need(rows.get(offset) == log[offset], f"{what}: the newest record of key {key} is gone")

    def judge(self, cut: Cut, acknowledged: list[tuple[int, str, Any]]) -> None:
        """A cut that is taken just now."""
        places = cut.places
        for number, bundle in self.bundles.items():
            need(places[number] <= len(bundle.history), "a place that is not durable")
            base = self.checkpoint(number, cut.bases[number])
            need(base.planned <= places[number], "a base beyond its place")
        for bundle_number, part, value in acknowledged:
            there = self.bundles[bundle_number].until(places[bundle_number], part)
            need(value in there, f"{value} was acknowledged before the cut, and is not in it")
        groups = [entry for b in USERS for entry in self.bundles[b].until(places[b], GROUPS)]
        decided = {entry[1] for entry in groups if entry[0] == "decided"}
        logs = {b: self.bundles[b].until(places[b], plain(b)) for b in USERS}
        for name, (bundle_number, inputs) in self.transactions.items():
            has = [name in logs[b] for b in USERS] + [name in decided]
            need(any(has) == all(has), f"of {name} the cut has {has}")
            need(not all(has) or inputs <= len(logs[bundle_number]), f"{name} has read more than the cut has")
            self.walk.saw("transactions in cuts", int(all(has)))
        staged = [self.bundles[b].until(places[b], STAGED) for b in USERS]
        for name in {entry[1] for entry in groups if entry[0] == "prepared"}:
            need(all(name in each for each in staged), f"{name} is prepared, but not all that it has staged is there")
            self.walk.saw("prepared in cuts", int(name not in decided))
        drawn = {entry[1] for entry in groups if entry[0] == "epoch"}
        for under in {entry[1] for each in staged for entry in each if entry[0] == "under"}:
            need(under in drawn, f"something is staged under epoch {under}, which a copy of the cut draws again")
            self.walk.saw("epochs in cuts")
        ahead = sum(entry[0] == "offset" and entry[1] > len(logs[1]) for entry in groups)
        self.walk.saw("offsets clamped", ahead)
        need(not (ahead and self.breaks("offsets-not-clamped")), "a group is ahead of the cut's data")
        catalog = self.bundles[0].until(places[0], CATALOG)
        known = {topic for word, topic in catalog if word == "create"}
        for b in USERS:
            for part, _ in self.bundles[b].history[: places[b]]:
                topic = topic_of(part)
                need(
                    not topic.startswith("x") or topic in known,
                    f"the cut has records of {topic}, which it does not know",
                )


def living(catalog: list[Any]) -> list[str]:
    lives: dict[str, None] = {}
    for word, topic in catalog:
        if word == "create":
            lives[topic] = None
        elif word == "remove":
            lives.pop(topic, None)
    return list(lives)
