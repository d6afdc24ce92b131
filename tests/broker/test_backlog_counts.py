"""What counts as the backlog of a topic: of which groups, by which coordinators, after a takeover, at what cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest
from prometheus_client import CollectorRegistry

from ledgermq.errors import BacklogQuotaExceeded, ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.costs.racks import RackTraffic
from ledgermq_broker.groups.groups import Groups
from ledgermq_broker.metrics.features.backlogs import TOPICS_MAX, BacklogMetrics
from ledgermq_broker.metrics.scrape import BrokerCollector
from ledgermq_broker.metrics.topic_totals import OTHER, TopicTotals
from ledgermq_broker.queues.shares import Shares
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.broker import queue_calls
from tests.broker.backlogs import KIB, SOON_S, fill, quota, refusal
from tests.broker.cluster import Cluster, cluster_of, frame_of, in_cluster
from tests.broker.groups import Outsider, coordinator_of
from tests.virtual_time import virtual, virtual_sources

T = TypeVar("T")
FOLLOWED = "ledgers/0000/"


class Watched(StoreWrapper):
    """Notes all requests, but those for heartbeats, and those for metadata, which brokers follow."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.seen: list[str] = []

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if not what.startswith((keys.BROKERS, FOLLOWED)):
            self.seen.append(f"{operation} {what}")
        return await step()

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        if not prefix.startswith((keys.BROKERS, FOLLOWED)):
            self.seen.append(f"list {prefix}")
        async for info in self.inner.list(prefix, start_after):
            yield info


@in_cluster("a:1")
async def test_without_a_group_there_is_no_backlog(cluster: Cluster) -> None:
    await cluster.create("t", 1, **quota("producer_exception"))
    await fill(cluster, 30)
    await asyncio.sleep(SOON_S)
    assert await refusal(cluster) is None
    await Outsider(cluster, "g").commit(("t", 0, 1))
    await fill(cluster, 1)
    await asyncio.sleep(SOON_S)
    assert await refusal(cluster) is not None, "a group counts from its first commit on"


@in_cluster("a:1")
async def test_queue_groups_count(cluster: Cluster) -> None:
    topic = queue_calls.TOPIC
    await cluster.create(topic, 1, **quota("producer_exception"))
    for _ in range(12):
        await cluster.produce(topic, 0, bytes(KIB))
    leased = await queue_calls.fetch(cluster, 12)
    await asyncio.sleep(SOON_S)
    [result] = (await cluster.line("a:1").produce_once(frame_of(topic, 0, b"x"))).results
    assert result.error.code == BacklogQuotaExceeded.code
    assert "group 'workers' is" in result.error.message
    leased += await queue_calls.fetch(cluster, 12)
    await queue_calls.answer(cluster, leased[-12:])
    await asyncio.sleep(SOON_S)
    [result] = (await cluster.line("a:1").produce_once(frame_of(topic, 0, b"x"))).results
    assert not result.HasField("error")


@in_cluster("a:1", "b:1", bundles=5)
async def test_the_slowest_of_all_groups_counts_wherever_it_is_coordinated(cluster: Cluster) -> None:
    await cluster.create("t", 1, **quota("producer_exception"))
    await fill(cluster)
    names = [f"g{number}" for number in range(8)]
    for number, name in enumerate(names):
        await Outsider(cluster, name).commit(("t", 0, 12 if number != 3 else 1))
    assert len({await coordinator_of(cluster, name) for name in names}) == 2
    await asyncio.sleep(SOON_S)
    error = await refusal(cluster)
    assert error is not None
    assert "group 'g3' is" in error.message


@in_cluster("a:1")
async def test_nothing_is_decided_before_the_queues_of_the_bundle_are_loaded(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = queue_calls.TOPIC
    await cluster.create(topic, 1, **quota("consumer_backlog_eviction"))
    await cluster.produce(topic, 0, bytes(KIB))
    await queue_calls.fetch(cluster, 1)
    with monkeypatch.context() as patched:
        patched.setattr(Shares, "served", lambda self: [])
        await Outsider(cluster, "g").commit((topic, 0, 0))
        for _ in range(12):
            await cluster.produce(topic, 0, bytes(KIB))
        await asyncio.sleep(SOON_S)
        assert len(await cluster.read_all(topic, 0)) == 13
    await asyncio.sleep(SOON_S)
    async with cluster.client() as client:
        assert (await client.list_offsets(topic, "earliest"))[0] > 0


@in_cluster("a:1", "b:1")
async def test_no_verdict_changes_while_a_coordinator_does_not_answer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits that are not known might be lower, or higher."""
    await cluster.create("t", 1, **quota("producer_exception"))
    group = Outsider(cluster, "g")
    await group.commit(("t", 0, 0))

    async def unknown(request: pb.SlowestCommitsRequest) -> pb.SlowestCommitsResponse:
        raise ResourceExhausted("not now")

    async def is_refused_while(is_broken: bool) -> bool:
        with monkeypatch.context() as patched:
            for broker in cluster.brokers.values() if is_broken else ():
                patched.setattr(broker.service, "slowest_commits", unknown)
            await asyncio.sleep(SOON_S)
            return await refusal(cluster) is not None

    await fill(cluster, 4)
    await asyncio.sleep(SOON_S)
    await fill(cluster, 8)
    assert not await is_refused_while(is_broken=True)
    assert await is_refused_while(is_broken=False)
    await group.commit(("t", 0, 12))
    assert await is_refused_while(is_broken=True)
    assert not await is_refused_while(is_broken=False)


@virtual
async def test_checks_cost_no_request_and_an_idle_cluster_has_none() -> None:
    store = Watched(MemoryStore("", virtual_sources(1000)))
    async with cluster_of("a:1", "b:1", store=store) as cluster:
        await cluster.create("t", 1, **quota())
        await Outsider(cluster, "g").commit(("t", 0, 0))
        await fill(cluster, 5)
        owner = cluster.brokers[await cluster.owner_of("t", 0)]
        asked = 0

        def counting(groups: Groups) -> Callable[..., Awaitable[pb.SlowestCommitsResponse]]:
            async def counted(request: pb.SlowestCommitsRequest) -> pb.SlowestCommitsResponse:
                nonlocal asked
                asked += 1
                return await groups.slowest_commits(request)

            return counted

        for broker in cluster.brokers.values():
            broker.service.slowest_commits = counting(broker.groups)  # type: ignore[assignment]
        await asyncio.sleep(60)
        before, seen = asked, list(store.seen)
        assert before > 0
        await asyncio.sleep(600)
        assert asked == before, "nothing has changed, so nobody is asked"
        assert store.seen == seen
        [checked] = owner.backlogs.checked.values()
        assert 5 * KIB < checked.backlog_bytes < 10 * KIB
        await Outsider(cluster, "g").commit(("t", 0, 1))
        await fill(cluster, 1)
        await asyncio.sleep(60)
        assert before < asked < before + 10, "each change is checked once"
        assert not checked.excess


@in_cluster("a:1")
async def test_bytes_in_parquet_count_in_part(cluster: Cluster) -> None:
    await cluster.create("t", 1, **quota("consumer_backlog_eviction", bytes_max=40 * KIB))
    group = Outsider(cluster, "g")
    await fill(cluster, 40)
    sources = virtual_sources(92)
    assert not (await compact_root(cluster.store, sources, LocalEngine(sources, run_inline))).failures
    broker = await cluster.start("b:1")  # it indexes nothing that is in Parquet
    await cluster.stop("a:1")
    await cluster.settled()
    topic = broker.metadata.catalog.topics_by_name["t"]
    owner = broker.ownership.opened[topic.bundles[0]]
    whole = await owner.backlog(topic, 0, 0)
    half = await owner.backlog(topic, 0, 20)
    assert whole.size_bytes > 0
    assert len(whole.older) == 1, "a Parquet file"
    assert half.size_bytes == whole.size_bytes // 2
    assert (await owner.backlog(topic, 0, 40)).size_bytes == 0
    await group.commit(("t", 0, 0))
    await fill(cluster, 40)
    await asyncio.sleep(SOON_S)
    async with cluster.client() as client:
        assert 0 < (await client.list_offsets("t", "earliest"))[0] < 60


@in_cluster("a:1")
async def test_metrics_show_topics_with_a_quota(cluster: Cluster) -> None:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(lambda: cluster.brokers["a:1"], TopicTotals(10), StoreCosts(), RackTraffic()))
    await cluster.create("t", 1, **quota())
    await cluster.create("other", 1)
    await Outsider(cluster, "g").commit(("t", 0, 0))
    await fill(cluster)
    await asyncio.sleep(SOON_S)
    found = registry.get_sample_value("ledgermq_backlog_bytes", {"topic": "t"})
    assert found is not None
    assert found > 12 * KIB
    assert registry.get_sample_value("ledgermq_backlog_partitions_above_quota", {"topic": "t"}) == 1
    assert registry.get_sample_value("ledgermq_backlog_bytes", {"topic": "other"}) is None


def test_counters_have_bounded_labels() -> None:
    registry = CollectorRegistry()
    metrics = BacklogMetrics(registry)
    for number in range(TOPICS_MAX + 50):
        metrics.refused(f"t{number}", "producer_exception")
        metrics.evicted(f"t{number}", 3)
    labels = {"topic": OTHER, "policy": "producer_exception"}
    assert registry.get_sample_value("ledgermq_backlog_refusals_total", labels) == 50
    assert registry.get_sample_value("ledgermq_backlog_evicted_records_total", {"topic": "t0"}) == 3
