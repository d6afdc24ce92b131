"""Draining producers and consumers without a group, and functions that get the result of one record."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import ledgermq
import ledgermq.sync
from ledgermq.errors import Closed, DeadlineExceeded, InvalidRecord, MessageTooLarge, UnknownTopic
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.test_client_takeover import client_of
from tests.worlds.consumed import read_values

SMALL = {"max.message.bytes": 1000}


@in_cluster("a:1")
async def test_a_drained_producer_has_sent_everything_and_takes_nothing_more(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        producer = client.producer(linger_ms=60_000)
        sent = [producer.send("t", b"%d" % number, partition=number % 2) for number in range(10)]
        late = producer.send("t", b"later", delay=30, partition=0)
        assert await producer.drain() == []
        assert all(delivery.done() for delivery in [*sent, late])
        assert producer.draining
        assert not producer.closed
        for take in (
            lambda: producer.send("t", b"v"),
            lambda: producer.send("t", b"v", key=b"k"),
            lambda: producer.send("t", b"v", delay=1),
        ):
            with pytest.raises(Closed, match="is drained"):
                take()
        with pytest.raises(Closed, match="is drained"):
            await producer.send_many("t", [b"v"])
        with pytest.raises(Closed, match="is drained"):
            await producer.wait_for_room()
        assert await producer.drain() == []
        await producer.flush()
        await producer.close()
        values = await read_values(client, "t")
        assert {partition: sorted(found) for partition, found in values.items()} == {
            0: [b"0", b"2", b"4", b"6", b"8"],
            1: [b"1", b"3", b"5", b"7", b"9"],
        }


@pytest.mark.parametrize("raises", [True, False])
def test_it_names_what_failed(raises: bool) -> None:
    @in_cluster("a:1")
    async def run(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", 1, settings=SMALL)
            producer = client.producer(auto_create=False, raise_on_error=raises, linger_ms=1000)
            await producer.send("t", b"known")
            seen = producer.send("nowhere", b"v")
            await seen.wait()
            assert isinstance(seen.exception(), UnknownTopic)
            producer.send("nowhere", b"unseen")
            await asyncio.sleep(10)
            large = producer.send("t", bytes(900), key=bytes(200), partition=0) if not raises else None
            for _ in range(3):
                producer.send("elsewhere", b"v")
            stored = producer.send("t", b"v")
            failed = await producer.drain()
            assert (await stored).success
            assert all(not result.success and result.offset is None for result in failed)
            names = [(result.topic, type(result.error)) for result in failed]
            assert names.count(("elsewhere", UnknownTopic)) == 3
            assert names.count(("nowhere", UnknownTopic)) == 1
            assert names.count(("t", MessageTooLarge)) == (large is not None)
            assert len(names) == 4 + (large is not None)
            assert await producer.drain() == []
            await producer.close()

    run()


@in_cluster("a:1")
async def test_a_drain_that_takes_too_long_may_be_repeated(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        producer = client.producer()
        await producer.send("t", b"first")
        cluster.views["a:1"].pause()
        delivery = producer.send("t", b"second")
        with pytest.raises(DeadlineExceeded, match="not stored after 2 s"):
            await producer.drain(timeout=2)
        assert not delivery.done()
        cluster.views["a:1"].resume()
        assert await producer.drain() == []
        assert (await delivery).offset == 1
        await producer.close()


@in_cluster("a:1")
async def test_on_delivery_of_one_record(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        every: list[ledgermq.SendResult] = []
        one: list[ledgermq.SendResult] = []
        async with client.producer(auto_create=False, on_delivery=every.append) as producer:
            await producer.send("t", b"a")
            await producer.send("t", b"b", on_delivery=one.append)
            producer.send("nowhere", b"c", on_delivery=one.append)
            await producer.send("t", b"d", delay=5, on_delivery=one.append)
            with pytest.raises(InvalidRecord):
                producer.send("t", 5, on_delivery=one.append)
            await producer.flush()
        assert len(every) == 4
        assert [(result.topic, result.success) for result in one] == [("t", True), ("t", True), ("nowhere", False)]
        assert one[0].offset == 1
        async with client.producer() as plain:
            for _ in range(3):
                plain.send("t", b"v", on_delivery=one.append)
            await plain.flush()
        assert [result.offset for result in one[3:]] == [2, 3, 4]
        async with client.transactions("id") as transactions, transactions.begin() as transaction:
            await transaction.send("t", b"v", on_delivery=one.append)
            await asyncio.sleep(0)
            assert one[-1].offset is None


@in_cluster("a:1")
async def test_a_drained_consumer_ends_its_loop_after_the_message_in_hand(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            await producer.send_many("t", [b"%d" % number for number in range(10)])
        consumer = client.consumer("t")
        done: list[int] = []
        begun = asyncio.Event()

        async def work() -> None:
            async for message in consumer:
                begun.set()
                await asyncio.sleep(5)
                done.append(message.offset)

        working = asyncio.create_task(work())
        await begun.wait()
        with pytest.raises(DeadlineExceeded, match="not finished its messages within 1 s"):
            await consumer.drain(timeout=1)
        await consumer.drain()
        assert done == [0]
        await working
        assert consumer.state == "draining"
        assert consumer.position(0) == 1
        assert await consumer.fetch(timeout=60) == []
        assert (await consumer.fetch_arrow(timeout=60)).num_rows == 0
        await consumer.close()
        assert consumer.state == "closed"


@in_cluster("a:1")
async def test_a_consumer_that_waits_for_messages_is_drained_at_once(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        for waits in ("iterates", "fetches"):
            consumer = client.consumer("t")

            async def wait(consumer: ledgermq.Consumer = consumer, waits: str = waits) -> list[ledgermq.Message]:
                if waits == "iterates":
                    return [message async for message in consumer]
                return await consumer.fetch(timeout=3600)

            waiting = asyncio.create_task(wait())
            await asyncio.sleep(2)
            begun_s = asyncio.get_running_loop().time()
            await consumer.drain()
            assert await waiting == []
            assert asyncio.get_running_loop().time() - begun_s < 1
            await consumer.close()


@in_cluster("a:1")
async def test_the_task_that_reads_may_drain(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        async with client.producer() as producer:
            await producer.send_many("t", [ledgermq.Record(b"v", partition=number % 2) for number in range(20)])
        read = 0
        async with client.consumer("t") as consumer:
            async for _ in consumer:
                read += 1
                if read == 5:
                    await consumer.drain()
        assert read == 5
        assert sum(consumer.positions().values()) == 5
        fresh = client.consumer("t")
        await fresh.drain()
        assert await fresh.fetch() == []


def test_the_synchronous_client_drains_too(tmp_path: Path) -> None:
    with ledgermq.sync.connect(tmp_path.as_uri()) as client:
        client.create_topic("t", partitions=1)
        results: list[ledgermq.SendResult] = []
        called = threading.Event()

        def on_delivery(result: ledgermq.SendResult) -> None:
            results.append(result)
            called.set()

        producer = client.producer(linger_ms=60_000)
        producer.send("t", b"0", on_delivery=on_delivery)
        producer.send_many("t", [b"%d" % number for number in range(1, 100)])
        assert producer.drain() == []
        assert called.wait(60)
        assert [result.offset for result in results] == [0]
        with pytest.raises(Closed, match="is drained"):
            producer.send("t", b"v")
        producer.close()
        with client.consumer("t") as consumer:
            read = []
            for message in consumer:
                read.append(message.offset)
                if len(read) == 7:
                    consumer.drain()
            assert read == list(range(7))
            assert consumer.position(0) == 7
            assert consumer.state == "draining"
