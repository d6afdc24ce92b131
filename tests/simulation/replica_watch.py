"""Restore from a root to which a store has replicated some of the objects, in any order, and judge what came.

A cut that is called whole has to be restored; where nothing is missing, each has to be called whole (design I23).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from ledgermq.errors import LedgerMQError, UnknownCut
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.cuts.reading.replica import cuts_of_replica, whole_cut
from ledgermq_ledger.cuts.reading.restore import CutCopy, restore_cut
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_tools.ledger.restore.group_offsets import end_with_their_partitions
from tests.judges.violation import Violation
from tests.simulation.restore_watch import Rows, judge_copy
from tests.simulation.world import World

ON_THEIR_WAY = (0, 1, 1, 1, 2, 5)
"""How many objects have not come."""


def is_replicated(seed: int) -> bool:
    return random.Random(f"replica {seed}").random() < 0.4


async def judge_replica(world: World, expected: Mapping[str, Rows], topics: Sequence[str]) -> None:
    """`expected`: what each cut has of these topics."""
    draw = random.Random(f"objects of a replica {world.seed}")
    source, count = world.line("last"), draw.choice(ON_THEIR_WAY)
    replica = await _replica(world, source, draw, count)
    lacking = {each.name async for each in cuts_of_replica(replica) if not each.is_whole} & expected.keys()
    if lacking and count == 0:
        world.violations.append(Violation("a cut is not whole", f"{sorted(lacking)} in a replica that lacks nothing"))
    target = MemoryStore("restored from a replica", world.sources("root of a replica"))
    cluster, sources = await read_cluster(replica), world.sources("failover")
    copy = CutCopy(replica, cluster, "", target, sources, end_with_their_partitions, is_replica=True)
    try:
        chosen = await whole_cut(replica, "")
    except UnknownCut:
        world.coverage.saw("no cut of a replica was whole")
        return
    try:
        await restore_cut(copy)
    except LedgerMQError as error:
        text = f"cut {chosen.name}: {type(error).__name__} {error.message}"
        world.violations.append(Violation("a cut that is called whole is not", text))
        return
    world.coverage.saw("a cut of a replica was restored")
    if chosen.name in expected:  # others were dropped, or belong to attempts that were abandoned
        await judge_copy(world, chosen.name, target, expected[chosen.name], topics)


async def _replica(world: World, source: ObjectStore, draw: random.Random, count: int) -> MemoryStore:
    replica = MemoryStore("replica", world.sources("replica"))
    listed = [info.key async for info in source.list("")]
    late = set(draw.sample([key for key in listed if key != keys.CLUSTER], min(count, len(listed) - 1)))
    for key in listed:
        if key not in late:
            await replica.put_if_absent(key, [await source.get(key)])
    return replica
