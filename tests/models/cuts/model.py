"""Model of consistent cuts, with the deletion gate. Three bundles: the catalog's, and two of users with plain, keyed,
removed and moving partitions, groups, staged and copied transactions; rounds, retention, collectors that sleep between
look and deletion, owners and controllers that were replaced and do not know it.

A cut: PIN a checkpoint of each bundle, HOLD decisions, wait until all are QUIET, PLACE a slot for each, CONFIRM, FIX.
How rounds make files and late puts are tests/models/parquet.py: here a round is one step. Invariants:

* a transaction is in a cut whole, with its decision and what it had read, or not at all;
* of a transaction that is prepared in a cut, all that it has staged is there;
* of each epoch under which something is staged in it, a cut has the draw: a copy never draws it again;
* what was acknowledged before the cut began is in it; no group is ahead of data; each topic with records is known;
* the partition that moves is in one bundle;
* what a taken cut names can be read and never changes, and so can the newest;
* files of a plain reader are one run;
* once all cuts are dropped, nothing is left of them.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.models.cuts import bundles, collecting, cutting
from tests.models.cuts.state import State
from tests.models.cuts.world import World
from tests.models.walk import Model, Process, Walk, need

STEPS = 2500
PROCESSES_MAX = 7
LAST_ROUNDS = 12
DEATH = 0.002

RULES = {
    "placed-before-all-are-quiet": "I1: slots are placed when every bundle is quiet",
    "quiet-without-drain": "I2: quiet means that no decision is in flight, and nothing decided is incomplete",
    "quiet-before-it-has-read": "I2: an owner that has not read what is decided is not quiet",
    "no-confirm": "I3: a cut counts only if every hold was unbroken after the last place",
    "confirm-without-fence": "I3: a confirmation waits for a fence check",
    "prepared-under-a-hold": "I2: nothing is prepared while a cut is taken",
    "drawn-under-a-hold": "I22: no epoch is drawn while a cut is taken",
    "quiet-beside-a-draw": "I22: what was drawn before a hold is durable before its bundle is quiet",
    "hold-ends-silently": "I4: an owner that decides again has ended its hold",
    "placed-above-the-durable": "I5: a place is a durable slot",
    "offsets-not-clamped": "I6: offsets of groups end where the cut does",
    "fixed-though-abandoned": "I7: a cut that is over is never taken",
    "pinned-after-the-place": "I8: the pin is put before the place",
    "base-read-before-the-pin": "I8: the base is the very checkpoint that has the pin",
    "pins-read-before-the-checkpoint": "I9: pins are those of the checkpoint by which one deletes",
    "pin-lost-in-a-commit": "I9: each checkpoint carries the pins of the one before",
    "base-checkpoint-deleted": "I10: a pin keeps its checkpoint",
    "pinned-slots-deleted": "I10: a pin keeps the slots from its trim slot to its place",
    "pinned-files-deleted": "I10: a pinned file is handed over before it is deleted",
    "pins-of-its-own-bundle-only": "I10: a pin keeps what its cut names in every bundle, since partitions move",
    "pinned-version-deleted": "I10: a pin keeps the version of a keyed partition that was placed",
    "handed-over-too-late": "I11: a pinned file is handed over first, and deleted then",
    "pinned-file-left-out": "I11: files go in ascending order, pinned ones too",
    "removal-ignores-pins": "I11: the files of a removed topic are handed over, too",
    "pending-pin-collected": "I12: a pin goes only when its cut is over",
    "catalog-placed-first": "I1: bundle 0 is placed last: the cut's catalog knows each topic that has records in it",
    "moved-under-a-cut": "no move is decided while a cut is pending",
    "taken-beside-a-move": "a cut waits for the moves under way",
}

KINDS: dict[Callable[[World], Process], float] = {
    bundles.produce: 9,
    bundles.transact: 6,
    bundles.draw: 1,
    bundles.take_over: 1,
    bundles.end_holds: 1.6,
    bundles.compact: 5,
    bundles.retain: 3,
    bundles.change_topics: 2,
    bundles.move_partition: 3,
    bundles.clean: 2,
    cutting.take: 8,
    cutting.end: 3,
    collecting.collect: 6,
    collecting.collect_versions: 2,
    collecting.collect_held: 1.5,
    collecting.unpin: 3,
}
MORTAL = (
    cutting.take,
    bundles.compact,
    collecting.collect,
    collecting.collect_versions,
    collecting.unpin,
    bundles.retain,
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
            if walk.chance(0.01):
                chosen.wakes_at = now + walk.random.randrange(200)
            _step(walk, running, chosen)
        if now % 50 == 0:
            world.look()
    _end(world, running)


def _step(walk: Walk, running: list[_Running], chosen: _Running) -> None:
    if chosen.is_mortal and walk.chance(DEATH):
        running.remove(chosen)
        return
    try:
        next(chosen.process)
    except StopIteration:
        running.remove(chosen)


def _end(world: World, running: list[_Running]) -> None:
    """Everything ends; then all cuts are dropped, and what is left is collected."""
    while running:
        _step(world.walk, running, world.random.choice(running))
        if world.walk.chance(0.02):
            running.append(_Running(world, bundles.end_holds))
    world.look()
    for cut in world.cuts.values():
        cut.state = State.OVER
    for _ in range(LAST_ROUNDS):
        for kind in (collecting.unpin, *[collecting.collect] * 6, collecting.collect_versions, collecting.collect_held):
            for _ in kind(world):
                pass
    for number, bundle in world.bundles.items():
        left = (
            bundle.newest.pins or len(bundle.checkpoints) > 1 or any(s <= bundle.newest.planned for s in bundle.slots)
        )
        need(not left, f"bundle {number}: left behind: {bundle.newest.pins} {sorted(bundle.checkpoints)}")
    need(not world.held, f"left behind: {sorted(world.held)}")
    need(len(world.versions) == 1, f"left behind: versions {sorted(world.versions)}")
    world.look()


CUTS = Model(
    "cuts",
    run,
    RULES,
    (
        "cuts",
        "epochs in cuts",
        "files handed over",
        "held files collected",
        "moves",
        "offsets clamped",
        "prepared in cuts",
        "topics removed",
        "transactions in cuts",
        "versions",
    ),
)
