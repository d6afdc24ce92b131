"""What happens to small files in the model of merges: rounds, retention, moves, and a topic that is created again."""

from __future__ import annotations

from dataclasses import replace

from tests.models.merges.merging import remove_behind
from tests.models.merges.state import Checkpoint, Part, Small, World
from tests.models.walk import Process


def make_files(world: World) -> Process:
    while True:
        yield world.walk.random.randrange(20)
        found = yield from world.in_charge()
        if found is None or world.is_removed or world.is_calm:
            continue
        bundle, seen = found
        new = seen.copy()
        assert new.part is not None
        if new.part.topic != world.topic:
            continue
        begin = new.part.end if new.part.small else max(new.part.end, new.part.start)
        made = Small(new.part.topic, begin, begin + world.walk.random.randrange(1, 4))
        if not new.part.small:
            new.part.front = begin
        new.part.small += (made,)
        new.part.end = made.end
        if made in world.small or world.checkpoints[bundle].number != seen.number:
            continue
        world.small.add(made)
        world.put(bundle, seen, new)


def expire(world: World) -> Process:
    """Retention: the log start rises, small files go from the front and off the list, then what was merged of them."""
    while True:
        yield world.walk.random.randrange(150)
        found = yield from world.in_charge()
        if found is None or world.is_removed:
            continue
        bundle, seen = found
        topic = seen.part.topic

        def rise(new: Checkpoint, topic: int = topic) -> bool:
            if new.part is None or new.part.frozen or new.part.topic != topic or world.is_calm:
                return False
            new.part.start = min(new.part.end, new.part.start + world.walk.random.randrange(5))
            return True

        yield from world.change(bundle, rise)
        yield from _expire_files(world, bundle)
        if world.walk.chance(0.7):
            yield from remove_behind(world, bundle)


def _expire_files(world: World, bundle: int) -> Process:
    seen = world.checkpoints[bundle].copy()
    gone = 0
    for small in seen.part.small if seen.part is not None and not seen.part.frozen else ():
        now = world.checkpoints[bundle]
        if small.end > seen.part.start or now.part is None or now.part.frozen or now.part.topic != small.topic:
            break
        pins = [base for checkpoint in world.checkpoints for base in checkpoint.pins.values()]
        if any(small in base.small and base.start < small.end for base in pins):
            world.held.add(small)
        world.small.discard(small)
        world.walk.saw("small files deleted")
        gone = small.end
        yield
    topic = seen.part.topic if seen.part is not None else 0

    def let_go(new: Checkpoint) -> bool:
        if new.part is None or new.part.frozen or new.part.topic != topic or new.part.front >= gone:
            return False
        new.part.small = tuple(small for small in new.part.small if small.end > gone)
        new.part.front = gone
        return True

    if gone:
        yield from world.change(bundle, let_go)


def move(world: World) -> Process:
    while True:
        yield world.walk.random.randrange(500)
        if world.is_calm:
            return
        source = 0 if world.checkpoints[0].part is not None else 1
        topic = world.topic
        world.moves += 1
        number = world.moves

        def freeze(new: Checkpoint, topic: int = topic, number: int = number) -> bool:
            if world.is_removed or new.part is None or new.part.topic != topic or new.part.frozen:
                return False
            new.part.frozen = number
            return True

        def take(new: Checkpoint, source: int = source, topic: int = topic, number: int = number) -> bool:
            left = world.checkpoints[source].part
            if world.is_removed or left is None or left.topic != topic or left.frozen != number or new.part is not None:
                return False
            new.part, new.moved = replace(left, frozen=0), False
            if world.breaks("numbers-begin-again-at-a-move"):
                new.part.number, new.part.merged = 0, None
            return True

        def forget(new: Checkpoint, number: int = number) -> bool:
            if new.part is None or new.part.frozen != number:
                return False
            new.part, new.moved = None, True
            return True

        if (yield from world.change(source, freeze)) and (yield from world.change(1 - source, take)):
            world.walk.saw("moves")
            yield from world.change(source, forget)


def recreate(world: World) -> Process:
    """Delete the topic and create it again: its small files go at once, merged ones are garbage."""
    while True:
        yield world.walk.random.randrange(2500)
        if world.is_calm:
            return
        world.is_removed = True
        old = world.topic

        def forget(new: Checkpoint) -> bool:
            new.part, new.moved = None, False
            return True

        for bundle in (0, 1):
            yield from world.change(bundle, forget)
        for small in sorted(small for small in world.small if small.topic == old):
            world.small.discard(small)
            yield
        world.topic += 1

        def create(new: Checkpoint) -> bool:
            new.part, new.moved = Part(world.topic), False
            return True

        def stay_away(new: Checkpoint) -> bool:
            new.part, new.moved = None, True
            return True

        yield from world.change(1, stay_away)
        yield from world.change(0, create)
        world.is_removed = False
        world.walk.saw("topics created again")
