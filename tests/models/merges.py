"""Model of merges: small Parquet files of a partition get a merged file beside the log.

A merge reads the list of small files in the newest checkpoint of the bundle in charge, puts one merged
file, then a list of merged files, and then a checkpoint that names the list, if no other merge came
between. Small files stay until retention takes them from the front. A merged file stands for all small
ones of its range, and goes when the first of them has gone. Merged files of a topic that is gone, and
those that no merge can list any longer, are garbage. A cut names small files alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from tests.models.walk import Model, Process, Violation, Walk

STEPS = 5000
STEPS_AT_REST = 2500
NAP, LATE = 400, 300
RUN = (2, 3)
"""Small files that one merge takes."""

RULES = {
    "listed-whatever-came-between": "a merge is listed only if no other merge of the partition was since it was begun",
    "collected-while-on-its-way": "what is put for the next merge stays, because a merge may list it yet",
    "collected-by-age": "age alone says nothing: a merge that slept longer lists what is gone",
    "cleaned-up-after-an-unknown-outcome": "what a merge has put stays when the outcome of its checkpoint is unknown",
    "merged-outlives-its-files": "a merged file goes with the first of the small files that it stands for",
    "used-behind-the-front": "a reader takes a merged file only if all its small files are listed",
    "merged-into-a-frozen-list": "the list of a partition that has left does not change",
    "merged-by-the-bundle-it-left": "only the bundle in charge lists a merged file",
    "numbers-begin-again-at-a-move": "the number of the newest merge goes over with the list",
    "collected-by-the-bundle-it-left": "garbage is judged by the list of the bundle in charge",
    "merged-by-name": "a topic that is created again is another one: its id is in each name",
    "merged-over-a-gap": "a merge takes neighbours",
    "a-missing-merged-file-is-damage": "where a merged file is gone, the small ones are read",
    "cuts-read-merged-files": "a reader of a cut takes small files alone",
    "files-of-a-cut-go-with-their-merge": "small files go by the rules of retention alone, merged or not",
}


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
            if part is None:
                raise Violation(f"{file} stays, its topic is gone")
            if file.first < part.front:
                raise Violation(f"{file} stays, but records of it were deleted: the front is {part.front}")
            listed = self.lists[part.merged] if part.merged is not None else ()
            if file not in listed and file.number <= part.number:
                raise Violation(f"{file} stays, though nothing can list it")


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
    """Retention: the log start rises, small files go from the front, then the list and what was merged."""
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
        lowest = part.front if not world.breaks("used-behind-the-front") else 0
        kept = tuple(sorted((*(each for each in listed if each.first >= lowest), file), key=lambda each: each.first))
        name = Merged(part.topic, 0, 0, part.number + 1, world.attempts)
        yield from _send(world, lambda name=name, kept=kept: world.lists.setdefault(name, kept))
        if name not in world.lists:
            continue
        yield NAP if world.walk.chance(0.1) else world.walk.random.randrange(5)
        yield from _list(world, bundle, part, name, file)


def _choose(world: World, part: Part, listed: tuple[Merged, ...]) -> list[Small]:
    """Return the first run of neighbours that no merged file stands for."""
    size, run = world.walk.random.randint(*RUN), list[Small]()
    for small in part.small:
        stands = any(file.first <= small.first and small.end <= file.end for file in listed if file.first >= part.front)
        if stands:
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


def _list(world: World, bundle: int, part: Part, name: Merged, file: Merged) -> Process:
    """Put the checkpoint that names the list, made from the newest one."""

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
        new.part.number, new.part.merged = name.number, name
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
    while True:
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
                if file.first <= offset < file.end
                and (file.first >= part.front or world.breaks("used-behind-the-front"))
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


def delete_merged_small(world: World) -> Process:
    """Without its rule: small files of the middle go once they are merged."""
    while True:
        yield world.walk.random.randrange(100)
        found = yield from world.in_charge()
        if found is None or not world.breaks("files-of-a-cut-go-with-their-merge"):
            continue
        part = found[1].part
        for file in world.lists.get(part.merged, ()) if part.merged is not None else ():
            for small in part.small:
                if file.first <= small.first and small.end <= file.end:
                    world.small.discard(small)


def run(walk: Walk) -> None:
    world = World(walk)
    roles = (make_files, expire, merge, merge, collect, move, recreate, read, read, cut, delete_merged_small)
    due = [(0, number, role(world)) for number, role in enumerate(roles)]
    for step in range(STEPS + STEPS_AT_REST):
        world.is_calm = step >= STEPS
        at = min(range(len(due)), key=lambda at: (due[at][0], due[at][1]))
        _, number, process = due[at]
        world.now = max(world.now, due[at][0])
        for sent in [sent for sent in world.late if sent[0] <= world.now]:
            world.late.remove(sent)
            sent[1]()
        try:
            pause = next(process) or 0
        except StopIteration:
            due.pop(at)
            continue
        due[at] = (world.now + 1 + pause + walk.random.randrange(3), number, process)
    world.check_end()


MERGES = Model(
    "merges",
    run,
    RULES,
    (
        "merges",
        "moves",
        "topics created again",
        "small files deleted",
        "collected",
        "late puts",
        "reads of merged files",
        "reads of small files",
        "reads of cuts",
    ),
)
