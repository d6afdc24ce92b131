"""Programs that say their rack write to brokers there, in virtual time, while owners change. Nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pyarrow as pa
import pytest

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.ports.in_process import InProcessConnector
from tests.broker.cluster import Cluster, cluster_of
from tests.virtual_time import VirtualTest, virtual_in, virtual_sources
from tests.waiting import until
from tests.worlds.consumed import read_values

RACKS = {"a:1": "east", "b:1": "west", "c:1": "south"}
PARTITIONS = 12


class RackCluster(Cluster):
    """Each broker runs in the rack that `RACKS` names."""

    async def start(self, address: str, *args: object, **named: object) -> None:
        self.settings = self.settings.model_copy(update={"rack": RACKS.get(address, "")})
        await super().start(address, *args, **named)  # type: ignore[arg-type]


def in_racks(*addresses: str, **settings: object) -> VirtualTest:
    return virtual_in(partial(cluster_of, *addresses, kind=RackCluster, **({"bundles": 13} | settings)), "cluster")


@asynccontextmanager
async def client_in(cluster: Cluster, rack: str = "", **settings: float) -> AsyncIterator[ledgermq.Client]:
    chosen = ClientSettings(rack=rack, **settings)
    connector = InProcessConnector(cluster.network)
    sources = virtual_sources(next(cluster.client_seeds))
    async with ledgermq.Client(connector, list(cluster.brokers), chosen, sources) as client:
        yield client


async def racks_of(cluster: Cluster, topic: str = "t", partitions: int = PARTITIONS) -> dict[int, str]:
    """Return the rack of each partition's owner."""
    return {number: RACKS.get(await cluster.owner_of(topic, number), "") for number in range(partitions)}


async def is_spread(cluster: Cluster) -> None:
    """Wait until each broker has its share."""
    share = (cluster.settings.bundles - 1) // len(cluster.brokers)
    await until(lambda: all(len(each.ownership.opened) >= share for each in cluster.brokers.values()), 60)


async def sent(producer: ledgermq.Producer, count: int, name: str = "t") -> Counter[int]:
    """Send records one by one; return how many each partition has stored."""
    results = []
    for number in range(count):
        results.append(producer.send(name, b"%d" % number))
        await asyncio.sleep(0.02)
    return Counter(result.partition for result in await asyncio.gather(*results))


def racks_in(partitions: Sequence[int] | Counter[int], racks: dict[int, str]) -> set[str]:
    return {racks[partition] for partition in partitions}


@pytest.mark.parametrize("partitioner", ["sticky", "round_robin", "random"])
def test_records_without_a_key_stay_in_the_rack(partitioner: str) -> None:
    @in_racks(*RACKS)
    async def run(cluster: Cluster) -> None:
        await is_spread(cluster)
        async with client_in(cluster, "west") as west, client_in(cluster) as unsaid:
            await west.create_topic("t", PARTITIONS)
            racks = await racks_of(cluster)
            assert racks_in(list(racks), racks) == {*RACKS.values()}
            async with west.producer(partitioner=partitioner) as producer:
                found = await sent(producer, 200)
                assert racks_in(found, racks) == {"west"}
                assert found.keys() == {number for number, rack in racks.items() if rack == "west"}
                keyed = [producer.send("t", b"v", key=b"%d" % number) for number in range(200)]
                assert len(Counter(each.partition for each in await asyncio.gather(*keyed))) == PARTITIONS
                named = [producer.send("t", b"v", partition=number) for number in range(PARTITIONS)]
                assert [each.partition for each in await asyncio.gather(*named)] == list(range(PARTITIONS))
            async with unsaid.producer(partitioner=partitioner) as producer:
                assert racks_in(await sent(producer, 200), racks) == {*RACKS.values()}

    run()


@in_racks(*RACKS)
async def test_batches_and_transactions_stay_in_the_rack(cluster: Cluster) -> None:
    await is_spread(cluster)
    async with client_in(cluster, "south") as client:
        await client.create_topic("t", PARTITIONS)
        racks = await racks_of(cluster)
        async with client.producer() as producer:
            for _ in range(40):
                await producer.send_batch("t", pa.table({"value": [b"a", b"b"]}))
        async with client.transactions("orders") as transactions:
            for _ in range(10):
                async with transactions.begin() as transaction:
                    for _ in range(4):
                        transaction.send("t", b"v")
        await asyncio.sleep(1)  # what is committed becomes visible
        values = await read_values(client, "t")
        assert {racks[number] for number, each in values.items() if each} == {"south"}
        assert sum(map(len, values.values())) == 120


@in_racks(*RACKS)
async def test_after_a_takeover_records_follow_the_rack_and_none_is_lost(cluster: Cluster) -> None:
    """While no broker is in the rack they go everywhere; when one is there again, back to it."""
    await is_spread(cluster)
    async with client_in(cluster, "east", metadata_age_s_max=5) as client:
        await client.create_topic("t", PARTITIONS)
        stored = 0
        async with client.producer(linger_ms=0) as producer:
            assert racks_in(await sent(producer, 50), await racks_of(cluster)) == {"east"}
            await cluster.stop("a:1", graceful=False)
            found = await sent(producer, 500)
            stored += 550
            racks = await racks_of(cluster)
            assert racks_in(list(racks), racks) == {"west", "south"}
            await asyncio.sleep(10)
            found = await sent(producer, 200)
            stored += 200
            assert racks_in(found, racks) == {"west", "south"}
            assert len(found) == PARTITIONS
            await cluster.start("a:1")
            await is_spread(cluster)
            await asyncio.sleep(30)
            await sent(producer, 50)
            stored += 50
            await asyncio.sleep(10)
            assert racks_in(await sent(producer, 200), await racks_of(cluster)) == {"east"}
            stored += 200
        values = await read_values(client, "t")
        assert sum(map(len, values.values())) == stored


@in_racks(*RACKS)
async def test_a_topic_with_one_partition_and_one_with_levels(cluster: Cluster) -> None:
    await is_spread(cluster)
    async with client_in(cluster, "east") as client:
        await client.create_topic("one", 1)
        await client.create_topic("t", PARTITIONS, {"priority.levels": "3"})
        racks = await racks_of(cluster)
        async with client.producer() as producer:
            assert await sent(producer, 20, "one") == {0: 20}
            for priority in range(3):
                there = {racks[number] for number in range(PARTITIONS) if number % 3 == priority}
                results = [producer.send("t", b"v", priority=priority) for _ in range(20)]
                for _ in range(20):
                    results.append(producer.send("t", b"v", priority=priority))
                    await asyncio.sleep(0.02)
                found = {each.partition for each in await asyncio.gather(*results)}
                assert {number % 3 for number in found} == {priority}
                if "east" in there:
                    assert {racks[number] for number in found} == {"east"}


@in_racks(*RACKS)
async def test_brokers_that_name_no_racks_are_all_alike(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of an earlier release."""
    await is_spread(cluster)
    for broker in cluster.brokers.values():
        monkeypatch.setattr(broker.ownership, "racks_of", lambda bundles: {})
    async with client_in(cluster, "east") as client:
        await client.create_topic("t", PARTITIONS)
        async with client.producer() as producer:
            found = await sent(producer, 200)
        assert len(found) == PARTITIONS


@in_racks(*RACKS)
async def test_answers_name_the_racks_of_owners_and_lists_do_not(cluster: Cluster) -> None:
    await is_spread(cluster)
    created = await cluster.create("t", PARTITIONS)
    assert dict(created.racks) == RACKS
    line = cluster.line("b:1")
    [found] = (await line.describe_topics(pb.DescribeTopicsRequest(topics=["t"]))).topics
    assert dict(found.racks) == RACKS
    [listed] = (await line.describe_topics(pb.DescribeTopicsRequest())).topics
    assert listed.name == "t"
    assert not listed.racks


@in_racks(*RACKS)
async def test_members_of_a_group_have_the_rack_of_their_program(cluster: Cluster) -> None:
    await is_spread(cluster)
    async with client_in(cluster, "east") as east, client_in(cluster, "west") as west:
        await east.create_topic("t", PARTITIONS)
        racks = await racks_of(cluster)
        async with east.consumer("t", group="g") as one, west.consumer("t", group="g", rack="south") as other:
            await asyncio.gather(one.wait_ready(), other.wait_ready())
            members = (await east.groups.describe("g")).members
            assert sorted(member.rack for member in members) == ["east", "south"]
            await until(lambda: len(one.assignment) == len(other.assignment) == PARTITIONS // 2, 60)
            near = {number for number, rack in racks.items() if rack == "east"}
            assert {each.partition for each in one.assignment} >= near
