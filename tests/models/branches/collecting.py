"""Collectors of the model of branches. Each may sleep between its look and its deletion; of a dropped root they delete
all that no pin keeps.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from tests.models.branches.rounds import some_root
from tests.models.branches.state import BUNDLES, FOR_EVER, LIVE, Checkpoint, File, Root, State
from tests.models.branches.world import World
from tests.models.walk import Process, need


def pinned_files(world: World, root: Root, bundle: int, base: Checkpoint) -> set[File]:
    """The files that pins of one bundle keep: those of the base there, and of a taken cut those of every bundle."""
    found: set[File] = set()
    for cut, number in base.pins:
        found |= world.checkpoint(root, bundle, number).named()
        if world.records(root)[cut].state is State.TAKEN:
            for other in BUNDLES:
                found |= world.checkpoint(root, other, world.placed(root, cut).bases[other]).named()
    return found


def collect(world: World) -> Process:
    yield from collect_in(world, some_root(world), world.random.choice(BUNDLES))


def collect_in(world: World, root: Root, bundle: int) -> Process:
    alive, newest = root.alive, world.checkpoint(root, bundle)
    records = world.records(root)
    need(all(cut in records for cut, _ in newest.pins), f"{root.name} has a pin of another root")
    bases = [(cut, world.checkpoint(root, bundle, number)) for cut, number in newest.pins]
    ranges = [
        (base.planned + 1, world.placed(root, cut).places[bundle] if records[cut].state is State.TAKEN else FOR_EVER)
        for cut, base in bases
    ]
    pinned = pinned_files(world, root, bundle, newest)
    jobs: list[tuple[MutableMapping[int, Any], int]] = [
        (root.slots[bundle], slot)
        for slot in sorted(root.slots[bundle])
        if (slot <= newest.planned or not alive) and not any(first <= slot <= last for first, last in ranges)
    ]
    kept = {base.number for _, base in bases}
    numbers = sorted(root.checkpoints[bundle])
    jobs += [(root.checkpoints[bundle], n) for n in numbers if n < newest.number and n not in kept]
    yield
    for things, key in jobs:
        yield
        things.pop(key, None)
    live = newest.named() if alive and (root.alive or not world.breaks("drop-seen-after-the-pins")) else set()
    for file in newest.files:
        if file not in live:
            yield from _delete_file(world, root, file, is_pinned=file in pinned)


def _delete_file(world: World, root: Root, file: File, *, is_pinned: bool) -> Process:
    if file.origin != root.name and not world.breaks("branch-deletes-in-its-parent"):
        return
    origin = world.by_name[file.origin]
    rows = origin.files.get(file.key)
    if rows is not None:
        yield
        if is_pinned:
            root.held[file.key] = rows
            world.walk.saw("files handed over")
        yield
        origin.files.pop(file.key, None)


def collect_held(world: World) -> Process:
    """What is held goes when no pin of any bundle names it. The names are read first, then the pins."""
    root = some_root(world)
    keys = sorted(root.held)
    yield
    named = {file for b in BUNDLES for file in pinned_files(world, root, b, world.checkpoint(root, b))}
    for key in keys:
        if not any(file.origin == root.name and file.key == key for file in named):
            yield
            root.held.pop(key, None)


def unpin(world: World) -> Process:
    root = some_root(world)
    for bundle in BUNDLES:
        base = world.checkpoint(root, bundle)
        yield
        records = world.records(root)
        left = frozenset(pin for pin in base.pins if pin[0] not in records or records[pin[0]].state in LIVE)
        if left != base.pins:
            world.put(root, bundle, base, pins=left)
