"""Delayed messages through the client, in a cluster of brokers in this process and in virtual time: each
comes once, not early, in the order of due times, and not at all after a recall.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

import ledgermq
from ledgermq import errors
from ledgermq.client.messages.record import datetime_of
from ledgermq.client.settings.values import ClientSettings
from ledgermq_broker.ports.in_process import InProcessConnector
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.virtual_time import EPOCH_US, virtual, virtual_sources

HOUR_S = 3600
LATE_S = 2.0
"""How late a message may come while all is well."""
RECALLED, TOO_LATE, FORGOTTEN = ledgermq.RecallOutcome


def now_s() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def client_of(cluster: Cluster, *, skew_s: float = 0) -> AsyncIterator[ledgermq.Client]:
    """`skew_s`: how far the client's clock is ahead of the store's."""
    sources = virtual_sources(next(cluster.client_seeds), round(skew_s * 1e6))
    settings = ClientSettings(attempt_timeout_s=3)
    async with ledgermq.Client(InProcessConnector(cluster.network), list(cluster.brokers), settings, sources) as client:
        yield client


class Reader:
    """Reads a topic from its beginning. `seen`: (message, when it came)."""

    def __init__(self, client: ledgermq.Client, topic: str) -> None:
        self.seen: list[tuple[ledgermq.Message, float]] = []
        self._consumer = client.consumer(topic)
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with self._consumer as consumer:
            async for message in consumer:
                self.seen.append((message, now_s()))

    @property
    def values(self) -> list[bytes | None]:
        return [message.value for message, _ in self.seen]

    async def until(self, count: int) -> list[bytes | None]:
        async with asyncio.timeout(60):
            while len(self.seen) < count:
                await asyncio.sleep(0.05)
        return self.values

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


@asynccontextmanager
async def reading(client: ledgermq.Client, topic: str) -> AsyncIterator[Reader]:
    reader = Reader(client, topic)
    try:
        yield reader
    finally:
        await reader.close()


@in_cluster("a:1")
async def test_messages_come_in_the_order_of_their_due_times_among_others(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with client_of(cluster) as client, reading(client, "t") as reader, client.producer() as producer:
        begun_s = now_s()
        level = producer.send("t", b"level", delay_level=3)
        due = datetime_of(EPOCH_US + round(now_s() * 1e6)) + timedelta(seconds=7)
        producer.send("t", b"time", key=b"k", headers={"h": b"1"}, tag="x", deliver_at=due)
        producer.send("t", b"delay", delay=timedelta(seconds=3))
        past = await producer.send("t", b"past", deliver_at=due - timedelta(days=400))
        await producer.send("t", b"now")
        assert (await level).offset is None
        await asyncio.sleep(20)
        assert sorted(reader.values[:2]) == [b"now", b"past"]
        assert reader.values[2:] == [b"delay", b"time", b"level"]
        for (message, came_s), after_s in zip(reader.seen[2:], (3, 7, 10), strict=True):
            assert 0 <= came_s - begun_s - after_s < LATE_S, message
        timed = reader.seen[3][0]
        assert (timed.key, timed.tag, dict(timed.headers), timed.timestamp) == (b"k", "x", {"h": b"1"}, due)
        assert [message.offset for message, _ in reader.seen] == list(range(5))
        found = next(message for message, _ in reader.seen if message.value == b"past")
        assert found.timestamp_us == past.timestamp_us


@in_cluster("a:1")
async def test_a_recalled_message_never_comes_and_a_delivered_one_is_too_late(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with client_of(cluster) as client, reading(client, "t") as reader, client.producer() as producer:
        sent = [await producer.send("t", b"%d" % number, delay=5) for number in range(3)]
        handles = [result.handle or "" for result in sent]
        assert [await client.recall(handles[1]) for _ in range(2)] == [RECALLED, RECALLED]
        await asyncio.sleep(10)
        assert reader.values == [b"0", b"2"]
        assert [await client.recall(handle) for handle in handles] == [TOO_LATE, RECALLED, TOO_LATE]


@in_cluster("a:1")
async def test_a_recall_after_hours_is_forgotten(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with client_of(cluster) as client, client.producer() as producer:
        handle = (await producer.send("t", b"v", delay=1)).handle or ""
        await asyncio.sleep(1.1 * HOUR_S)
        await producer.send("t", b"another", delay=1)  # delivery goes on, and with it what is forgotten
        await asyncio.sleep(10)
        assert await client.recall(handle) is FORGOTTEN


@in_cluster("a:1")
async def test_waiting_messages_are_listed_with_handles_that_recall_them(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await cluster.create("other", 1)
    async with client_of(cluster) as client, client.producer() as producer:
        assert await client.list_delayed() == ledgermq.DelayedList((), 0, (), {})
        sent = [
            await producer.send("t", b"%d" % number, key=b"k", partition=number % 2, delay=60 - number)
            for number in range(4)
        ]
        await producer.send("other", b"v", delay=50)
        found = await client.list_delayed("t")
        assert [(each.partition, each.key, each.due) for each in found.messages] == [
            (result.partition, b"k", result.timestamp) for result in reversed(sent)
        ]
        assert {each.handle for each in found.messages} == {result.handle for result in sent}
        assert sum(bundle.messages for bundle in found.bundles) == 5
        assert [each.partition for each in (await client.list_delayed("t", 1)).messages] == [1, 1]
        everything = await client.list_delayed(messages_max=2)
        assert [each.topic for each in everything.messages] == ["other", "t"]
        assert everything.left == 3
        [first, *_] = found.messages
        assert await client.recall(first.handle or "") is RECALLED
        assert first.handle not in {each.handle for each in (await client.list_delayed("t")).messages}


@in_cluster("a:1")
async def test_a_wrong_clock_of_the_client_delivers_nothing_early_or_late(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    for skew_s in (-HOUR_S, HOUR_S):
        async with client_of(cluster, skew_s=skew_s) as client, reading(client, "t") as reader:
            begun_s = now_s()
            before = len(await reader.until(0))
            async with client.producer() as producer:
                await producer.send("t", b"v", delay=5)
            await asyncio.sleep(10)
            assert 5 <= reader.seen[-1][1] - begun_s < 5 + LATE_S
            assert len(reader.seen) > before


@in_cluster("a:1")
async def test_records_of_one_batch_with_times_and_delays_keep_their_own(cluster: Cluster) -> None:
    """The client's clock is an hour ahead: delays are corrected, times are not."""
    await cluster.create("t", 1)
    async with (
        client_of(cluster, skew_s=HOUR_S) as client,
        reading(client, "t") as reader,
        client.producer(linger_ms=1000) as producer,
    ):
        await producer.send("t", b"first", delay=0)
        begun_us = EPOCH_US + round(now_s() * 1e6)
        at = datetime_of(begun_us) + timedelta(seconds=20)
        sent = [
            producer.send("t", b"5", delay=5),
            producer.send("t", b"20", deliver_at=at),
            producer.send("t", b"10", delay_level=3),
            producer.send("t", "15", delay=timedelta(seconds=15)),
            producer.send("t", b"25", key=b"k", partition=0, delay=25),
            producer.send("t", b"30", delay=30.0),
        ]
        results = [await delivery for delivery in sent]
        assert len({result.handle for result in results}) == len(sent)
        for result, after_s in zip(results, (5, 20, 10, 15, 25, 30), strict=True):
            assert abs(result.timestamp_us - begun_us - after_s * 1_000_000) < LATE_S * 1e6
        assert results[1].timestamp_us == begun_us + 20_000_000
        assert await reader.until(7) == [b"first", b"5", b"10", b"15", b"20", b"25", b"30"]


@in_cluster("a:1")
async def test_a_producer_that_ends_takes_no_further_delayed_record(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with client_of(cluster) as client, reading(client, "t") as reader:
        producer = client.producer(linger_ms=1000)
        await producer.send("t", b"first", delay=0)
        producer.send("t", b"second", delay=1)
        producer.send("t", b"third", delay=1)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        with pytest.raises(errors.Closed, match="the producer is closed"):
            producer.send("t", b"late", delay=1)
        await closing
        assert await reader.until(3) == [b"first", b"second", b"third"]


@in_cluster("a:1")
async def test_what_waits_for_a_deleted_topic_is_dropped(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with client_of(cluster) as client, client.producer() as producer:
        handle = (await producer.send("t", b"old", delay=20)).handle or ""
        await client.delete_topic("t")
        with pytest.raises((errors.UnknownTopic, errors.TopicBeingDeleted)):
            await client.recall(handle)
        async with asyncio.timeout(15):
            while True:
                try:
                    await client.create_topic("t", 1)
                    break
                except errors.TopicBeingDeleted:
                    await asyncio.sleep(1)
        with pytest.raises(errors.UnknownTopic):
            await client.recall(handle)
        async with reading(client, "t") as reader:
            await producer.send("t", b"new", delay=30)
            await asyncio.sleep(40)
            assert reader.values == [b"new"]


async def send_all(producer: ledgermq.Producer, count: int, **more: Any) -> list[ledgermq.SendResult]:
    """Send numbers to two partitions, over ten seconds; each is due when the last one was sent."""
    deliveries = []
    for number in range(count):
        deliveries.append(producer.send("t", b"%d" % number, partition=number % 2, delay=15 - 10 * number / count))
        await asyncio.sleep(10 / count)
    return [await delivery for delivery in deliveries]


@virtual
async def test_each_message_comes_once_although_brokers_die() -> None:
    async with cluster_of("a:1", "b:1") as cluster:
        await cluster.create("t", 2)
        async with client_of(cluster) as client, reading(client, "t") as reader, client.producer() as producer:
            sending = asyncio.create_task(send_all(producer, 60))
            await asyncio.sleep(4)
            victim = await cluster.owner_of("t", 0)
            await cluster.stop(victim, graceful=False)
            await asyncio.sleep(4)
            await cluster.start(victim)
            sent = await sending
            await asyncio.sleep(1)
            await cluster.stop(await cluster.owner_of("t", 1), graceful=False)
            await reader.until(60)
            await asyncio.sleep(10)
            assert sorted(int(value or b"-1") for value in reader.values) == list(range(60))
            assert {await client.recall(result.handle or "") for result in sent[:4]} == {TOO_LATE}


@virtual
async def test_a_recall_holds_for_the_next_owner() -> None:
    async with cluster_of("a:1", "b:1") as cluster:
        await cluster.create("t", 1)
        async with client_of(cluster) as client, reading(client, "t") as reader, client.producer() as producer:
            handles = [(await producer.send("t", b"%d" % number, delay=15)).handle or "" for number in range(2)]
            assert await client.recall(handles[0]) is RECALLED
            await cluster.stop(await cluster.owner_of("t", 0), graceful=False)
            assert await client.recall(handles[0]) is RECALLED
            await reader.until(1)
            await asyncio.sleep(5)
            assert reader.values == [b"1"]


@in_cluster("a:1")
async def test_a_message_whose_sender_left_before_it_was_stored_is_not_passed_by(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    async with client_of(cluster) as client, reading(client, "t") as reader, client.producer() as producer:
        leaver = client.producer()
        await leaver.send("t", b"first", delay=0)
        await producer.send("t", b"third", delay=3)
        cluster.views["a:1"].pause()
        leaver.send("t", b"second", delay=2)
        await asyncio.sleep(1)
        await leaver.abort()
        await asyncio.sleep(3)
        cluster.views["a:1"].resume()
        await producer.send("t", b"fourth", delay=1)
        await reader.until(4)
        await cluster.stop("a:1", graceful=False)
        await cluster.start("a:1")
        await asyncio.sleep(10)
        assert reader.values == [b"first", b"second", b"third", b"fourth"]


@in_cluster("a:1", "b:1", bundles=4)
async def test_delayed_records_of_transactions_come_if_they_are_committed_by_the_brokers_clock(
    cluster: Cluster,
) -> None:
    """The client's clock is half an hour ahead, and it has asked no broker for the time before."""
    await cluster.create("t", 1)
    async with client_of(cluster, skew_s=HOUR_S / 2) as client, reading(client, "t") as reader:
        begun_s = now_s()
        async with client.transactions("orders") as transactions:
            async with transactions.begin() as transaction:
                delivery = transaction.send("t", b"later", delay=10)
                transaction.send("t", b"now")
                assert (await delivery).handle is None
            aborted = transactions.begin()
            await aborted.start()
            await aborted.send("t", b"never", delay=5)
            await aborted.abort()
        assert await reader.until(2) == [b"now", b"later"]
        assert 10 - LATE_S <= reader.seen[1][1] - begun_s <= 10 + LATE_S
        async with client.transactions.two_phase() as two_phase:
            await two_phase.tpc_begin("xid-1")
            await two_phase.send("t", b"prepared", delay=5)
            await two_phase.tpc_prepare()
            await two_phase.tpc_commit()
        async with client.transactions("orders") as transactions, transactions.begin() as transaction:
            await transaction.send("t", b"recalled", delay=30)
        await asyncio.sleep(2)
        [_, waiting] = sorted((await client.list_delayed("t")).messages, key=lambda found: found.due)
        assert waiting.handle is not None
        assert await client.recall(waiting.handle) is RECALLED
        assert await reader.until(3) == [b"now", b"later", b"prepared"]
        await asyncio.sleep(60)
        assert len(reader.seen) == 3


@in_cluster("a:1", bundles=3)
async def test_a_producer_waits_for_room_below_the_bound_of_its_topic(cluster: Cluster) -> None:
    """Many batches of one idempotent producer, most of them refused at first: each comes once."""
    async with client_of(cluster) as client:
        await client.create_topic("bounded", 2, {"delayed.pending.max": 4})
        async with (
            reading(client, "bounded") as reader,
            client.producer(linger_ms=0, batch_bytes_max=200, delivery_timeout_s=600) as producer,
        ):
            sending = []
            for number in range(60):
                sending.append(producer.send("bounded", b"%d" % number, partition=number % 2, delay=5))
                await asyncio.sleep(0.01)
            await asyncio.sleep(3)
            assert not all(delivery.done() for delivery in sending)
            await asyncio.gather(*sending)
            async with asyncio.timeout(600):
                while len(reader.seen) < 60:
                    await asyncio.sleep(0.5)
            await asyncio.sleep(30)
            assert sorted(int(value or b"-1") for value in reader.values) == list(range(60))
        async with client.producer(delivery_timeout_s=3) as hasty:
            await hasty.send("bounded", b"a", partition=0, delay=HOUR_S)
            await hasty.send("bounded", b"b", partition=0, delay=HOUR_S)
            with pytest.raises(errors.LedgerMQError, match=r"delayed\.pending\.max = 4"):
                await hasty.send("bounded", b"c", partition=0, delay=HOUR_S)
