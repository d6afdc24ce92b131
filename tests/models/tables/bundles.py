"""What happens to the lists of bundles in the model of tables: rounds, retention, merges, deletion,
moves, and what the controller does to the topic and its table.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.models.tables.state import FORMATS, Checkpoint, File, Generation, Part, Range
from tests.models.tables.world import World
from tests.models.walk import Process

NOTHING_HELD = 1 << 40


def make_files(world: World, bundle: int) -> Process:
    """A round: one new file of a partition, listed by the next checkpoint."""
    while True:
        yield
        seen = world.checkpoints[bundle].copy()
        yield
        for partition, part in seen.parts.items():
            if _rests(world, bundle, partition, part) or world.is_removed or world.walk.chance(0.6):
                continue
            new = seen.copy()
            changed = new.parts[partition]
            made = (changed.end, changed.end + world.walk.random.randrange(1, 4))
            if not (changed.small or changed.merged) and changed.start > changed.end:
                made = (changed.start, changed.start + 2)
            changed.small.append(made)
            changed.end = made[1]
            if world.put(bundle, seen, new):
                world.stored.add(File(part.topic, partition, "small", *made))
            break


def _rests(world: World, bundle: int, partition: int, part: Part) -> bool:
    is_moving = bool(part.frozen) or world.sealed.get(partition) == bundle
    return is_moving or (world.is_calm and world.is_still)


def raise_starts(world: World, bundle: int) -> Process:
    """Retention: the log start of a partition rises."""

    def rise(new: Checkpoint) -> bool:
        for partition, part in new.parts.items():
            if part.small and not _rests(world, bundle, partition, part):
                part.start = min(part.end, part.start + world.walk.random.randrange(7))
                return True
        return False

    while True:
        yield world.walk.random.randrange(200)
        yield from world.change(bundle, rise)


def merge(world: World, bundle: int) -> Process:
    """List a merged file of consecutive small ones, which stay. How that is done safely is tests/models/merges."""
    while True:
        yield world.walk.random.randrange(250)
        seen = world.checkpoints[bundle].copy()
        yield
        for partition, part in seen.parts.items():
            is_lost = partition in world.lost_lists
            waits = is_lost and any(found[0] >= part.front for found in part.merged)
            if waits and not world.breaks("begun-anew-beside-named-files"):
                continue
            at = part.merged[-1][1] if part.merged and not is_lost else None
            run = [found for found in part.small if found[0] >= max(part.start, at or 0)]
            run = run[: world.walk.random.randrange(2, 6)]
            is_moving = part.frozen or world.sealed.get(partition) == bundle
            if is_moving or len(run) < 2:
                continue
            if any(File(part.topic, partition, "small", *found) not in world.stored for found in run):
                continue
            merged = (run[0][0], run[-1][1])
            new = seen.copy()
            new.parts[partition].merged = [*(() if is_lost else part.merged), merged]
            if world.put(bundle, seen, new):
                world.stored.add(File(part.topic, partition, "merged", *merged))
                world.walk.saw("merges")
                if is_lost:
                    _begin_anew(world, partition, part)
            break


def _begin_anew(world: World, partition: int, part: Part) -> None:
    """What only the lost list had is garbage now."""
    world.lost_lists.discard(partition)
    world.walk.saw("lists begun anew")
    for found in part.merged:
        world.delete(File(part.topic, partition, "merged", *found))


def delete(world: World, bundle: int) -> Process:
    """Delete the files that the gates let go, and let the list go of them after that."""
    while True:
        yield
        seen = world.checkpoints[bundle].copy()
        yield
        for partition, part in seen.parts.items():
            if not part.frozen and world.sealed.get(partition) != bundle:
                yield from _delete_below(world, bundle, partition, seen)


def _delete_below(world: World, bundle: int, partition: int, seen: Checkpoint) -> Process:
    part = seen.parts[partition]
    may_go = _may_go(world, part, seen.is_set)
    for kind, found in sorted(may_go, key=lambda file: (file[0] == "merged", file[1])):
        now = world.checkpoints[bundle]
        yield  # looked once more; the deletion may come much later
        still = now.parts.get(partition)
        if still is None or still.topic != part.topic or still.frozen or now.generation != seen.generation:
            return
        if world.sealed.get(partition) == bundle:
            return
        world.delete(File(part.topic, partition, kind, *found))

    def let_go(new: Checkpoint) -> bool:
        listed = new.parts.get(partition)
        if listed is None or listed.topic != part.topic or listed.frozen:
            return False
        listed.small = [found for found in listed.small if ("small", found) not in may_go]
        listed.merged = [found for found in listed.merged if ("merged", found) not in may_go]
        return True

    if may_go:
        yield from world.change(bundle, let_go)


def _may_go(world: World, part: Part, is_set: bool) -> set[tuple[str, Range]]:
    """Small files go below the log start and the gates; a merged one when the first of its small files has gone."""
    forms = ("one",) if world.breaks("one-gate-for-two-formats") else FORMATS
    gate = NOTHING_HELD
    if is_set and not world.breaks("no-gate"):
        gate = min(part.gate.get(form, 0) for form in forms)
    below = min(part.start, gate)
    found = {("small", small) for small in part.small if small[1] <= below}
    return found | {("merged", merged) for merged in part.merged if merged[0] < part.front}


def move(world: World) -> Process:
    """Move partition 0 to the other bundle: seal, freeze, take over, forget."""
    while True:
        yield world.walk.random.randrange(1000)
        if world.is_calm and world.is_still:
            return
        source, topic = world.home[0], world.topic
        if world.is_removed or 0 not in world.checkpoints[source].parts:
            continue
        world.sealed[0] = source
        world.moves += 1
        freeze, take, forget = _steps(world, topic, source, world.moves)
        if (yield from world.change(source, freeze)) and (yield from world.change(1 - source, take)):
            world.home[0] = 1 - source
            world.walk.saw("moves")
            yield from world.change(source, forget)
        world.sealed.pop(0, None)


def _steps(world: World, topic: int, source: int, number: int) -> tuple[Callable[[Checkpoint], bool], ...]:
    def lives() -> bool:
        return topic == world.topic and not world.is_removed

    def freeze(new: Checkpoint) -> bool:
        if not lives() or 0 not in new.parts or new.parts[0].topic != topic:
            return False
        new.parts[0].frozen = number
        return True

    def take(new: Checkpoint) -> bool:
        left = world.checkpoints[source].parts.get(0)
        if not lives() or left is None or left.frozen != number:
            return False
        new.parts[0] = left.copy()
        new.parts[0].frozen = 0
        new.moved_to.pop(0, None)
        return True

    def forget(new: Checkpoint) -> bool:
        new.parts.pop(0, None)
        new.moved_to[0] = 1 - source
        return lives()

    return freeze, take, forget


def control(world: World) -> Process:
    """Rebuild the table, unset it and set it again, delete the topic and create it again. Each is in
    every bundle's checkpoint before it counts.
    """
    yield from _record(world, world.generation, True)
    while True:
        yield world.walk.random.randrange(3000)
        if world.is_calm:
            return
        chosen = world.walk.random.random()
        if chosen < 0.3:
            world.setting += 1
            yield from _record(world, world.generation, True)
            world.walk.saw("rebuilds")
        elif chosen < 0.6:
            world.is_set = False
            yield from _record(world, world.generation, False)
            yield world.walk.random.randrange(1000)
            world.setting += 1
            world.promised_from, world.is_set = world.setting, True
            yield from _record(world, world.generation, True)
            world.walk.saw("tables set again")
        elif 0 not in world.sealed:
            yield from _recreate(world)


def _record(world: World, generation: Generation, is_set: bool) -> Process:
    def record(new: Checkpoint) -> bool:
        new.generation, new.is_set = generation, is_set
        return True

    for bundle in (0, 1):
        yield world.walk.random.choice((0, 0, 600))
        yield from world.change(bundle, record)


def _recreate(world: World) -> Process:
    def forget(new: Checkpoint) -> bool:
        new.parts, new.moved_to = {}, {}
        return True

    world.is_removed = True
    for bundle in (0, 1):
        yield world.walk.random.choice((0, 0, 600))
        yield from world.change(bundle, forget)
    for file in sorted(file for file in world.stored if file.topic == world.topic):
        world.stored.discard(file)
        yield
    if world.breaks("log-deleted-with-its-topic"):
        world.tables[0].begin_again(world.now)
    world.topic += 1
    world.setting += 1
    world.promised_from = world.setting
    world.home, world.log_start = {0: 0, 1: 1}, {0: 0, 1: 0}
    world.sealed.clear()
    for bundle in (0, 1):
        yield world.walk.random.choice((0, 0, 600))
        yield from world.change(bundle, _creation(world, bundle))
    world.is_removed = False
    world.walk.saw("topics created again")


def _creation(world: World, bundle: int) -> Callable[[Checkpoint], bool]:
    def create(new: Checkpoint) -> bool:
        new.parts = {bundle: Part(world.topic)}
        new.generation, new.is_set = world.generation, True
        return True

    return create
