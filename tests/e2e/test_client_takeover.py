"""The SDK on a cluster whose brokers die, in virtual time: no record is lost, doubled or out of
order, and no call hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import DeadlineExceeded, LedgerMQError, OutcomeUnknown, Unavailable
from ledgermq_broker.ports.in_process import InProcessConnector
from tests.broker.cluster import Cluster, in_cluster
from tests.virtual_time import virtual_sources
from tests.worlds.consumed import read_values


@asynccontextmanager
async def client_of(cluster: Cluster, *addresses: str, **settings: float) -> AsyncIterator[ledgermq.Client]:
    connector = InProcessConnector(cluster.network)
    known = addresses or tuple(cluster.brokers)
    async with ledgermq.Client(
        connector, known, ClientSettings(**settings), virtual_sources(next(cluster.client_seeds))
    ) as client:
        yield client


@in_cluster("a:1", "b:1", "c:1")
async def test_each_record_is_stored_once_and_in_order_while_owners_are_killed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 4)
        sent: dict[int, list[bytes]] = {partition: [] for partition in range(4)}
        async with client.producer(linger_ms=1, batch_bytes_max=300) as producer:
            for round_number in range(30):
                for number in range(20):
                    for partition, values in sent.items():
                        values.append(b"%d/%d" % (round_number, number))
                        producer.send("t", values[-1], partition=partition)
                await asyncio.sleep(0.05)
                if round_number in (5, 15):
                    await cluster.stop(await cluster.owner_of("t", 0), graceful=False)
                if round_number in (10, 20):
                    await cluster.start(f"new-{round_number}:1")
        assert await read_values(client, "t") == sent


@in_cluster("a:1", "b:1")
async def test_a_consumer_follows_the_partition_to_its_next_owner(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        producer = client.producer()
        received: list[bytes | None] = []

        async def consume() -> None:
            async for message in client.consumer("t"):
                received.append(message.value)
                if message.value == b"last":
                    return

        async with asyncio.TaskGroup() as group:
            group.create_task(consume())
            for number in range(10):
                await producer.send("t", b"%d" % number)
                if number == 4:
                    await cluster.stop(await cluster.owner_of("t", 0), graceful=False)
            await producer.send("t", b"last")
        assert received == [b"%d" % number for number in range(10)] + [b"last"]


@in_cluster("a:1", "b:1")
async def test_a_graceful_hand_over_is_not_noticed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        async with client.producer() as producer:
            await producer.send("t", b"before", partition=0)
            await cluster.stop(await cluster.owner_of("t", 0))
            result = await producer.send("t", b"after", partition=0)
            assert result.offset == 1


@in_cluster("a:1")
async def test_a_cluster_that_is_gone_is_a_typed_error_in_time(cluster: Cluster) -> None:
    async with client_of(cluster, timeout_s=5) as client:
        await client.create_topic("t", 1)
        producer = client.producer(delivery_timeout_s=5)
        consumer = client.consumer("t", request_timeout_s=5)
        await producer.send("t", b"1")
        assert len(await consumer.fetch()) == 1
        await cluster.stop("a:1", graceful=False)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises((DeadlineExceeded, OutcomeUnknown)):
            await producer.send("t", b"2")
        assert loop.time() - begun < 6
        with pytest.raises(Unavailable):
            await client.list_topics()
        with pytest.raises(Unavailable):
            await client.create_topic("u")
        with pytest.raises(Unavailable):
            await anext(consumer)
        assert consumer.state == "failing"
        assert await consumer.fetch(timeout=0.1) == []
        with pytest.raises(LedgerMQError):
            await consumer.end_offsets()
        assert loop.time() - begun < 40


@in_cluster("a:1")
async def test_a_cluster_that_comes_back_is_used_again(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        producer = client.producer()
        consumer = client.consumer("t")
        await producer.send("t", b"1")
        assert [m.value for m in await consumer.fetch()] == [b"1"]
        await cluster.stop("a:1", graceful=False)
        waiting = producer.send("t", b"2")
        await asyncio.sleep(10)
        await cluster.start("a:1")
        assert (await waiting).offset == 1
        assert [m.value for m in await consumer.fetch(timeout=20)] == [b"2"]
        assert consumer.last_error is None


@in_cluster("a:1", "b:1")
async def test_a_client_that_knows_one_broker_finds_the_others(cluster: Cluster) -> None:
    async with client_of(cluster, "a:1") as client:
        await client.create_topic("t", 8)
        async with client.producer() as producer:
            results = await asyncio.gather(*(producer.send("t", b"x", partition=p) for p in range(8)))
        assert [result.offset for result in results] == [0] * 8
        await cluster.stop("a:1", graceful=False)
        assert sum(map(len, (await read_values(client, "t")).values())) == 8


@in_cluster("a:1", "b:1")
async def test_brokers_that_do_not_answer_are_passed_over(cluster: Cluster) -> None:
    async with client_of(cluster, "nobody:1", "b:1") as client:
        assert await client.list_topics() == []


@in_cluster("a:1", "b:1", "c:1")
async def test_a_paused_owner_costs_a_wait_but_no_record(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(request_timeout_s=100) as producer:
            await producer.send("t", b"0")
            paused = await cluster.owner_of("t", 0)
            cluster.views[paused].pause()
            begun = asyncio.get_running_loop().time()
            results = await asyncio.gather(*(producer.send("t", b"%d" % number) for number in range(1, 20)))
            assert asyncio.get_running_loop().time() - begun < 15, (
                "others are asked long before the request's time is up"
            )
            cluster.views[paused].resume()
        assert [result.offset for result in results] == list(range(1, 20))
        assert await read_values(client, "t") == {0: [b"%d" % number for number in range(20)]}


@in_cluster("a:1", "b:1", "c:1")
async def test_a_consumer_leaves_an_owner_that_stands_still(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        consumer, producer = client.consumer("t"), client.producer()
        await producer.send("t", b"0")
        assert (await anext(consumer)).value == b"0"
        cluster.views[await cluster.owner_of("t", 0)].pause()
        await producer.send("t", b"1")
        begun = asyncio.get_running_loop().time()
        assert (await anext(consumer)).value == b"1"
        assert asyncio.get_running_loop().time() - begun < 15


@in_cluster("a:1", "b:1")
async def test_clients_of_an_owner_that_stands_still_go_on_within_a_second_of_the_next(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        consumer, producer = client.consumer("t"), client.producer()
        await producer.send("t", b"0")
        assert (await anext(consumer)).value == b"0"
        stopped = await cluster.owner_of("t", 0)
        other = next(address for address in cluster.brokers if address != stopped)
        cluster.views[stopped].pause()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        cluster.brokers[other].ownership.report_lost(cluster.brokers[stopped].broker_id, False)  # what a lost ping says
        await producer.send("t", b"1")
        acknowledged = loop.time()
        assert (await anext(consumer)).value == b"1"
        taken = begun + 3.0  # a heartbeat's interval and two seconds, and a moment
        assert acknowledged < taken + 1.0
        assert loop.time() < taken + 1.0
        cluster.views[stopped].resume()


@in_cluster("a:1", "b:1")
async def test_a_consumer_that_was_idle_for_long_goes_on(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 4)
        async with client.consumer("t") as consumer:
            assert await consumer.fetch(timeout=300) == []
            assert asyncio.get_running_loop().time() > 300
            assert consumer.state == "running"
            await client.producer().send("t", b"at last")
            assert (await anext(consumer)).value == b"at last"
