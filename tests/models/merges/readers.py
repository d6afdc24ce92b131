"""Readers and cuts in the model of merges."""

from __future__ import annotations

from dataclasses import replace

from tests.models.merges.state import NAP, Checkpoint, Part, World
from tests.models.walk import Process, Violation


def read(world: World) -> Process:
    """A reader goes on with the checkpoint that it has until something is missing."""
    seen, bundle = None, 0
    while True:
        if seen is None or seen.part is None or world.walk.chance(0.2):
            found = yield from world.in_charge()
            if found is None:
                yield
                continue
            bundle, seen = found
        yield NAP if world.walk.chance(0.02) else world.walk.random.randrange(10)
        part = seen.part
        if not part.small:
            seen = None
            continue
        offset = world.walk.random.randrange(part.small[0].first, part.end)
        file = next(
            (
                file
                for file in (world.lists.get(part.merged, ()) if part.merged is not None else ())
                if part.front <= file.first <= offset < file.end
            ),
            None,
        )
        if file is not None and file in world.merged:
            if file.topic != part.topic:
                raise Violation(f"a reader of topic {part.topic} gets rows of {file}")
            if not any(small.first <= offset < small.end for small in world.made_of[file]):
                raise Violation(f"{file} lacks offset {offset}")
            world.walk.saw("reads of merged files")
            continue
        if file is not None and world.breaks("a-missing-merged-file-is-damage"):
            raise Violation(f"a reader finds {file} missing")
        small = next(small for small in part.small if small.first <= offset < small.end)
        yield
        if small in world.small:
            world.walk.saw("reads of small files")
        elif world.checkpoints[bundle].number == seen.number and part.front <= offset >= part.start:
            raise Violation(f"a reader finds {small} missing")
        else:
            seen = None


def cut(world: World) -> Process:
    """Pin what a checkpoint names, read it some time later, and let it go."""
    while True:
        yield world.walk.random.randrange(400)
        if world.is_calm:
            return
        found = yield from world.in_charge()
        if found is None or world.is_removed:
            continue
        bundle, topic = found[0], found[1].part.topic
        world.cuts += 1
        number, base = world.cuts, list[Part]()

        def pin(new: Checkpoint, number: int = number, topic: int = topic, base: list[Part] = base) -> bool:
            if new.part is None or new.part.frozen or new.part.topic != topic or world.is_removed:
                return False
            base[:] = [replace(new.part)]
            new.pins[number] = base[0]
            return True

        if not (yield from world.change(bundle, pin)):
            continue
        for _ in range(world.walk.random.randrange(1, 5)):
            yield world.walk.random.randrange(150)
            if world.topic != topic or world.is_removed:
                break  # what a deletion does to cuts is in the model of cuts
            _read_cut(world, base[0])

        def unpin(new: Checkpoint, number: int = number) -> bool:
            return new.pins.pop(number, None) is not None

        yield from world.change(bundle, unpin)


def _read_cut(world: World, base: Part) -> None:
    for small in base.small:
        if small.end > base.start and small not in world.small and small not in world.held:
            raise Violation(f"a cut names {small}, it is gone")
    for file in world.lists.get(base.merged, ()) if world.breaks("cuts-read-merged-files") else ():
        if file.first >= base.front and file not in world.merged:
            raise Violation(f"a cut names {file}, it is gone")
    world.walk.saw("reads of cuts")
