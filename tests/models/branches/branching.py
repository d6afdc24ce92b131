"""Cuts with holders, and branches of the model: create and drop, each of which may die at any step and be repeated."""

from __future__ import annotations

from dataclasses import replace

from tests.models.branches.rounds import some_root
from tests.models.branches.state import BUNDLES, LIVE, REGISTRY, Placed, Record, Root, State
from tests.models.branches.world import World
from tests.models.walk import Process, need

ROOTS_MAX = 12
ALIVE_MAX = 4


def take(world: World) -> Process:
    """That a cut is consistent is tests/models/cuts: here its places are taken in one step."""
    yield from take_in(world, some_root(world))


def take_in(world: World, root: Root) -> Process:
    yield
    if not root.alive or world.is_busy(root):
        return
    cut = len(root.log(REGISTRY))
    world.append(root, 0, REGISTRY, Record(cut, State.PENDING))
    bases: dict[int, int] = {}
    while len(bases) < len(BUNDLES):
        bundle = len(bases)
        base = world.checkpoint(root, bundle)
        yield
        if world.put(root, bundle, base, pins=base.pins | {(cut, base.number + 1)}):
            bases[bundle] = base.number + 1
    yield
    if not root.lives() or world.records(root)[cut].state is not State.PENDING:
        return
    truth = {part: list(values) for part, values in root.truth.items()}
    root.cuts[cut] = Placed(bases, dict(root.ends), truth, root.home, root.removed)

    def taken(record: Record) -> Record | None:
        return replace(record, state=State.TAKEN) if record.state is State.PENDING else None

    if (yield from world.amend(root, cut, taken)):
        world.walk.saw("cuts")


def end_cuts(world: World) -> Process:
    """The time of a cut is over; or another controller ends an attempt."""
    root = some_root(world)

    def over(record: Record) -> Record | None:
        if record.holders and not world.breaks("dropped-with-holders"):
            return None
        return replace(record, state=State.OVER) if record.state in LIVE else None

    for cut, record in world.records(root).items():
        if record.state in LIVE and world.walk.chance(0.4):
            yield from world.amend(root, cut, over)


def hold(world: World, root: Root, cut: int, name: str) -> Process:
    """Write a holder into the record of a cut; returns False if the cut is over."""

    def held(record: Record) -> Record | None:
        if record.state is not State.TAKEN and not world.breaks("held-after-the-drop"):
            return None
        return replace(record, holders=record.holders | {name})

    return (yield from world.amend(root, cut, held))


def let_go(world: World, root: Root, cut: int, name: str) -> Process:
    def released(record: Record) -> Record | None:
        after = replace(record, holders=record.holders - {name})
        ends = not root.alive and not after.holders and not world.breaks("cut-outlives-its-root")
        return replace(after, state=State.OVER) if ends else after

    yield from world.amend(root, cut, released)


def create(world: World) -> Process:
    root = some_root(world)
    branches = [each for each in world.roots if each.parent and each.alive]
    if branches and world.walk.chance(0.6):
        root = world.random.choice(branches)
    cuts = [cut for cut, record in world.records(root).items() if record.state is State.TAKEN]
    is_full = len(world.roots) > ROOTS_MAX or sum(each.alive for each in world.roots) >= ALIVE_MAX
    if not cuts or is_full or not root.alive:
        return
    yield from create_from(world, root, world.random.choice(cuts[-2:]))


def create_from(world: World, root: Root, cut: int) -> Process:
    """Holders first, from the oldest root on; then the note, `branch.json`, by put-if-absent."""
    name = world.new("r")
    wanted = [] if world.breaks("ancestors-not-held") else list(root.holds_on)
    wanted.append((root, cut))
    world.wanted[name] = wanted
    for origin, held in reversed(wanted) if world.breaks("held-from-the-youngest") else wanted:
        yield
        if not (yield from hold(world, origin, held, name)):
            yield from release(world, name)
            return
    yield
    if world.notes.setdefault(name, "branch") != "branch":
        yield from release(world, name)  # it was dropped before it was whole
        return
    placed = world.placed(root, cut)
    branch = Root(name, root, placed, [*root.holds_on, (root, cut)], home=placed.home, removed=placed.removed)
    branch.truth = {part: list(values) for part, values in placed.truth.items()}
    branch.ends = dict(placed.places)
    if world.breaks("parent-read-above-the-base"):
        branch.ends = dict(root.ends)
    world.roots.append(branch)
    world.by_name[name] = branch
    world.walk.saw("branches of branches" if root.parent else "branches")


def drop(world: World) -> Process:
    """Drop a branch, or go on where that was broken off, or end what is left of one that was never whole."""
    halves = [name for name in world.wanted if world.notes.get(name) != "branch"]
    branches = [root for root in world.roots if root.parent and not root.let_go]
    if halves and world.walk.chance(0.4):
        yield from drop_half(world, world.random.choice(halves))
    elif branches:
        yield from drop_root(world, world.random.choice(branches))


def drop_half(world: World, name: str) -> Process:
    """Its note is put first, so that a create that is still on its way does not end."""
    yield
    if not world.breaks("let-go-without-a-note") and world.notes.setdefault(name, "dropped") == "branch":
        return
    yield from release(world, name)
    world.walk.saw("halves dropped")


def drop_root(world: World, root: Root) -> Process:
    yield
    root.alive = False

    def over(record: Record) -> Record | None:
        if record.state is State.PENDING or not record.holders:
            return replace(record, state=State.OVER)
        return None

    for cut, record in world.records(root).items():
        if record.state in LIVE:
            yield from world.amend(root, cut, over)
    yield from release(world, root.name)
    root.let_go = True
    world.walk.saw("branches dropped")


def release(world: World, name: str) -> Process:
    """Let go from the youngest root on."""
    wanted = world.wanted[name]
    for origin, held in wanted if world.breaks("held-from-the-youngest") else reversed(wanted):
        yield
        if name in world.records(origin)[held].holders:
            yield from let_go(world, origin, held, name)


def check_nothing_is_left(world: World) -> None:
    for root in world.roots[1:]:
        for bundle in BUNDLES:
            base = world.checkpoint(root, bundle)
            left = base.pins or len(root.checkpoints[bundle]) > 1 or root.slots[bundle]
            if bundle:  # the registry of a dropped root is kept until its last cut is over
                need(not left, f"{root.name}/{bundle}: left behind: {base.pins} {sorted(root.slots[bundle])}")
        need(not root.files and not root.held, f"{root.name}: left behind: {sorted(root.files)} {sorted(root.held)}")
