"""A backup by a cut, with brokers on the copy: data, transactions and groups go on there, and cuts stay behind."""

from __future__ import annotations

import ledgermq
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.broker.test_cuts import SlowCluster, no_cuts, nothing_left, torn, under_load
from tests.virtual_time import virtual_sources
from tests.waiting import until
from tests.worlds.restoring import back_up_into

PARTITIONS = 4


async def copy_of(cluster: Cluster, cut: str) -> MemoryStore:
    target = MemoryStore("copy", virtual_sources(71))
    await back_up_into(cluster.store, cut, target)
    return target


async def values(client: ledgermq.Client) -> list[list[bytes]]:
    table = await client.read_arrow("t")
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for partition, value in zip(table.column("partition").to_pylist(), table.column("value").to_pylist(), strict=True):
        found[partition].append(value)
    return found


@in_cluster("a:1", "b:1", kind=SlowCluster)
async def test_brokers_go_on_with_a_copy_that_was_taken_under_load(cluster: Cluster) -> None:
    async with under_load(cluster) as client:
        await client.cuts.take("c")
        copy = await copy_of(cluster, "c")
    async with cluster_of("c:1", "d:1", store=copy) as other, other.client() as client:
        before = await values(client)
        assert before[0]
        assert not torn(before)
        async with client.transactions("id0") as transactions, transactions.begin() as transaction:
            for partition in range(PARTITIONS):
                transaction.send("t", b"in the copy", partition=partition)
        expected = [[*part, b"in the copy"] for part in before]

        async def is_there() -> bool:
            return await values(client) == expected

        await until(is_there)


@in_cluster("a:1")
async def test_cuts_of_the_root_are_not_in_the_copy(cluster: Cluster) -> None:
    """Their records are in the catalog, and nothing of what they name was copied."""
    async with cluster.client() as client:
        await client.create_topic("t", PARTITIONS)
        await client.cuts.take("older")
        await client.cuts.take("c")
        copy = await copy_of(cluster, "c")
        assert [cut.name for cut in await client.cuts.list()] == ["c", "older"]
    async with cluster_of("c:1", store=copy) as other, other.client() as client:
        await until(lambda: no_cuts(client), 60)
        assert await nothing_left(other)
        await client.cuts.take("older")
        assert [cut.state for cut in await client.cuts.list()] == ["taken"]
        await other.stop("c:1", graceful=False)
        await other.start("c:1")
        assert [cut.state for cut in await client.cuts.list()] == ["taken"]
        assert (await client.cuts.drop("older")).state == "dropped"
