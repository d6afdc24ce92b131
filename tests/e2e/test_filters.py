"""Filters on brokers in virtual time: consumers get what passes, and what does not pass is not sent."""

from __future__ import annotations

import asyncio
import random

import pytest

import ledgermq
from ledgermq_broker.paths import received_batches
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.expiring import read, values
from tests.e2e.filtering import FILTERS, TAGS, noted_fetches, send, send_in_batches
from tests.e2e.test_client_takeover import client_of

fetched = pytest.fixture(noted_fetches)

# -- consumers without a group


@pytest.mark.parametrize("text", FILTERS)
def test_a_consumer_gets_what_passes_however_it_reads(text: str) -> None:
    expected = [number for number in range(100) if FILTERS[text](number)]

    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", 1)
            for first in range(0, 100, 20):
                await send(client, "t", range(first, first + 20))
            await send(client, "t", range(100, 100), batch_bytes_max=1)
            assert await read(client, "t", filter=text) == expected
            table = await client.read_arrow("t", filter=text)
            assert table.column("value").to_pylist() == [b"%d" % number for number in expected]
            assert table.column("offset").to_pylist() == expected
            for count in (1, 7, 1000):
                async with client.consumer("t", until_end=True, filter=text) as consumer:
                    got: list[ledgermq.Message] = []
                    await consumer.wait_ready()
                    while not consumer.at_end:
                        got += await consumer.fetch(count, timeout=100)
                    assert values(got) == [message.offset for message in got] == expected
                    assert (consumer.position(0), consumer.filtered) == (100, 100 - len(expected))

    life()


@in_cluster("a:1")
async def test_reading_ends_at_once_where_nothing_passes(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(50))
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        async with client.consumer("t", until_end=True, filter="none") as consumer:
            assert await consumer.fetch(timeout=1000) == []
            assert consumer.at_end
        assert loop.time() - begin_s < 30
        async with client.consumer("t", start="latest", filter="A") as consumer:
            await consumer.wait_ready()
            waiting = asyncio.create_task(anext(consumer))
            await send(client, "t", range(1, 8))
            assert values([await waiting]) == [4]
            begin_s = loop.time()
            assert await consumer.fetch(timeout=2) == []
            assert consumer.position(0) == 57
            assert loop.time() - begin_s < 10


@in_cluster("a:1")
async def test_a_seek_into_what_was_filtered_reads_on_from_there(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(40))
        async with client.consumer("t", filter="A", end="latest") as consumer:
            assert values(await consumer.fetch(3)) == [0, 4, 8]
            assert consumer.position(0) == 9
            await consumer.seek(17, 0)
            assert values(await consumer.fetch(2)) == [20, 24]
            await consumer.seek("earliest")
            assert values([message async for message in consumer]) == list(range(0, 40, 4))


@in_cluster("a:1")
async def test_what_is_filtered_does_not_expire_and_what_expires_is_not_filtered(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            for number in range(20):
                producer.send("t", f"{number}", tag=TAGS[number % 4], ttl=10 if number < 10 else None)
        await asyncio.sleep(11)
        async with client.consumer("t", until_end=True, filter="A || B") as consumer:
            assert values([message async for message in consumer]) == [12, 13, 16, 17]
            assert (consumer.expired, consumer.filtered, consumer.position(0)) == (6, 10, 20)


@in_cluster("a:1")
async def test_a_filter_that_leaves_out_everything_keeps_nothing_else_from_running(cluster: Cluster) -> None:
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(batch_bytes_max=2000) as producer:
            for _ in range(2000):
                producer.send("t", bytes(100), tag="B")
        async with client.consumer("t", until_end=True, filter="TAGS = 'A'") as consumer:  # the broker sends all
            await consumer.wait_ready()
            while consumer._reader._prefetch.held_bytes < 100_000:
                await asyncio.sleep(0.01)
            batches = len(consumer._reader._prefetch.runs)
            working = asyncio.create_task(other_work())
            assert [message async for message in consumer] == []
            working.cancel()
            assert turns >= batches > 50


@in_cluster("a:1", "b:1")
async def test_batches_without_a_rare_tag_are_not_sent(cluster: Cluster, fetched: list[int]) -> None:
    """Those in memory, and those that a new owner reads from segments."""
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        tags = ["rare" if number % 50 == 20 else random.Random(number).choice(TAGS) for number in range(200)]
        await send_in_batches(client, "t", tags)
        rare = [offset for number in (20, 70, 120, 170) for offset in range(10 * number, 10 * number + 10)]
        for _ in range(2):
            fetched.clear()
            async with client.consumer("t", until_end=True, filter="rare || other") as consumer:
                assert [message.offset async for message in consumer] == rare
                assert (consumer.position(0), consumer.filtered) == (2000, 1960)
            assert fetched == [200, 700, 1200, 1700]
            fetched.clear()
            async with client.consumer("t", until_end=True, filter="TAGS = 'rare'") as consumer:
                assert [message.offset async for message in consumer] == rare
            assert len(fetched) > 50, "conditions are judged by the client alone"
            if len(cluster.brokers) == 2:
                await cluster.stop("a:1", graceful=False)
                await cluster.settled()


@in_cluster("a:1")
async def test_a_broker_that_does_not_leave_out_is_read_alike(
    cluster: Cluster, fetched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier release: it ignores what it does not know, and stores batches without summary."""
    monkeypatch.setattr(received_batches, "summary_of", lambda tags: 0)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send_in_batches(client, "t", ["A", "B"] * 10)
        async with client.consumer("t", until_end=True, filter="A") as consumer:
            assert len([message async for message in consumer]) == 100
            assert consumer.filtered == 100
        assert fetched == list(range(0, 200, 10))
