"""Busy bundles gather in the rack of their programs, while these go on, and then nothing moves. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

import ledgermq
from ledgermq.buffers import KIB
from ledgermq.client.settings.values import ClientSettings
from ledgermq_broker.broker import Broker
from ledgermq_broker.bundle.loads import LoadTimes
from ledgermq_broker.cluster.heartbeat import NEAR
from ledgermq_broker.features import ANNOUNCED
from ledgermq_broker.ports.in_process import InProcessConnector
from ledgermq_broker.settings.constants import BrokerConstants
from tests.broker.cluster import Cluster, cluster_of
from tests.virtual_time import VirtualTest, virtual_in, virtual_sources
from tests.waiting import until
from tests.worlds.consumed import read_values

RACKS = {"a:1": "east", "b:1": "west"}
PARTITIONS = 16
EVERY_S = 4.0
"""Each partition gets a record so often, each in another request."""
CONSTANTS = BrokerConstants(
    damaged_retry_s=5, loads=LoadTimes(half_life_s=20, sample_s=5, quiet=2 * KIB, wait_s=20, near_s=60, near_bytes=1)
)


class RackCluster(Cluster):
    async def start(self, address: str, skew_s: float = 0) -> Broker:
        self.settings = self.settings.model_copy(update={"rack": RACKS[address]})
        return await super().start(address, skew_s)

    def owners(self) -> dict[int, str]:
        """The rack in which each bundle is served."""
        return {
            bundle: RACKS[address]
            for address, broker in self.brokers.items()
            for bundle in broker.ownership.opened
            if bundle
        }


def in_racks() -> VirtualTest:
    world = partial(cluster_of, *RACKS, kind=RackCluster, constants=CONSTANTS, bundles=PARTITIONS + 1)
    return virtual_in(world, "cluster")


async def made(cluster: RackCluster) -> dict[int, int]:
    """Create topic t; return the bundle of each partition once each broker has its share."""
    await cluster.create("t", PARTITIONS)
    share = PARTITIONS // len(RACKS)
    await until(
        lambda: sorted(list(cluster.owners().values()).count(rack) for rack in RACKS.values()) == [share] * 2, 60
    )
    return dict(enumerate(cluster.brokers["a:1"].metadata.catalog.topics_by_name["t"].bundles))


@asynccontextmanager
async def producing(cluster: RackCluster, racks: dict[int, str]) -> AsyncIterator[dict[int, int]]:
    """Produce to each partition from a rack. Yield how many records were acknowledged; at the end each is read once."""
    sent, has_ended = dict.fromkeys(racks, 0), asyncio.Event()

    async def produce(client: ledgermq.Client, partition: int) -> None:
        async with client.producer() as producer:
            while not has_ended.is_set():
                await producer.send("t", b"%d" % sent[partition], partition=partition)
                sent[partition] += 1
                await asyncio.sleep(EVERY_S)

    async with asyncio.TaskGroup() as group:
        for rack in sorted({*racks.values()}):
            connector = InProcessConnector(cluster.network, rack=rack)
            client = ledgermq.Client(
                connector, list(RACKS), ClientSettings(rack=rack), virtual_sources(next(cluster.client_seeds))
            )
            for partition, wanted in racks.items():
                if wanted == rack:
                    group.create_task(produce(client, partition))
        yield sent
        has_ended.set()
    async with cluster.client() as client:
        found = await read_values(client, "t")
    assert found == {partition: [b"%d" % number for number in range(count)] for partition, count in sent.items()}


def crossing(cluster: RackCluster, bundles: dict[int, int], racks: dict[int, str]) -> int:
    owners = cluster.owners()
    return sum(owners.get(bundles[partition]) != rack for partition, rack in racks.items())


@pytest.mark.slow
@in_racks()
async def test_bundles_gather_in_the_rack_of_their_bytes_and_then_stay(cluster: RackCluster) -> None:
    bundles = await made(cluster)
    racks = {partition: ["east", "west"][partition // 2 % 2] for partition in bundles}
    before = crossing(cluster, bundles, racks)
    assert before >= 4
    async with producing(cluster, racks):
        await until(lambda: crossing(cluster, bundles, racks) <= 1, 3600)
        await asyncio.sleep(300)
        owners = cluster.owners()
        await asyncio.sleep(600)
        assert cluster.owners() == owners, "it rests"
        assert crossing(cluster, bundles, racks) <= 1


@pytest.mark.slow
@in_racks()
async def test_programs_that_name_no_rack_move_nothing(cluster: RackCluster) -> None:
    bundles = await made(cluster)
    owners = cluster.owners()
    async with producing(cluster, dict.fromkeys(bundles, "")):
        await asyncio.sleep(600)
        assert cluster.owners() == owners


@pytest.mark.slow
@in_racks()
async def test_beside_a_broker_of_the_release_before_bundles_do_not_follow(cluster: RackCluster) -> None:
    """It would place them by count again."""
    me = cluster.brokers["a:1"].membership.me
    cluster.brokers["a:1"].membership.me = replace(me, features=tuple(each for each in ANNOUNCED if each != NEAR))
    await asyncio.sleep(5)
    bundles = await made(cluster)
    owners = cluster.owners()
    async with producing(cluster, {partition: ["east", "west"][partition // 2 % 2] for partition in bundles}):
        await asyncio.sleep(600)
        assert cluster.owners() == owners


@pytest.mark.slow
@in_racks()
async def test_after_a_takeover_bundles_come_back_to_their_rack(cluster: RackCluster) -> None:
    bundles = await made(cluster)
    racks = {partition: ["east", "west"][partition // 2 % 2] for partition in bundles}
    async with producing(cluster, racks):
        await until(lambda: crossing(cluster, bundles, racks) <= 1, 3600)
        await cluster.stop("a:1", graceful=False)
        await until(lambda: len(cluster.owners()) == PARTITIONS, 120)
        assert crossing(cluster, bundles, racks) >= 7
        await cluster.start("a:1")
        await until(lambda: crossing(cluster, bundles, racks) <= 1, 3600)
