"""A minute without the store, and a minute of 503s: no record is lost, no broker restarts, and a
broker that starts during it waits.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from ledgermq.errors import StoreUnusable, Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.health.readiness import DRAINING, STARTING, Health
from ledgermq_broker.health.store_wait import when_store_answers
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.probe import probe_store
from ledgermq_ledger.object_store.wrappers.resilient import ResilientStore
from tests.broker.cluster import Cluster, cluster_of
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import run_virtual, virtual, virtual_sources

MINUTE_S = 60.0


async def produced(cluster: Cluster, partition: int, first: int, last: int) -> None:
    """One record after the other, for as long as each takes."""
    for i in range(first, last):
        assert (await cluster.produce("t", partition, b"%d" % i))[0] == i
        await asyncio.sleep(2)


@pytest.mark.parametrize(
    "faults", [Faults(throttle=0.7), Faults(throttle=0.3, before=0.2, after=0.2, delay_s_max=2.0)], ids=["503", "mixed"]
)
def test_a_minute_of_refusals_loses_nothing(faults: Faults) -> None:
    """Three storms, for what gets through in one of them is a matter of luck."""
    through = []

    async def scenario(seed: int) -> None:
        sources = virtual_sources(seed)
        store = FaultyStore(MemoryStore("", sources), sources)
        async with cluster_of("a:1", "b:1", store=ResilientStore(store, sources)) as cluster:
            await cluster.create("t", 4)
            for partition in range(4):
                await produced(cluster, partition, 0, 1)
            session = await opened(cluster, 0)
            store.faults = faults
            storm = asyncio.create_task(_calm_after(store, MINUTE_S))
            stored = 1
            while not storm.done():
                assert (await cluster.produce("t", 0, b"%d" % stored, session=session))[0] == stored
                stored, session.sequence = stored + 1, session.sequence + 1
                await asyncio.sleep(1)
            through.append(stored)
            assert await cluster.read_all("t", 0) == [b"%d" % i for i in range(stored)]
            for partition in (1, 2, 3):
                await produced(cluster, partition, 1, 3)
                assert await cluster.read_all("t", partition) == [b"0", b"1", b"2"]
            assert not any(broker.failed.done() for broker in cluster.brokers.values())

    for seed in (1, 2, 3):
        run_virtual(partial(scenario, seed))
    assert sum(through) > 3 * 3, "the storms slowed it down and did not stop it"


@virtual
async def test_a_minute_without_the_store_delays_and_loses_nothing() -> None:
    sources = virtual_sources(2)
    store = FaultyStore(MemoryStore("", sources), sources)
    async with cluster_of("a:1", "b:1", store=ResilientStore(store, sources)) as cluster:
        await cluster.create("t", 4)
        for partition in range(4):
            await produced(cluster, partition, 0, 1)
        ages = [broker.ownership.heartbeat_age_s() for broker in cluster.brokers.values()]
        assert max(ages) < 2
        store.faults = Faults(before=1.0)
        await asyncio.sleep(MINUTE_S)
        assert min(broker.ownership.heartbeat_age_s() for broker in cluster.brokers.values()) > MINUTE_S - 5
        store.faults = Faults()
        for partition in range(4):
            await produced(cluster, partition, 1, 3)
            assert await cluster.read_all("t", partition) == [b"0", b"1", b"2"]
        assert not any(broker.failed.done() for broker in cluster.brokers.values())


async def opened(cluster: Cluster, partition: int) -> pb.ProducerSession:
    """An idempotent producer of a partition of topic t."""
    line = cluster.line(await cluster.owner_of("t", partition))
    [found] = (
        await line.open_producer(pb.OpenProducerRequest(partitions=[pb.TopicPartition(topic="t", partition=partition)]))
    ).partitions
    return pb.ProducerSession(id=bytes(16), opened_slot=found.opened_slot)


async def _calm_after(store: FaultyStore, seconds: float) -> None:
    await asyncio.sleep(seconds)
    store.faults = Faults()


@virtual
async def test_a_start_without_the_store_waits_and_tells_why() -> None:
    sources = virtual_sources(3)
    store = FaultyStore(MemoryStore("", sources), sources, Faults(before=1.0))
    health = Health()
    assert health.why_not == STARTING

    async def step() -> str:
        await probe_store(ResilientStore(store, sources), sources, attempts_max=1)
        return "joined"

    joining = asyncio.create_task(when_store_answers(step, "memory://x", health, sources))
    await asyncio.sleep(MINUTE_S)
    assert not joining.done()
    assert "waiting for the object store memory://x" in health.why_not
    asked = store.calls["put_if_absent"]
    assert 5 <= asked <= 30, "it backs off, and goes on"
    store.faults = Faults()
    assert await asyncio.wait_for(joining, 20) == "joined"


@pytest.mark.parametrize("error", [Unauthorized("wrong credentials"), StoreUnusable("no such bucket")])
@virtual
async def test_what_waiting_cannot_mend_ends_the_start(error: Exception) -> None:
    async def step() -> None:
        raise error

    with pytest.raises(type(error)):
        await when_store_answers(step, "memory://x", Health(), virtual_sources())


def test_a_process_that_drains_is_not_ready_again() -> None:
    health = Health()
    health.ready()
    assert health.is_ready
    health.drains()
    health.ready()
    assert (health.is_ready, health.why_not) == (False, DRAINING)
