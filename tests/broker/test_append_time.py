"""Topics with `message.timestamp.type = LogAppendTime`, through clients: whatever way a record comes in, it
has the time at which the owner appended it.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import ledgermq
from ledgermq.client.messages.record import datetime_of, microseconds_of
from ledgermq.errors import InvalidConfig
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.broker.test_keyed_topics import AGES, KEYED, clean, put, restart
from tests.e2e.test_client_takeover import client_of
from tests.virtual_time import EPOCH_US, virtual, virtual_sources
from tests.worlds.ledgers import batch

APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)
SLACK_US = 2_000_000
"""The store's clock is estimated from below."""


def now_us() -> int:
    return EPOCH_US + round(asyncio.get_running_loop().time() * 1_000_000)


async def read(client: ledgermq.Client, topic: str) -> list[ledgermq.Message]:
    async with client.consumer(topic, start="earliest", until_end=True) as consumer:
        return [message async for message in consumer]


@in_cluster("a:1", "b:1")
async def test_records_have_the_time_of_their_append_and_results_show_it(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings=APPEND_TIME)
        for compression in ("none", "lz4", "zstd"):
            before_us = now_us()
            async with client.producer(compression=compression) as producer:
                sent = [
                    producer.send("t", b"v" * 5000, key=b"k", headers=[("h", b"1")], tag="a", timestamp=LONG_AGO),
                    producer.send("t", None, timestamp=datetime(2500, 1, 1, tzinfo=UTC)),
                ]
                await producer.flush()
                results = [await delivery for delivery in sent]
            found = (await read(client, "t"))[-2:]
            assert [message.timestamp_us for message in found] == [result.timestamp_us for result in results]
            assert [(m.key, m.value, m.tag) for m in found] == [(b"k", b"v" * 5000, "a"), (None, None, None)]
            assert all(before_us - SLACK_US <= result.timestamp_us <= now_us() for result in results)
            await asyncio.sleep(5)
        table = await client.read_arrow("t", start="earliest")
        assert set(table.column("timestampType").to_pylist()) == {1}
        late = [message async for message in client.consumer("t", start=results[0].timestamp, until_end=True)]
        assert [message.offset for message in late] == [results[0].offset, results[1].offset]


@in_cluster("a:1")
async def test_a_transaction_has_the_time_of_its_commit(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings=APPEND_TIME)
        async with client.producer() as producer, client.transactions("id") as transactions:
            async with transactions.begin() as transaction:
                transaction.send("t", b"staged early", timestamp=LONG_AGO)
                await transaction.flush()
                await asyncio.sleep(20)
                live = await producer.send("t", b"live")
                await asyncio.sleep(20)
                committed_us = now_us()
            while len(found := await read(client, "t")) < 2:
                await asyncio.sleep(0.1)
        assert [message.value for message in found] == [b"live", b"staged early"]
        assert found[0].timestamp_us == live.timestamp_us
        assert found[1].timestamp_us is not None
        assert found[1].timestamp_us >= committed_us - SLACK_US


@in_cluster("a:1")
async def test_a_delayed_message_has_the_time_of_its_delivery(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings=APPEND_TIME)
        async with client.producer() as producer:
            delayed = await producer.send("t", b"delayed", delay=60)
            await asyncio.sleep(30)
            live = await producer.send("t", b"live", timestamp=LONG_AGO)
        await asyncio.sleep(60)
        found = await read(client, "t")
        assert [message.value for message in found] == [b"live", b"delayed"]
        assert found[0].timestamp_us == live.timestamp_us
        assert found[1].timestamp_us is not None
        assert delayed.timestamp_us <= found[1].timestamp_us < delayed.timestamp_us + SLACK_US


@in_cluster("a:1", "b:1", "c:1")
async def test_times_do_not_decrease_while_owners_are_killed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings=APPEND_TIME)
        async with client.producer(linger_ms=1) as producer:
            for number in range(30):
                producer.send("t", b"%d" % number, timestamp=LONG_AGO + timedelta(days=-number))
                await asyncio.sleep(0.05)
                if number in (10, 20):
                    await cluster.stop(await cluster.owner_of("t", 0), graceful=False)
        found = await read(client, "t")
        assert [message.value for message in found] == [b"%d" % number for number in range(30)]
        times = [message.timestamp_us or 0 for message in found]
        assert times == sorted(times)
        assert times[0] > EPOCH_US - SLACK_US


@in_cluster("a:1")
async def test_the_setting_may_be_changed_and_counts_from_then_on(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            for change in (None, {"settings": APPEND_TIME}, {"unset": ["message.timestamp.type"]}):
                if change is not None:
                    await client.alter_topic("t", **change)
                    await asyncio.sleep(1)
                result = await producer.send("t", b"v", timestamp=LONG_AGO)
                assert (result.timestamp == LONG_AGO) == (change is None or "unset" in change)
        found = await read(client, "t")
        assert [message.timestamp_us == microseconds_of(LONG_AGO) for message in found] == [True, False, True]
        assert found[1].timestamp_us is not None
        assert datetime_of(found[1].timestamp_us) > LONG_AGO
        with pytest.raises(InvalidConfig, match="it has to be one of CreateTime, LogAppendTime"):
            await client.create_topic("u", 1, settings={"message.timestamp.type": "append"})


@virtual
async def test_a_repeated_batch_whose_record_was_cleaned_has_no_time() -> None:
    """What is at its offset, or behind it, belongs to another record."""
    store = MemoryStore("", virtual_sources(1000))
    async with cluster_of("a:1", store=store, constants=AGES, bundles=2) as cluster, client_of(cluster) as client:
        topic = await client.create_topic("t", 1, KEYED | APPEND_TIME)
        await put(client, ("a", "1"), ("b", "2"), ("a", "3"))
        await clean(cluster)
        await restart(cluster)
        [broker] = cluster.brokers.values()
        owner = await broker.ownership.owner(1)
        gone, kept = [await owner.append_us(batch(b"v", topic_id=topic.topic_id), offset) for offset in (0, 1)]
        assert gone == 0
        assert EPOCH_US - SLACK_US <= kept <= now_us()
