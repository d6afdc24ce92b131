"""`message.timestamp.after.max.ms`: no record of the future stops retention of those before it."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

import ledgermq
from ledgermq.cli.admin.status import FutureRecord, future_records
from ledgermq.client.messages.record import datetime_of
from ledgermq.errors import InvalidRecord
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.retrying import all_of
from tests.e2e.test_client_takeover import client_of
from tests.virtual_time import virtual_sources

HOUR_US = 3_600_000_000


def now_us() -> int:
    return virtual_sources(1).now_us()


async def values_of(client: ledgermq.Client, topic: str) -> list[bytes | None]:
    return [message.value for message in await all_of(client, topic)]


@in_cluster("a:1")
async def test_a_record_of_the_future_is_refused_and_no_other_with_it(cluster: Cluster) -> None:
    async with client_of(cluster) as client, client.producer(linger_ms=100) as producer:
        await client.create_topic("t", 1)
        await producer.send("t", "first")
        sent = [
            producer.send("t", "before"),
            producer.send("t", "future", timestamp=now_us() + HOUR_US + 60_000_000),
            producer.send("t", "edge", timestamp=now_us() + HOUR_US - 1_000_000),
            producer.send("t", "after"),
        ]
        for number in (0, 2, 3):
            await sent[number]
        with pytest.raises(InvalidRecord, match=r"36\d\d s ahead .* takes up to 3600 s"):
            await sent[1]
        assert await values_of(client, "t") == [b"first", b"before", b"edge", b"after"]


@in_cluster("a:1")
async def test_nothing_of_a_table_with_such_a_row_is_stored(cluster: Cluster) -> None:
    async with client_of(cluster) as client, client.producer() as producer:
        await client.create_topic("t", 1)
        times = pa.array([now_us(), now_us() + 2 * HOUR_US], pa.timestamp("us", "UTC"))
        with pytest.raises(InvalidRecord, match="None of the batch is stored"):
            await (await producer.send_batch("t", pa.table({"value": ["a", "b"], "timestamp": times})))
        assert await values_of(client, "t") == []
        await client.alter_topic("t", settings={"message.timestamp.after.max.ms": "3h"})
        await (await producer.send_batch("t", pa.table({"value": ["a", "b"], "timestamp": times})))
        assert await values_of(client, "t") == [b"a", b"b"]


@in_cluster("a:1")
async def test_where_brokers_set_the_time_a_producers_may_be_anything(cluster: Cluster) -> None:
    async with client_of(cluster) as client, client.producer() as producer:
        await client.create_topic("t", 1, settings={"message.timestamp.type": "LogAppendTime"})
        await producer.send("t", "a", timestamp=now_us() + 24 * HOUR_US)
        [message] = await all_of(client, "t")
        assert message.timestamp_us is not None
        assert abs(message.timestamp_us - now_us()) < HOUR_US


@in_cluster("a:1")
async def test_delayed_messages_may_be_due_later_also_in_a_transaction(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            await producer.send("t", "late", delay=86_400)
        async with client.transactions("mover") as transactions:
            async with transactions.begin() as transaction:
                transaction.send("t", "later", delay=86_400)
                transaction.send("t", "now")
            with pytest.raises(InvalidRecord, match=r"message\.timestamp\.after\.max\.ms"):
                async with transactions.begin() as transaction:
                    await transaction.send("t", "future", timestamp=now_us() + 2 * HOUR_US)
        assert await values_of(client, "t") == [b"now"]


@in_cluster("a:1")
async def test_a_stored_one_can_be_copied_and_status_names_it(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2, settings={"message.timestamp.after.max.ms": "-1", "retention.ms": "1d"})
        await client.create_topic("forever", 1, settings={"message.timestamp.after.max.ms": "-1"})
        async with client.producer() as producer:
            for topic in ("t", "forever"):
                await producer.send(topic, "now", partition=0)
                await producer.send(topic, "future", partition=0, timestamp=now_us() + 24 * HOUR_US)
            await producer.send("t", "now", partition=1)
        async with client.queue("t", group="g", attempts_max=1) as queue:
            for message in await queue.fetch(timeout=5):
                assert await message.nack()
        assert sorted(await values_of(client, "g.dlq")) == [b"future", b"now", b"now"]  # type: ignore[type-var]
        found = await future_records(client, await client.list_topics(), datetime_of(now_us()), 5)
        assert found == [FutureRecord("t", 0, 1)]
        later = datetime_of(now_us()) + timedelta(days=1)
        assert await future_records(client, await client.list_topics(), later, 5) == []


@in_cluster("a:1")
async def test_a_record_of_the_past_is_refused_where_the_topic_bounds_it(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings={"message.timestamp.before.max.ms": "1d"})
        await client.create_topic("free", 1)
        async with client.producer(linger_ms=100) as producer:
            sent = [
                producer.send("t", "before"),
                producer.send("t", "past", timestamp=now_us() - 25 * HOUR_US),
                producer.send("t", "edge", timestamp=now_us() - 23 * HOUR_US),
            ]
            for number in (0, 2):
                await sent[number]
            with pytest.raises(InvalidRecord, match=r"\d{5} s behind .* 86400 s \(message\.timestamp\.before\.max"):
                await sent[1]
            await producer.send("free", "past", timestamp=1)
            await producer.send("t", "late", delay=86_400)
        async with client.transactions("mover") as transactions:
            with pytest.raises(InvalidRecord, match=r"message\.timestamp\.before\.max\.ms"):
                async with transactions.begin() as transaction:
                    await transaction.send("t", "past", timestamp=1)
        assert await values_of(client, "t") == [b"before", b"edge"]
        assert await values_of(client, "free") == [b"past"]
