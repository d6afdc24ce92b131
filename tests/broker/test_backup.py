"""Copy a root while brokers write to it, as docs/operations.md describes; the copy is a cluster
that holds all that was stored before.
"""

from __future__ import annotations

import asyncio

from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.broker.cluster import Cluster, cluster_of
from tests.virtual_time import virtual, virtual_sources


async def copy(source: ObjectStore, target: ObjectStore, *, checkpoints: bool) -> bool:
    """One pass of a copying tool over the checkpoints, or over all else: list, then copy slowly.

    False: something was gone meanwhile.
    """
    complete = True
    listed = [info.key async for info in source.list("") if ("/checkpoints/" in info.key) == checkpoints]
    for key in listed:
        await asyncio.sleep(0.05)
        if key.startswith(keys.BROKERS):
            continue
        try:
            await target.put(key, await source.get(key))
        except ObjectMissing:
            complete = False
    return complete


@virtual
async def test_a_copy_that_is_taken_under_load_is_a_whole_cluster() -> None:
    target = MemoryStore("", virtual_sources(2))
    async with cluster_of("a:1", "b:1", checkpoint_slots=8) as cluster:
        await cluster.create("t", 4)
        stored = await _fill(cluster, 0, 20)
        await compact_root(cluster.store, virtual_sources(3), LocalEngine(virtual_sources(3), run_inline))
        stored = await _fill(cluster, stored, 40)
        writing = asyncio.create_task(_fill(cluster, stored, 400))
        while not await copy(cluster.store, target, checkpoints=True):
            pass
        while not await copy(cluster.store, target, checkpoints=False):
            pass
        assert not writing.done(), "it was taken under load"
        writing.cancel()
        await asyncio.wait([writing])
    checked = await check_root(target, await read_cluster(target), run_blocking=run_inline)
    assert checked.worst in (None, Severity.NOTE), checked.problems
    async with cluster_of("c:1", store=target) as restored:
        for partition in range(4):
            values = await restored.read_all("t", partition)
            assert values[:40] == [b"%d" % i for i in range(40)]
            assert values == [b"%d" % i for i in range(len(values))]
            assert (await restored.produce("t", partition, b"new"))[0] == len(values)


async def _fill(cluster: Cluster, first: int, last: int) -> int:
    for i in range(first, last):
        for partition in range(4):
            assert (await cluster.produce("t", partition, b"%d" % i))[0] == i
        await asyncio.sleep(0.05)
    return last
