"""Model of branches: roots that are a view of their ancestors up to a cut, and count on from there.

Granted: cuts are consistent (tests/models/cuts), and the chain of each bundle. In each root three bundles: that of the
registry, and two of users with plain, removed and moving partitions; rounds, retention, cuts, collectors that sleep
between look and deletion. Both roots give the same names to files. Creating and dropping a branch die at any step, and
are repeated; branches of branches. Invariants:

* what a live root or a taken cut names can be read, never changes, and has nothing that the root never got;
* files of a plain reader are one run in each root;
* a root has only pins of cuts that were taken there;
* a live branch holds the cut of each root that it reads, and what a taken cut reads is taken;
* once all branches are dropped and all cuts are over, nothing of a branch is left, and nothing is held for one.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.models.branches import branching, collecting, rounds
from tests.models.branches.state import BUNDLES, State
from tests.models.branches.world import World
from tests.models.walk import Model, Process, Walk, need

STEPS = 2500
PROCESSES_MAX = 8
LAST_ROUNDS = 8
DEATH = 0.004
NAP = 0.01
NAPS = (100, 300, 1500)

RULES = {
    "parent-read-above-the-base": "J1: a branch sees its ancestors' numbers up to its base only",
    "pins-come-along": "J2: pins belong to their root",
    "branch-deletes-in-its-parent": "J3: a root deletes only its own objects",
    "ancestors-not-held": "J4: a branch holds the cut of every root that it reads",
    "held-after-the-drop": "J4: only what is taken at that moment is held",
    "dropped-with-holders": "J5: a cut with holders is not dropped",
    "cut-outlives-its-root": "J5: a held cut of a dropped root ends with its last holder",
    "held-from-the-youngest": "J6: holds are taken from the oldest root on, and released from the youngest on",
    "files-found-by-name-alone": "J8: a name that both roots have is never looked up without its origin",
    "origin-lost-in-a-round": "J8: a round carries the origins of the files that were listed before",
    "origin-lost-in-a-move": "J8: a partition that moves takes the origins of its files along",
    "parents-cuts-count": "J9: records of cuts below the base are the parent's, and no cuts of the branch",
    "judged-by-an-old-catalog": "J10: a step of a cut's record is judged in the turn that puts it",
    "let-go-without-a-note": "J11: of a branch that is not whole the note is put first, as dropped",
    "drop-seen-after-the-pins": "J12: that a root is dropped is read before the pins by which one deletes",
}

KINDS: dict[Callable[[World], Process], float] = {
    rounds.produce: 10,
    rounds.compact: 7,
    rounds.retain: 4,
    rounds.remove_topic: 0.2,
    rounds.move_partition: 2,
    branching.take: 5,
    branching.end_cuts: 3,
    branching.create: 5,
    branching.drop: 3,
    collecting.collect: 7,
    collecting.collect_held: 1.5,
    collecting.unpin: 4,
}
MORTAL = (
    rounds.compact,
    rounds.retain,
    branching.take,
    branching.end_cuts,
    branching.create,
    branching.drop,
    collecting.collect,
    collecting.collect_held,
    collecting.unpin,
)


class _Running:
    def __init__(self, world: World, kind: Callable[[World], Process]) -> None:
        self.process = kind(world)
        self.is_mortal = kind in MORTAL
        self.wakes_at = 0


def run(walk: Walk) -> None:
    world = World(walk)
    running: list[_Running] = []
    for now in range(STEPS):
        if len(running) < PROCESSES_MAX:
            running.append(_Running(world, walk.random.choices(list(KINDS), list(KINDS.values()))[0]))
        awake = [each for each in running if each.wakes_at <= now]
        if awake:
            chosen = walk.random.choice(awake)
            if walk.chance(NAP):
                chosen.wakes_at = now + walk.random.randrange(walk.random.choice(NAPS))
            elif chosen.is_mortal and walk.chance(DEATH):
                running.remove(chosen)
            else:
                _step(running, chosen)
        if now % 20 == 0:
            world.look()
            world.look_at_holds()
    while running:
        _step(running, walk.random.choice(running))
    world.look()
    _late_collector(world)
    _end(world)


def _step(running: list[_Running], chosen: _Running) -> None:
    try:
        next(chosen.process)
    except StopIteration:
        running.remove(chosen)


def _late_collector(world: World) -> None:
    """A directed walk, since it needs thousands of seeds by chance: a collector of a branch has looked; meanwhile a cut
    is taken there, a branch of it created, and the first one dropped; and the collector goes on.
    """
    branches = [root for root in world.roots[1:] if root.alive and not world.is_busy(root)]
    if not branches:
        return
    root, bundle = world.random.choice(branches), world.random.choice(BUNDLES)
    if world.checkpoint(root, bundle).planned < root.ends[bundle]:
        _finish(rounds.round_up_to(world, root, bundle, root.ends[bundle]))
    collector = collecting.collect_in(world, root, bundle)
    next(collector)
    _finish(branching.take_in(world, root))
    cut = max(world.records(root))
    _finish(branching.create_from(world, root, cut))
    _finish(branching.drop_root(world, root))
    world.walk.saw("collectors that were late")
    _finish(collector)
    for _ in range(4 * len(world.roots)):
        world.look()
    world.look_at_holds()


def _end(world: World) -> None:
    """All branches are dropped, those too where that was broken off; then all cuts are over, and all is collected."""
    for name in list(world.wanted):
        if world.notes.get(name) != "branch":
            _finish(branching.drop_half(world, name))
    for root in reversed(world.roots[1:]):
        if not root.let_go:
            _finish(branching.drop_root(world, root))
    for root in world.roots:
        for record in world.records(root).values():
            need(not record.holders, f"cut {record.cut} of {root.name} is held by {sorted(record.holders)} for ever")
            is_over = record.state is State.OVER or root.alive
            need(is_over, f"cut {record.cut} of {root.name} is {record.state}, but its root was dropped")
    everywhere, world.roots = world.roots, []
    for root in everywhere:
        world.roots = [root]
        for _ in range(LAST_ROUNDS * len(BUNDLES)):
            for kind in (collecting.unpin, collecting.collect, collecting.collect, collecting.collect_held):
                _finish(kind(world))
    world.roots = everywhere
    branching.check_nothing_is_left(world)


def _finish(process: Process) -> None:
    for _ in process:
        pass


BRANCHES = Model(
    "branches",
    run,
    RULES,
    (
        "branches",
        "branches dropped",
        "branches of branches",
        "branches read",
        "collectors that were late",
        "cuts",
        "files handed over",
        "halves dropped",
        "moves in branches",
        "topics removed",
    ),
)
