"""The metrics of transactions in running brokers, in virtual time: every hook is wired, and scraped
values equal the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from ledgermq.errors import DataDamaged
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.costs.racks import RackTraffic
from ledgermq_broker.metrics.features.transactions import TransactionMetrics
from ledgermq_broker.metrics.scrape import BrokerCollector
from ledgermq_broker.metrics.topic_totals import TopicTotals
from ledgermq_broker.transactions.participating.copier import Copier
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import read_index
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster
from tests.broker.groups import ask
from tests.broker.transaction_calls import beginner, constants_of, coordinator_bundle
from tests.e2e.test_client_takeover import client_of
from tests.virtual_time import virtual_in, virtual_sources
from tests.waiting import until
from tests.worlds.damage import damage_batch

ME = "m:1"


class Measured:
    """The broker at ME, and its reported metrics."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.registry = CollectorRegistry()
        cluster.counts[ME] = [TransactionMetrics(self.registry)]
        self.registry.register(
            BrokerCollector(lambda: cluster.brokers.get(ME), TopicTotals(2), StoreCosts(), RackTraffic())
        )

    def value(self, name: str, **labels: object) -> float:
        found = self.registry.get_sample_value(
            f"ledgermq_{name}", {label: str(value) for label, value in labels.items()}
        )
        return 0.0 if found is None else found

    def all(self, name: str) -> float:
        """The sum over bundles."""
        return sum(
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == f"ledgermq_{name}"
        )

    def ended(self, outcome: str, cause: str) -> float:
        return self.value("transactions_ended_total", outcome=outcome, cause=cause)


@asynccontextmanager
async def measured_broker() -> AsyncIterator[Measured]:
    store = MemoryStore("", virtual_sources(1000))
    cluster = Cluster(store, constants_of(ask_after_ms=1000), bundles=3)
    try:
        found = Measured(cluster)
        assert found.all("staged_bytes") == 0.0, "there is nothing to see before the broker is up"
        await cluster.start(ME)
        await cluster.settled()
        await cluster.create("t", 2)
        yield found
    finally:
        await cluster.close()


measured = virtual_in(measured_broker, "found")


@measured
async def test_what_is_staged_is_measured_in_its_bundle_until_it_is_complete(found: Measured) -> None:
    producer = await beginner(found.cluster, "orders")
    await producer.send("t", 0, b"x")
    await producer.send("t", 0, b"y")
    await producer.send("t", 1, b"z")
    bundle = found.cluster.brokers[ME].metadata.catalog.living("t").bundles[0]
    await asyncio.sleep(5)
    assert (found.value("staged_transactions", bundle=bundle), found.value("staged_batches", bundle=bundle)) == (1, 2)
    assert (found.all("staged_transactions"), found.all("staged_batches")) == (2, 3)
    assert found.all("staged_bytes") == sum(
        one.participant.staged_bytes for one in found.cluster.brokers[ME].transactions.served()
    )
    assert 5 <= found.value("staged_seconds", bundle=bundle) < 7
    assert found.all("transactional_ids") == 1
    await producer.commit()
    await producer.completed()
    assert found.ended("committed", "producer") == 1
    assert found.value("transaction_completion_seconds_count") == 2
    assert (found.all("staged_transactions"), found.all("staged_bytes"), found.all("staged_seconds")) == (0, 0, 0)


@measured
async def test_aborts_are_counted_by_their_cause(found: Measured) -> None:
    for name in ("producer", "timeout", "fenced", "asked"):
        producer = await beginner(found.cluster, name, timeout_ms=10_000 if name == "timeout" else 600_000)
        await producer.send("t", 0, b"x")
        await producer.send("t", 1, b"x")
        if name == "producer":
            await producer.abort()
        elif name == "fenced":
            await (await beginner(found.cluster, name)).init()
        elif name == "asked":
            request = pb.TransactionOutcomeRequest(transactional_id=name, epoch=1, number=1)
            await ask(found.cluster, lambda line, request=request: line.transaction_outcome(request))  # type: ignore[misc]
    for name, resolution in (("kept", pb.COMMIT), ("dropped", pb.ABORT)):
        prepared = await beginner(found.cluster, name, kind=pb.TWO_PHASE)
        await prepared.send("t", 0, b"x")
        await prepared.end(pb.PREPARED)
        assert found.all("prepared_transactions") == 1
        resolve = pb.ResolveTransactionRequest(transactional_id=name, resolution=resolution)
        await ask(found.cluster, lambda line, resolve=resolve: line.resolve_transaction(resolve))  # type: ignore[misc]
    await until(lambda: found.all("staged_transactions") == 0, 60)
    await asyncio.sleep(10)
    causes = {cause: found.ended("aborted", cause) for cause in ("producer", "timeout", "fenced", "asked")}
    assert causes == {"producer": 1, "timeout": 1, "fenced": 1, "asked": 1}, "each once, over both bundles"
    assert (found.ended("committed_by_operator", "operator"), found.ended("aborted_by_operator", "operator")) == (1, 1)
    assert found.ended("prepared", "producer") == 2


@measured
async def test_a_completion_in_trouble_is_counted_and_ages(found: Measured) -> None:
    producer = await beginner(found.cluster, "orders")
    await producer.send("t", 0, b"x")
    whole = Copier._copy_chunk

    async def damaged(copier: Copier, chunk: object) -> None:
        raise DataDamaged("the staged batch is damaged")

    Copier._copy_chunk = damaged  # type: ignore[method-assign,assignment]
    try:
        await producer.commit()
        await asyncio.sleep(60)
        assert found.all("incomplete_transactions") == 1
        assert 55 <= max(one.sizes().incomplete_s for one in found.cluster.brokers[ME].transactions.served()) <= 61
        assert found.value("transaction_completion_failures_total", code="DATA_DAMAGED") > 3
    finally:
        Copier._copy_chunk = whole  # type: ignore[method-assign]
    await producer.completed()
    assert (found.all("incomplete_transactions"), found.all("incomplete_transactions_seconds")) == (0, 0)


@measured
async def test_the_age_of_staged_offsets_counts_too(found: Measured) -> None:
    await found.cluster.produce("t", 0, b"a")
    producer = await beginner(found.cluster, "copy", timeout_ms=600_000)
    assert await producer.stage_offset("g", "t", 0, 1) == ""
    await asyncio.sleep(30)
    assert found.all("staged_batches") == 0
    assert 30 <= found.all("staged_seconds") < 33
    await producer.abort()
    await producer.completed()
    assert found.all("staged_seconds") == 0


@measured
async def test_a_partition_whose_records_are_damaged_is_refused_alone(found: Measured) -> None:
    cluster = found.cluster
    producer = await beginner(cluster, "orders")
    await producer.send("t", 0, b"x")
    topic = cluster.brokers[ME].metadata.catalog.living(keys.TRANSACTIONS_TOPIC)
    bundle = coordinator_bundle(cluster, "orders")
    partition = PartitionId(topic.id, topic.bundles.index(bundle))
    await cluster.stop(ME, graceful=False)
    slots = [keys.number(info.key) async for info in cluster.store.list(keys.segments(bundle))]
    indexes = [await read_index(cluster.store, bundle, slot) for slot in slots]
    damaged = next(
        one.index.slot
        for one in indexes
        if any((entry.topic_id, entry.partition) == partition for entry in one.index.batches)
    )
    await damage_batch(cluster.store, bundle, damaged, partition)
    await cluster.start(ME)
    await cluster.settled()
    await until(lambda: found.all("refused_transaction_partitions") == 1, 30)
    assert found.value("refused_transaction_partitions", code="DATA_DAMAGED") == 1
    assert keys.segment(bundle, damaged) in str(cluster.brokers[ME].transactions.refused()[partition.partition])
    await cluster.produce("t", 0, b"goes on")
    async with client_of(cluster) as client:
        listed = await client.transactions.list()
        assert {number: error.code for number, error in listed.unanswered.items()} == {
            partition.partition: "DATA_DAMAGED"
        }
