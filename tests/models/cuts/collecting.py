"""Collectors of the model of cuts: what is pinned stays, and a file that is pinned is handed over. Each may sleep
between its look and its deletion. And the end of pins.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from tests.models.cuts.bundles import parts_of, whole_files_below
from tests.models.cuts.state import BUNDLES, FOR_EVER, KEYED_BUNDLE, Checkpoint, File, State, topic_of
from tests.models.cuts.world import World
from tests.models.walk import Process


@dataclass(slots=True)
class Pinned:
    """What the pins of one checkpoint keep."""

    checkpoints: set[int] = field(default_factory=set)
    slots: list[tuple[int, int]] = field(default_factory=list)
    files: set[File] = field(default_factory=set)
    versions: set[int] = field(default_factory=set)
    keeps_all_versions: bool = False


def pinned_by(world: World, bundle: int, pins: frozenset[tuple[str, int]]) -> Pinned:
    found = Pinned()
    for name, number in pins:
        cut, base = world.cuts[name], world.checkpoint(bundle, number)
        is_taken = cut.state is State.TAKEN
        found.checkpoints.add(number)
        found.slots.append((base.planned + 1, cut.places[bundle] if is_taken else FOR_EVER))
        found.files |= base.named()
        if is_taken and not world.breaks("pins-of-its-own-bundle-only"):
            found.files |= {
                file
                for other in BUNDLES
                if other != bundle
                for file in world.bundles[other].checkpoints.get(cut.bases[other], Checkpoint()).named()
            }
        found.versions.add(cut.version)
        found.keeps_all_versions |= not is_taken
    return found


def collect(world: World) -> Process:
    number = world.random.choice(BUNDLES)
    bundle, early = world.bundles[number], world.bundles[number].newest.pins
    yield
    base = bundle.newest
    pins = early if world.breaks("pins-read-before-the-checkpoint") else base.pins
    pinned = pinned_by(world, number, pins)
    jobs: list[tuple[MutableMapping[int, Any], int]] = [
        (bundle.slots, slot)
        for slot in sorted(bundle.slots)
        if slot <= base.planned
        and (world.breaks("pinned-slots-deleted") or not any(a <= slot <= z for a, z in pinned.slots))
    ]
    jobs += [
        (bundle.checkpoints, old)
        for old in sorted(bundle.checkpoints)
        if old < base.number and (world.breaks("base-checkpoint-deleted") or old not in pinned.checkpoints)
    ]
    for things, key in jobs:
        yield
        things.pop(key, None)
    for part in parts_of(base):
        for file in whole_files_below(base, part):
            yield from _delete(world, file, pinned, is_removed=topic_of(part) in base.removed)


def _delete(world: World, file: File, pinned: Pinned, *, is_removed: bool) -> Process:
    is_pinned = file in pinned.files and not world.breaks("pinned-files-deleted")
    if world.breaks("removal-ignores-pins") and is_removed:
        is_pinned = False
    if is_pinned and world.breaks("pinned-file-left-out"):
        return
    data = world.files.get(file.key)
    if data is None:
        return
    steps = ("delete", "keep") if world.breaks("handed-over-too-late") else ("keep", "delete")
    for step in steps:
        yield
        if step == "delete":
            world.files.pop(file.key, None)
        elif is_pinned:
            world.held[file.key] = data
            world.walk.saw("files handed over")


def collect_versions(world: World) -> Process:
    """Versions that were replaced, and files that none names."""
    listed, newest = sorted(world.keyed), max(world.versions)
    yield
    base = world.bundles[KEYED_BUNDLE].newest
    pinned = pinned_by(world, KEYED_BUNDLE, base.pins)
    if pinned.keeps_all_versions:
        return
    kept = set() if world.breaks("pinned-version-deleted") else pinned.versions
    for number in [number for number in world.versions if number < newest and number not in kept]:
        yield
        world.versions.pop(number, None)
    named = {key for version in world.versions.values() for key in version.files}
    for key in [key for key in listed if key not in named]:
        yield
        world.keyed.pop(key, None)


def collect_held(world: World) -> Process:
    """Files that were handed over, and that no bundle's pins name any longer: listed first, pins read then."""
    listed = sorted(world.held)
    named: set[str] = set()
    for number in BUNDLES:
        yield
        pinned = pinned_by(world, number, world.bundles[number].newest.pins)
        named |= {file.key for file in pinned.files}
    for key in listed:
        if key not in named:
            yield
            world.held.pop(key, None)
            world.walk.saw("held files collected")


def unpin(world: World) -> Process:
    over = (State.OVER, State.PENDING) if world.breaks("pending-pin-collected") else (State.OVER,)
    for number in BUNDLES:
        base = world.bundles[number].newest
        yield
        left = frozenset(pin for pin in base.pins if world.cuts[pin[0]].state not in over)
        if left != base.pins:
            world.put(number, base, pins=left)
