"""Brokers report the lag of groups: from the coordinator alone, with ends that other brokers know,
and without a request to the store.
"""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from ledgermq_broker.groups.groups import GroupFailures
from ledgermq_broker.groups.lags import GroupLag
from ledgermq_broker.metrics.sampled.group_lag import GroupLagMetrics
from ledgermq_broker.metrics.sampled.sampling import PAIRS_MAX
from ledgermq_broker.metrics.topic_totals import OTHER
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.broker.groups import Outsider, coordinator_of
from tests.stores.faulty import FaultyStore
from tests.virtual_time import virtual, virtual_sources


async def told(cluster: Cluster) -> dict[str, dict[tuple[str, str], int]]:
    """By address of the broker that tells it."""
    found = {}
    for address, broker in cluster.brokers.items():
        found[address] = {(row.group, row.topic): row.records for row in await broker.groups.lags(1000)}
    return found


@virtual
async def test_lag_is_told_by_the_coordinator_with_everybodys_ends() -> None:
    store = FaultyStore(MemoryStore("", virtual_sources(1000)), virtual_sources(1))
    async with cluster_of("a:1", "b:1", store=store, bundles=5) as cluster:
        await cluster.create("t", 4)
        for partition in range(4):
            await cluster.produce("t", partition, b"1", b"2", b"3", b"4")
        assert await Outsider(cluster, "g").commit(*[("t", partition, partition) for partition in range(4)]) == [""] * 4
        assert await Outsider(cluster, "h").commit(("t", 2, 4)) == [""]
        assert len({await cluster.owner_of("t", partition) for partition in range(4)}) == 2, "both own some"
        asked = store.calls.total() - store.calls["put"] - store.calls["list"]
        found = await told(cluster)
        assert store.calls.total() - store.calls["put"] - store.calls["list"] == asked, (
            "but for heartbeats, nothing was asked of the store"
        )
        expected: dict[str, dict[tuple[str, str], int]] = {address: {} for address in cluster.brokers}
        expected[await coordinator_of(cluster, "g")]["g", "t"] = 4 + 3 + 2 + 1
        expected[await coordinator_of(cluster, "h")]["h", "t"] = 0
        assert found == expected


@in_cluster("a:1")
async def test_the_gauges_are_bounded_and_follow(cluster: Cluster) -> None:
    registry = CollectorRegistry()
    metrics = GroupLagMetrics(registry)
    await cluster.create("t", 1)
    await cluster.produce("t", 0, b"1", b"2", b"3")
    await Outsider(cluster, "g").commit(("t", 0, 1))
    working = asyncio.create_task(metrics.run(cluster.brokers["a:1"].groups))
    await asyncio.sleep(1)
    assert registry.get_sample_value("ledgermq_group_lag_records", {"group": "g", "topic": "t"}) == 2
    assert registry.get_sample_value("ledgermq_group_members", {"group": "g"}) == 0
    await Outsider(cluster, "g").commit(("t", 0, 3))
    await asyncio.sleep(30)
    assert registry.get_sample_value("ledgermq_group_lag_records", {"group": "g", "topic": "t"}) == 0
    working.cancel()
    await asyncio.wait([working])

    class Many:
        async def lags(self, partitions_max: int) -> list[GroupLag]:
            return [GroupLag(f"g{i}", "t", 1, i) for i in range(PAIRS_MAX + 3)]

        async def failures(self, groups_max: int) -> list[GroupFailures]:
            return []

    await metrics.sample(Many())  # type: ignore[arg-type]
    [lag, members, stuck, *_] = metrics.collect()
    assert len(lag.samples) == PAIRS_MAX + 1
    assert len(members.samples) == len(stuck.samples) == PAIRS_MAX
    assert registry.get_sample_value("ledgermq_group_lag_records", {"group": OTHER, "topic": OTHER}) == 0 + 1 + 2


@in_cluster("a:1")
async def test_an_offset_that_does_not_move_is_told_with_the_time_for_which_it_has_not(cluster: Cluster) -> None:
    registry = CollectorRegistry()
    metrics = GroupLagMetrics(registry)
    await cluster.create("t", 2)
    await cluster.produce("t", 0, b"1", b"2", b"3")
    await cluster.produce("t", 1, b"1", b"2", b"3")
    await Outsider(cluster, "g").commit(("t", 0, 1), ("t", 1, 1))
    groups = cluster.brokers["a:1"].groups

    async def stuck_s(after_s: float) -> float | None:
        await asyncio.sleep(after_s)
        await metrics.sample(groups)
        found = registry.get_sample_value("ledgermq_group_stuck_seconds", {"group": "g", "topic": "t"})
        return None if found is None else round(found, 3)

    assert await stuck_s(0) == 0
    assert await stuck_s(20) == 20
    await Outsider(cluster, "g").commit(("t", 0, 3))
    assert await stuck_s(20) == 40, "the other partition has not moved"
    await Outsider(cluster, "g").commit(("t", 1, 2))
    assert await stuck_s(20) == 0, "records are left, but the offset has moved"
    await Outsider(cluster, "g").commit(("t", 1, 3))
    assert await stuck_s(500) == 0, "no record is left"
    await cluster.produce("t", 1, b"4")
    assert await stuck_s(500) == 0, "it came just now"


@in_cluster("a:1", "b:1")
async def test_the_records_of_retry_and_dead_letter_topics_are_told_by_the_coordinator(cluster: Cluster) -> None:
    for topic in ("t", "g.retry", "g.dlq", "other.dlq"):
        await cluster.create(topic, 2)
    for name in ("g", "h"):
        await Outsider(cluster, name).commit(("t", 0, 0))
    await cluster.produce("g.retry", 0, b"1", b"2", b"3")
    await cluster.produce("g.retry", 1, b"1")
    await cluster.produce("g.dlq", 1, b"1", b"2")
    await cluster.produce("other.dlq", 1, b"1", b"2")
    at = await coordinator_of(cluster, "g")
    assert list(await cluster.brokers[at].groups.failures(10)) == [GroupFailures("g", 4, 2)]
    [other] = {"a:1", "b:1"} - {at}
    assert list(await cluster.brokers[other].groups.failures(10)) == []
    registry = CollectorRegistry()
    await GroupLagMetrics(registry).sample(cluster.brokers[at].groups)
    assert registry.get_sample_value("ledgermq_group_retries_total", {"group": "g"}) == 4
    assert registry.get_sample_value("ledgermq_group_dead_letters_total", {"group": "g"}) == 2
