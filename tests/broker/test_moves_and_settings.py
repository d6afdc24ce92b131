"""Changes of a topic at each step of a move of one of its partitions. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from ledgermq.errors import LegalHold, Unavailable
from ledgermq_ledger import keys
from ledgermq_ledger.topics.topic import Topic
from tests.broker.cluster import cluster_of
from tests.broker.test_moves import BROKERS, CONSTANTS, SOURCE, TARGET, MovesCluster
from tests.virtual_time import virtual
from tests.waiting import until

Stage = Callable[[MovesCluster], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def held_in(cluster: MovesCluster, bundle: int) -> AsyncIterator[Topic]:
    """The move is decided, and the next put into the ledger of `bundle` is on its way."""
    view = cluster.held_view(cluster.owner_of_bundle(bundle))
    view.held = keys.ledger(bundle)
    topic = await cluster.decide("t", 0, TARGET)
    await until(view.holds.is_set)
    yield topic
    view.held = ""
    view.let_go.set()


@asynccontextmanager
async def decided(cluster: MovesCluster) -> AsyncIterator[None]:
    async with held_in(cluster, SOURCE):
        yield


@asynccontextmanager
async def sealed(cluster: MovesCluster) -> AsyncIterator[None]:
    async with held_in(cluster, TARGET) as topic:
        await until(lambda: cluster.is_sealed(topic))
        yield


@asynccontextmanager
async def opened(cluster: MovesCluster) -> AsyncIterator[None]:
    topic = await cluster.decide("t", 0, TARGET)
    await until(lambda: cluster.is_open(topic))
    yield


STAGES = (decided, sealed, opened)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@virtual
async def test_a_hold_that_is_set_during_a_move_keeps_all_and_what_is_added_is_served(stage: Stage) -> None:
    """Everything is older than the retention that is set with it."""
    async with cluster_of(*BROKERS, constants=CONSTANTS, kind=MovesCluster, background_compaction=True) as cluster:
        await cluster.create("t", 2)
        values = [b"%d" % number for number in range(4)]
        for value in values:
            await cluster.produce("t", 0, value)
        async with cluster.client(timeout_s=60) as client:
            async with stage(cluster):
                changing = asyncio.create_task(
                    client.alter_topic("t", 5, settings={"legal.hold": "true", "retention.ms": "1"})
                )
                await until(
                    lambda: all(b.metadata.catalog.living("t").settings.legal_hold for b in cluster.brokers.values())
                )
            await changing
            with pytest.raises((LegalHold, Unavailable)):
                await client.delete_records("t", 2, [0])
            values.append(b"more")
            await cluster.produce("t", 0, b"more")
            await cluster.produce("t", 4, b"new")
            await until(lambda: cluster.has_ended("t", 0), timeout_s=3600)
            await asyncio.sleep(600)
            assert await cluster.read_all("t", 0) == values
            await cluster.decide("t", 0, SOURCE)
            await until(lambda: cluster.has_ended("t", 0), timeout_s=3600)
            await asyncio.sleep(600)
            assert await cluster.read_all("t", 0) == values
            assert await cluster.read_all("t", 4) == [b"new"]
            with pytest.raises(LegalHold):
                await client.delete_records("t", 2, [0])
            await client.alter_topic("t", settings={"retention.ms": "-1"}, unset=["legal.hold"])
            await client.delete_records("t", 2, [0])
            topic = cluster.brokers[BROKERS[0]].metadata.catalog.living("t")
            owner = await cluster.brokers[await cluster.owner_of("t", 0)].ownership.owner(SOURCE)
            assert await owner.list_offset(topic, 0, "earliest") == 2
        await cluster.check_files(topic, 0, SOURCE)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@virtual
async def test_records_that_are_deleted_during_a_move_never_come_back(stage: Stage) -> None:
    """The call waits until the partition is where it can be done."""
    async with cluster_of(*BROKERS, constants=CONSTANTS, kind=MovesCluster, background_compaction=True) as cluster:
        await cluster.create("t", 2)
        for number in range(4):
            await cluster.produce("t", 0, b"%d" % number)
        async with cluster.client(timeout_s=600) as client:
            async with stage(cluster):
                deleting = asyncio.create_task(client.delete_records("t", 2, [0]))
                await asyncio.sleep(1)
            deleted = (await deleting)[0]
            assert (deleted.log_start_before, deleted.log_start) == (0, 2)
            topic = cluster.brokers[BROKERS[0]].metadata.catalog.living("t")
            for _ in range(60):
                owner = await cluster.brokers[await cluster.owner_of("t", 0)].ownership.owner(TARGET)
                assert await owner.list_offset(topic, 0, "earliest") == 2
                await asyncio.sleep(5)
            assert cluster.has_ended("t", 0)
