"""What goes on in each root of the model of branches: records, rounds, retention, a removed topic, moves."""

from __future__ import annotations

from dataclasses import replace

from tests.models.branches.state import BUNDLES, MARK, MOVES, REGISTRY, REMOVABLE, Checkpoint, File, Root
from tests.models.branches.world import World
from tests.models.walk import Process

MOVES_WAITS = 400


def some_root(world: World) -> Root:
    """Newer ones more often."""
    return world.random.choice(world.roots[-world.random.randrange(1, 7) :])


def produce(world: World) -> Process:
    root = some_root(world)
    for _ in range(world.random.randrange(1, 4)):
        part = world.random.choice(("t1", "t2", REMOVABLE, MOVES))
        if not root.alive or (part == MOVES and root.moving) or (part == REMOVABLE and root.removed):
            return
        value = world.new(f"{root.name}-")
        if part == MOVES:
            world.append(root, root.home, part, (len(root.log(part)), value))
        else:
            world.append(root, 1 if part == "t1" else 2, part, value)
        yield


def compact(world: World) -> Process:
    root, bundle = some_root(world), world.random.choice(BUNDLES)
    planned = world.checkpoint(root, bundle).planned
    if root.alive and planned < root.ends[bundle]:
        yield from round_up_to(world, root, bundle, world.random.randint(planned + 1, root.ends[bundle]))


def round_up_to(world: World, root: Root, bundle: int, upto: int) -> Process:
    """One round: its files appear at once, with the checkpoint that names them (the rest: tests/models/parquet.py)."""
    base = world.checkpoint(root, bundle)
    rows: dict[str, list[object]] = {}
    for slot in range(base.planned + 1, upto + 1):
        part, value = world.slot(root, bundle, slot)
        if part != MARK:
            rows.setdefault(part, []).append(value)
    made = [_file_of(root, base, part, values) for part, values in rows.items()]
    yield
    if not root.alive or world.checkpoint(root, bundle) != base or upto <= base.planned:
        return
    root.files |= {file.key: rows[file.part] for file in made}
    listed = base.files
    if world.breaks("origin-lost-in-a-round"):
        listed = tuple(replace(file, origin=root.name) for file in listed)
    pins = base.pins
    world.put(root, bundle, base, planned=upto, files=(*listed, *made), pins=pins)


def _file_of(root: Root, base: Checkpoint, part: str, values: list[object]) -> File:
    head = values[0]
    first = max((file.last + 1 for file in base.files if file.part == part), default=0)
    if part == MOVES and isinstance(head, tuple):
        first = head[0]
    last = first + len(values) - 1
    return File(part, first, last, root.name, f"{part}/{first}-{last}")


def retain(world: World) -> Process:
    """Move a log start by one file; take in that the topic is removed."""
    root, bundle = some_root(world), world.random.choice(BUNDLES[1:])
    base = world.checkpoint(root, bundle)
    parts = [part for part in ("t1", "t2", REMOVABLE, MOVES) if any(file.part == part for file in base.files)]
    yield
    if not root.alive or not parts:
        return
    part = world.random.choice(parts)
    if part == MOVES and (root.moving or root.home != bundle):
        return
    old = [file.last + 1 for file in base.files if file.part == part and file.last >= base.start(part)]
    starts = dict(base.starts) | ({part: old[0]} if old else {})
    world.put(root, bundle, base, starts=tuple(sorted(starts.items())), removed=root.removed)


def remove_topic(world: World) -> Process:
    root = some_root(world)
    yield
    if root.alive and not root.removed:
        root.removed = True
        world.append(root, 0, REGISTRY, "removed")
        world.walk.saw("topics removed")


def move_partition(world: World) -> Process:
    """Seal it in one bundle, open it in the other with the list of its files, and take it off the first one's list."""
    root = some_root(world)
    yield
    if not root.alive or world.is_busy(root):
        return
    root.moving, source = True, root.home
    target = 3 - source
    world.append(root, 0, REGISTRY, "move")
    yield
    world.append(root, source, MARK, "seal")
    sealed = root.ends[source]
    while root.lives() and (base := world.checkpoint(root, source)).planned < sealed:
        yield from round_up_to(world, root, source, root.ends[source])
    while root.lives():
        yield
        listed = tuple(file for file in base.files if file.part == MOVES)
        if world.breaks("origin-lost-in-a-move"):
            listed = tuple(replace(file, origin=root.name) for file in listed)
        newest = world.checkpoint(root, target)
        starts = dict(newest.starts) | {MOVES: base.start(MOVES)}
        if world.put(root, target, newest, files=newest.files + listed, starts=tuple(sorted(starts.items()))):
            break
    root.home = target
    world.append(root, target, MARK, "open")
    while root.lives():
        yield
        newest = world.checkpoint(root, source)
        if world.put(root, source, newest, files=tuple(file for file in newest.files if file.part != MOVES)):
            break
    root.moving = False
    world.walk.saw("moves in branches", int(root.parent is not None))
