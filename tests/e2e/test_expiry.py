"""Times to live on brokers in virtual time: what is older is skipped by consumers, members and tables."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

import ledgermq
from ledgermq import errors
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.expiring import read, send, values
from tests.e2e.group_clients import committed
from tests.e2e.test_client_takeover import client_of

AGE_S_MAX = 60.0
"""Default of `metadata_age_s_max`: so soon consumers know changed settings of topics."""


# -- consumers without a group


@in_cluster("a:1")
async def test_a_consumer_skips_what_is_older_than_its_ttl(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", 10, None, timedelta(seconds=30), 10)
        assert await read(client, "t") == [0, 1, 2, 3]
        await asyncio.sleep(11)
        assert await read(client, "t") == [1, 2]
        assert (await client.read_arrow("t")).column("value").to_pylist() == [b"1", b"2"]
        await asyncio.sleep(20)
        async with client.consumer("t", end="latest") as consumer:
            assert values(await consumer.fetch()) == [1]
            assert await consumer.fetch(timeout=100) == []
            assert (consumer.expired, consumer.position(0), consumer.at_end) == (3, 4, True)
        assert await read(client, "t", deliver_expired=True) == [0, 1, 2, 3]


@in_cluster("a:1")
async def test_a_message_is_judged_when_it_is_taken_not_when_its_batch_came(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", *[10] * 5, None)
        async with client.consumer("t") as consumer:
            assert [values([await anext(consumer)]) for _ in range(2)] == [[0], [1]]
            await asyncio.sleep(10)
            assert values([await anext(consumer)]) == [5]
            assert consumer.expired == 3


@in_cluster("a:1")
async def test_a_ttl_counts_from_the_records_own_timestamp(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        now = client._context.connections.now()
        async with client.producer() as producer:
            await producer.send("t", "0", timestamp=now - timedelta(seconds=60), ttl=59)
            await producer.send("t", "1", timestamp=now - timedelta(seconds=60), ttl=120)
            await producer.send_many("t", [ledgermq.Record("2", ttl=5), ledgermq.Record("3", ttl=50)])
        assert await read(client, "t") == [1, 2, 3]
        await asyncio.sleep(10)
        assert await read(client, "t") == [1, 3]


@in_cluster("a:1")
async def test_a_topic_full_of_expired_messages_keeps_nothing_else_from_running(cluster: Cluster) -> None:
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
                producer.send("t", bytes(100), ttl=1)
            await producer.flush()
        await asyncio.sleep(2)
        async with client.consumer("t", until_end=True) as consumer:
            await consumer.wait_ready()
            while not consumer._reader._prefetch.runs or consumer._reader._prefetch.held_bytes < 100_000:
                await asyncio.sleep(0.01)
            batches = len(consumer._reader._prefetch.runs)
            working = asyncio.create_task(other_work())
            assert [message async for message in consumer] == []
            working.cancel()
            assert consumer.expired == 2000
            assert batches > 50
            assert turns >= batches - 2


# -- settings


@in_cluster("a:1")
async def test_topics_set_a_default_and_a_longest_time(cluster: Cluster) -> None:
    """message.ttl.ms, message.ttl.ms.max"""
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, {"message.ttl.ms": "20s", "message.ttl.ms.max": timedelta(seconds=60)})
        assert (await client.describe_topic("t")).settings == {"message.ttl.ms": "20000", "message.ttl.ms.max": "60000"}
        await send(client, "t", None, 5, 40, 400)
        async with client.producer() as producer:
            await producer.send("t", "4", headers={"a": "1"}, partition=0)
        for waited_s, expected in ((0, [0, 1, 2, 3, 4]), (6, [0, 2, 3, 4]), (15, [2, 3]), (20, [3]), (20, [])):
            await asyncio.sleep(waited_s)
            assert await read(client, "t") == expected
        await client.alter_topic("t", settings={"message.ttl.ms": -1}, unset=["message.ttl.ms.max"])
        assert await read(client, "t") == [0, 3, 4]


@in_cluster("a:1")
async def test_a_running_consumer_takes_changed_settings_of_its_topic(cluster: Cluster) -> None:
    async with client_of(cluster) as other, client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.consumer("t") as consumer:
            await consumer.wait_ready()
            await other.alter_topic("t", settings={"message.ttl.ms": 1000})
            await asyncio.sleep(AGE_S_MAX + 1)
            async with other.producer() as producer:
                await producer.send("t", "0")
                await asyncio.sleep(2)
                await producer.send("t", "1")
            assert values(await consumer.fetch(timeout=60)) == [1]


@pytest.mark.parametrize("name", ["message.ttl.ms", "message.ttl.ms.max"])
@pytest.mark.parametrize("value", [0, -2, "soon"])
def test_a_ttl_of_a_topic_that_makes_no_sense_is_refused(name: str, value: object) -> None:
    @in_cluster("a:1")
    async def refused(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            with pytest.raises(errors.InvalidConfig, match=f"topic setting {name}"):
                await client.create_topic("t", 1, {name: value})

    refused()


@in_cluster("a:1", message_ttl_ms=20_000, message_ttl_ms_max=60_000)
async def test_brokers_set_both_for_topics_that_do_not(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await client.create_topic("own", 1, {"message.ttl.ms": 40_000, "message.ttl.ms.max": 50_000})
        await client.create_topic("none", 1, {"message.ttl.ms": -1, "message.ttl.ms.max": -1})
        assert (await client.describe_topic("t")).settings == {}, "only what was set"
        for topic in ("t", "own", "none"):
            await send(client, topic, None, 400)
        for waited_s, *expected in ((21, [1], [0, 1], [0, 1]), (20, [1], [1], [0, 1]), (20, [], [], [0, 1])):
            await asyncio.sleep(waited_s)
            assert [await read(client, topic) for topic in ("t", "own", "none")] == expected
        broker = cluster.brokers["a:1"]
        broker.apply(broker.settings.model_copy(update={"message_ttl_ms": None, "message_ttl_ms_max": None}))
        assert await read(client, "t") == [0, 1], "neither is over without them"


@in_cluster("a:1")
async def test_a_table_keeps_messages_that_expire_because_an_older_value_would_come_back(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, {"cleanup.policy": "compact", "message.ttl.ms": 1000})
        async with client.producer() as producer:
            await producer.send("t", "old", key="k")
            await producer.send("t", "new", key="k", ttl=1)
        await asyncio.sleep(10)
        async with client.table("t") as table:
            assert table["k"] == b"new"
        with pytest.raises(errors.InvalidConfig, match="deliver_expired"):
            client.table("t", deliver_expired=False)


# -- groups


@in_cluster("a:1")
@pytest.mark.parametrize("commit", ["auto", "acked", "manual", "before"])
async def test_offsets_are_committed_over_what_was_skipped_also_at_the_end(cluster: Cluster, commit: str) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", 1, None, 1, None, 1, 1)
        await asyncio.sleep(2)
        async with client.consumer("t", group="g", commit=commit, commit_interval_ms=100) as consumer:
            got = await consumer.fetch(timeout=10)
            assert values(got) == [1, 3]
            assert await consumer.fetch(timeout=1) == []
            for message in got:
                message.ack()
            if commit in ("manual", "before"):
                await consumer.commit()
            else:
                await asyncio.sleep(1)
            assert await committed(cluster, "g", "t") == {0: 6}
            assert (consumer.expired, consumer.position(0)) == (4, 6)
            assert [lag.messages for lag in (await consumer.lag()).values()] == [0]
        await send(client, "t", 1, 1, first=6)
        await asyncio.sleep(2)
        async with client.consumer("t", group="g", commit=commit, commit_interval_ms=100) as consumer:
            assert await consumer.fetch(timeout=2) == []
            await consumer.commit()
            assert await committed(cluster, "g", "t") == {0: 8}, "nothing but expired messages"


@in_cluster("a:1")
async def test_offsets_that_a_program_stores_itself_are_behind_what_was_skipped(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", None, 1, None, 1, 1)
        await asyncio.sleep(2)
        async with client.consumer("t", group="g", commit="manual") as consumer:
            first, second = await consumer.fetch(timeout=10)
            assert await consumer.fetch(timeout=1) == []
            assert [entry.offset for entry in consumer.entries([first])] == [2]
            assert [entry.offset for entry in consumer.entries([first, second])] == [5]


@in_cluster("a:1")
async def test_expired_messages_behind_one_that_is_not_finished_are_not_committed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", None, 1, None, 1)
        await asyncio.sleep(2)
        async with client.consumer("t", group="g", commit="acked", commit_interval_ms=100) as consumer:
            first, second = await consumer.fetch(timeout=10)
            second.ack()
            await asyncio.sleep(1)
            assert await committed(cluster, "g", "t") == {0: 0}
            first.ack()
            await asyncio.sleep(1)
            assert await committed(cluster, "g", "t") == {0: 4}


@in_cluster("a:1")
async def test_a_refused_message_that_expires_while_it_waits_is_not_delivered_again(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", 10, 100)
        async with client.consumer("t", group="g", commit="acked", commit_interval_ms=100) as consumer:
            for message in await consumer.fetch(2, timeout=10):
                message.nack(20)
            [again] = await consumer.fetch(timeout=60)
            assert values([again]) == [1]
            assert consumer.expired == 1
            again.ack()
            await asyncio.sleep(1)
            assert await committed(cluster, "g", "t") == {0: 2}


@in_cluster("a:1")
async def test_tables_of_a_group_leave_out_what_has_expired(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", 1, None, 1, None, None, 1)
        await asyncio.sleep(2)
        async with client.consumer("t", group="g") as consumer:
            first = await consumer.fetch_arrow(2, timeout=10)
            assert first.column("offset").to_pylist() == [1, 3]
            second = await consumer.fetch_arrow(2, timeout=10)
            assert second.column("value").to_pylist() == [b"4"]
            assert (await consumer.fetch_arrow(2, timeout=1)).num_rows == 0
            assert consumer.expired == 3
        assert await committed(cluster, "g", "t") == {0: 6}


@in_cluster("a:1")
async def test_messages_that_follow_a_table_are_tied_to_their_own_delivery(cluster: Cluster) -> None:
    """The rest of a batch of which a table took the beginning: what the table has is not finished by it."""
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", *[None] * 5)
        async with client.consumer("t", group="g", commit="manual") as consumer:
            assert (await consumer.fetch_arrow(2, timeout=10)).num_rows == 2
            rest = await consumer.fetch(timeout=10)
            assert values(rest) == [2, 3, 4]
            for message in rest:
                assert message.ack()
            await consumer.commit()
        assert await committed(cluster, "g", "t") == {0: 0}


# -- all together


@pytest.mark.parametrize("seed", range(6))
def test_members_that_come_and_go_get_each_message_before_it_expires_or_count_it(seed: int) -> None:
    """What is delivered had not expired when it was; what is not delivered had expired when it was committed."""
    draw = random.Random(seed)

    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", 2, {"message.ttl.ms": 30_000} if seed % 2 else {})
            expires: dict[int, float] = {}
            got: dict[int, list[float]] = {}
            loop = asyncio.get_running_loop()
            commit = draw.choice(["auto", "acked"])
            async with client.producer() as producer:
                for number in range(200):
                    ttl = draw.choice([None, 0.5, 5, 60])
                    expires[number] = loop.time() + (ttl or (30 if seed % 2 else float("inf")))
                    await producer.send("t", f"{number}", partition=number % 2, ttl=ttl)
                    await asyncio.sleep(draw.choice([0, 0, 0.5]))
                    if number % 40 == 39:
                        await asyncio.sleep(draw.choice([0, 10]))
                        async with client.consumer("t", group="g", commit=commit, commit_interval_ms=500) as consumer:
                            until_s = loop.time() + draw.choice([1, 4])
                            while loop.time() < until_s:
                                for message in await consumer.fetch(draw.choice([1, 7, 50]), timeout=0.5):
                                    got.setdefault(values([message])[0], []).append(loop.time())
                                    message.ack()
                                    await asyncio.sleep(draw.choice([0, 0.05]))
            await asyncio.sleep(1)
            async with client.consumer("t", group="g", commit=commit, commit_interval_ms=500) as consumer:
                while any(lag.messages for lag in (await consumer.lag()).values()) or not consumer.assignment:
                    for message in await consumer.fetch(timeout=0.5):
                        got.setdefault(values([message])[0], []).append(loop.time())
                        message.ack()
            ends = await client.list_offsets("t", "latest")
            assert await committed(cluster, "g", "t") == ends
            slack_s = 0.1 * 50
            for number, expires_s in expires.items():
                if number in got:
                    assert got[number][0] <= expires_s + slack_s
                else:
                    assert expires_s <= loop.time()
            assert set(got) >= {number for number, expires_s in expires.items() if expires_s == float("inf")}
            assert len(got) < len(expires)

    life()
