"""Mergers and collectors of garbage in the model of merges."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.models.merges.state import LATE, NAP, Checkpoint, Merged, Part, Small, World
from tests.models.walk import Process

RUN = (2, 3)
"""Small files that one merge takes."""


def merge(world: World) -> Process:
    while True:
        yield world.walk.random.randrange(60)
        if world.is_calm:
            return
        found = yield from world.in_charge()
        if found is None:
            continue
        bundle, seen = found
        part = seen.part
        listed = world.lists.get(part.merged, ()) if part.merged is not None else ()
        run = _choose(world, part, listed)
        if not run:
            continue
        yield NAP if world.walk.chance(0.05) else world.walk.random.randrange(5)
        if any(small not in world.small for small in run):
            continue  # retention was faster
        world.attempts += 1
        file = Merged(part.topic, run[0].first, run[-1].end, part.number + 1, world.attempts)
        world.made_of[file] = tuple(run)
        yield from _send(world, lambda file=file: world.merged.setdefault(file, world.now))
        if file not in world.merged:
            continue  # it is on its way, perhaps: nothing may name it
        yield NAP if world.walk.chance(0.1) else world.walk.random.randrange(5)
        lowest = part.front if world.breaks("merges-forget-what-is-behind") else part.first
        kept = tuple(sorted((*(each for each in listed if each.first >= lowest), file), key=lambda each: each.first))
        name = Merged(part.topic, 0, 0, part.number + 1, world.attempts)
        yield from _send(world, lambda name=name, kept=kept: world.lists.setdefault(name, kept))
        if name not in world.lists:
            continue
        yield NAP if world.walk.chance(0.1) else world.walk.random.randrange(5)
        yield from _list(world, bundle, part, name, kept)


def _choose(world: World, part: Part, listed: tuple[Merged, ...]) -> list[Small]:
    """Return the first run of neighbours that are in the range of no merged file which is there."""
    size, run = world.walk.random.randint(*RUN), list[Small]()
    for small in part.small:
        lowest = part.front if world.breaks("merged-beside-what-is-behind") else part.first
        is_taken = any(file.first <= small.first and small.end <= file.end for file in listed if file.first >= lowest)
        if is_taken:
            run = []
        elif world.breaks("merged-over-a-gap") and run and world.walk.chance(0.3):
            continue
        else:
            run.append(small)
        if len(run) == size:
            return run
    return []


def _send(world: World, put: Callable[[], object]) -> Process:
    """A put: it lands, or it lands later and the process does not learn of it, or never."""
    chosen = world.walk.random.random()
    if chosen < 0.9 or world.is_calm:
        put()
    elif chosen < 0.97:
        world.late.append((world.now + world.walk.random.randrange(LATE), put))
        world.walk.saw("late puts")
    yield


def _list(world: World, bundle: int, part: Part, name: Merged, files: tuple[Merged, ...]) -> Process:
    """Put the checkpoint that names the list of these files, made from the newest one."""
    file = next(each for each in files if each.number == name.number)

    def edit(new: Checkpoint) -> bool:
        left = world.breaks("merged-by-the-bundle-it-left")
        if new.part is None and left and new.moved:
            other = world.checkpoints[1 - bundle].part
            if other is not None and other.topic == part.topic and not other.frozen:
                other.number, other.merged = name.number, name
                return False
        if new.part is None or (new.part.frozen and not world.breaks("merged-into-a-frozen-list")):
            return False
        if new.part.topic != part.topic and not world.breaks("merged-by-name"):
            return False
        if new.part.number != part.number and not world.breaks("listed-whatever-came-between"):
            return False
        if new.part.front > file.first:
            return False  # it would stand for nothing
        new.part.number, new.part.merged, new.part.first = name.number, name, files[0].first
        return True

    while True:
        yield
        seen = world.checkpoints[bundle].copy()
        yield NAP if world.walk.chance(0.02) else 0
        new = seen.copy()
        if not edit(new):
            return
        chosen = world.walk.random.random()
        if chosen < 0.1 and not world.is_calm:  # the outcome is unknown: it lands later, or never
            if chosen < 0.05:
                at = world.now + world.walk.random.randrange(20)
                world.late.append((at, partial(world.put, bundle, seen, new)))
            if world.breaks("cleaned-up-after-an-unknown-outcome"):
                yield 5
                world.merged.pop(file, None)
                world.check()
            return
        if world.put(bundle, seen, new):
            world.walk.saw("merges")
            return


def collect(world: World) -> Process:
    """Delete merged files and lists that nothing needs: listed first, then judged by the bundle in charge."""
    while world.has_collector:
        yield world.walk.random.randrange(80)
        listed = [*sorted(world.merged), *sorted(world.lists)]
        yield
        found = yield from world.in_charge()
        if world.breaks("collected-by-the-bundle-it-left"):
            bundle = world.walk.random.randrange(2)
            found = bundle, world.checkpoints[bundle].copy()
        for key in listed:
            if key.topic < world.topic or (key.topic == world.topic and world.is_removed):
                _drop(world, key)
                continue
            if found is None:
                continue
            part = found[1].part or Part(key.topic, number=1 << 30)
            if part.topic != key.topic:
                continue
            yield NAP if world.walk.chance(0.01) else 0
            if _is_garbage(world, key, part):
                _drop(world, key)
                world.walk.saw("collected")


def remove_behind(world: World, bundle: int) -> Process:
    """What a broker does after a round: it deletes the files of the list that begin behind the front, and notes it."""
    part = world.checkpoints[bundle].copy().part
    if part is None or part.frozen or part.merged is None or part.first >= part.front:
        return
    yield
    listed = world.lists.get(part.merged, ())
    if world.breaks("merged-outlives-its-files") or not listed:
        return
    for file in listed:
        if part.first <= file.first < part.front:
            yield
            _drop(world, file)
    first = min((file.first for file in listed if file.first >= part.front), default=part.end)

    def note(new: Checkpoint) -> bool:
        if new.part is None or new.part.frozen or new.part.topic != part.topic or new.part.first >= first:
            return False
        if new.part.merged != part.merged and not world.breaks("noted-for-another-list"):
            return False
        new.part.first = first
        return True

    yield NAP if world.walk.chance(0.3) else 0
    yield from world.change(bundle, note)


def _is_garbage(world: World, key: Merged, part: Part) -> bool:
    is_passed = key.number <= part.number or world.breaks("collected-while-on-its-way")
    if key.first == key.end:
        return is_passed and key != part.merged
    if world.breaks("collected-by-age") and world.now - world.merged.get(key, world.now) > NAP // 2:
        is_passed = True
    if key.first < part.front and not world.breaks("merged-outlives-its-files"):
        return True
    named = world.lists.get(part.merged, ()) if part.merged is not None else ()
    if part.merged is not None and part.merged not in world.lists:
        return False  # a newer checkpoint has another list
    return is_passed and key not in named


def _drop(world: World, key: Merged) -> None:
    world.merged.pop(key, None)
    world.lists.pop(key, None)
    world.check()
