"""Exclusive producers of the SDK, on a cluster whose brokers die, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import ledgermq
from ledgermq.errors import (
    DeadlineExceeded,
    InvalidConfig,
    InvalidRecord,
    LedgerMQError,
    PartitionHeld,
    ProducerFenced,
    UnknownTopic,
)
from ledgermq_ledger import keys
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.test_client_takeover import client_of
from tests.worlds.consumed import read_values


@in_cluster("a:1", "b:1")
async def test_one_producer_has_a_topic_for_itself(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 4)
        async with client.producer(access_mode="exclusive", name="one") as one, client.producer() as shared:
            await one.acquire("t")
            assert one.holds("t")
            for partition in range(4):
                await one.send("t", b"of one", partition=partition)
                with pytest.raises(PartitionHeld, match="exclusive producer 'one' has the partition"):
                    await shared.send("t", b"shared", partition=partition)
            async with client.producer(access_mode="exclusive", name="two") as two:
                with pytest.raises(PartitionHeld, match="t/0: exclusive producer 'one'"):
                    await two.acquire("t")
                with pytest.raises(PartitionHeld):
                    await two.send("t", b"of two")
                assert not two.holds("t")
        async with client.producer() as shared:
            for partition in range(4):
                await shared.send("t", b"after it", partition=partition)
        values = await read_values(client, "t")
    assert values == {partition: [b"of one", b"after it"] for partition in range(4)}


@in_cluster("a:1", "b:1")
async def test_holders_are_listed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 3)
        assert await client.holders("t") == []
        assert keys.HOLDERS_TOPIC not in cluster.brokers["a:1"].metadata.catalog.topics_by_name, "a look makes none"
        async with client.producer(access_mode="exclusive", name="one") as one:
            await one.acquire("t")
            found = await client.holders("t")
            assert [(each.partition, each.name, each.changes) for each in found] == [(n, "one", 1) for n in range(3)]
            assert all(14 < each.lease_s <= 15 for each in found)
        assert await client.holders("t") == []
        with pytest.raises(UnknownTopic):
            await client.holders("no")


@in_cluster("a:1", "b:1")
async def test_a_program_waits_until_the_present_writer_ends_or_dies(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        first = client.producer(access_mode="wait_for_exclusive", name="first")
        await first.acquire("t")
        second = client.producer(access_mode="wait_for_exclusive", name="second")
        with pytest.raises(DeadlineExceeded, match="another exclusive producer still has partitions of topic t"):
            await second.acquire("t", timeout=60)
        await first.send("t", b"first")
        waiting = asyncio.create_task(second.acquire("t"))
        await asyncio.sleep(60)
        assert not waiting.done(), "the first one renews its leases"
        await first.close()
        begun = asyncio.get_running_loop().time()
        await waiting
        assert asyncio.get_running_loop().time() - begun < 3
        third = client.producer(access_mode="wait_for_exclusive", name="third")
        record = third.send("t", b"third")
        await asyncio.sleep(30)
        assert second._background is not None
        second._background.cancel()  # as if its process had died
        begun = asyncio.get_running_loop().time()
        await record
        assert 5 < asyncio.get_running_loop().time() - begun < 17
        await third.close()
        assert sorted(value for values in (await read_values(client, "t")).values() for value in values) == [
            b"first",
            b"third",
        ]


@in_cluster("a:1", "b:1", "c:1")
async def test_a_fenced_producer_stores_nothing_more_while_owners_are_killed(cluster: Cluster) -> None:
    async with client_of(cluster) as client, client_of(cluster) as other:
        await client.create_topic("t", 3)
        stored: dict[str, list[int]] = {"one": [], "two": []}
        failures: list[LedgerMQError] = []

        async def write(producer: ledgermq.Producer, name: str) -> None:
            for number in range(400):
                try:
                    await producer.send("t", b"%s/%d" % (name.encode(), number), partition=number % 3)
                    stored[name].append(number)
                except LedgerMQError as error:
                    failures.append(error)
                    return
                await asyncio.sleep(0.05)

        async with other.producer(access_mode="exclusive_with_fencing", name="two") as two:
            one = client.producer(access_mode="exclusive", name="one")
            writing = asyncio.create_task(write(one, "one"))
            await asyncio.sleep(5)
            await cluster.stop(await cluster.owner_of("t", 0), graceful=False)
            await asyncio.sleep(1)
            await two.acquire("t")
            await write(two, "two")
            await writing
            assert [type(failure) for failure in failures] == [ProducerFenced]
            with pytest.raises(ProducerFenced):
                await one.send("t", b"again")
            await asyncio.sleep(10)
            assert not one.holds("t")
            with pytest.raises(ProducerFenced, match="lost t/0 to exclusive producer 'two'"):
                await one.acquire("t")
            assert two.holds("t")
            await one.abort()
        found = await read_values(client, "t")
    for partition, values in found.items():
        names = [value.split(b"/")[0] for value in values if value is not None]
        assert names == sorted(names), "nothing of the first one behind the second one's"
        for name, numbers in stored.items():
            wanted = [b"%s/%d" % (name.encode(), number) for number in numbers if number % 3 == partition]
            assert [value for value in values if value is not None and value.startswith(name.encode())] == wanted
    assert len(stored["two"]) == 400


@in_cluster("a:1", "b:1", "c:1")
async def test_of_programs_that_ask_together_one_gets_the_topic(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 8)
        producers = [client.producer(access_mode="exclusive", name=str(number)) for number in range(6)]
        outcomes = await asyncio.gather(*(each.acquire("t") for each in producers), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", *["PartitionHeld"] * 5]
        assert [each.holds("t") for each in producers] == [outcome is None for outcome in outcomes]
        for each in producers:
            await each.close()


@in_cluster("a:1")
async def test_added_partitions_and_topics_that_are_made_again(cluster: Cluster) -> None:
    async with client_of(cluster, metadata_age_s_max=1.0) as client:
        await client.create_topic("t", 1)
        async with client.producer(access_mode="exclusive", name="one") as one, client.producer() as shared:
            await one.send("t", b"0")
            await client.alter_topic("t", partitions=3)
            await asyncio.sleep(5)
            await one.send("t", b"1", partition=2)
            with pytest.raises(PartitionHeld):
                await shared.send("t", b"shared", partition=2)
            await client.delete_topic("t")
            await asyncio.sleep(30)
            await client.create_topic("t", 1)
            await asyncio.sleep(30)
            await one.send("t", b"new")
        assert await read_values(client, "t") == {0: [b"new"]}


@in_cluster("a:1")
async def test_what_an_exclusive_producer_does_not_do(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        for wrong in ({"acks": "received"}, {"idempotent": False}, {"spill": ledgermq.Spill("/tmp/spill")}):
            with pytest.raises(InvalidConfig, match="access_mode='exclusive' needs acks='durable'"):
                client.producer(access_mode="exclusive", **wrong)
        with pytest.raises(InvalidConfig, match="access_mode"):
            client.producer(access_mode="alone")
        with pytest.raises(InvalidConfig, match="a transaction cannot have topics for itself"):
            client.transactions("pay", access_mode="exclusive")
        async with client.producer() as shared:
            with pytest.raises(InvalidConfig, match="this producer is shared"):
                await shared.acquire("t")
            assert not shared.holds("t")
        async with client.producer(access_mode="exclusive") as one:
            with pytest.raises(InvalidRecord, match="sends no delayed records"):
                one.send("t", b"later", delay=timedelta(seconds=5))
            await one.send("t", b"now")
        with pytest.raises(LedgerMQError):
            await one.acquire("t")
