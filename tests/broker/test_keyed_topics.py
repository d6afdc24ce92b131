"""Keyed topics in a cluster: cleaned offsets are gaps, and no reader misses the latest record of a
key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from ledgermq.client.client import Client
from ledgermq.client.consuming.message import Message
from ledgermq.client.settings.values import ClientSettings
from ledgermq_broker.ports.in_process import InProcessConnector
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.broker.cluster import Cluster, cluster_of
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.consumed import read_messages

AGES = BrokerConstants(damaged_retry_s=5, url_life_ms=1000, parquet_min_age_ms=4000)
KEYED = {"cleanup.policy": "compact", "delete.retention.ms": 60_000}


@asynccontextmanager
async def client_of(cluster: Cluster) -> AsyncIterator[Client]:
    addresses = ["a:1", "b:1"]
    async with Client(
        InProcessConnector(cluster.network), addresses, ClientSettings(), virtual_sources(next(cluster.client_seeds))
    ) as client:
        yield client


async def put(client: Client, *pairs: tuple[str, str | None], topic: str = "t") -> None:
    async with client.producer() as producer:
        for key, value in pairs:
            await producer.send(topic, value, key=key)


async def clean(cluster: Cluster) -> None:
    """Everything to Parquet and into versions; what they replace is old enough to go, and goes."""
    for _ in range(2):
        report = await compact_root(cluster.store, virtual_sources(99), LocalEngine(virtual_sources(98), run_inline))
        assert not report.failures
        await asyncio.sleep(5)
    await compact_root(cluster.store, virtual_sources(99), LocalEngine(virtual_sources(98), run_inline))


async def restart(cluster: Cluster) -> None:
    """Another broker takes over: it has nothing in memory."""
    [address] = list(cluster.brokers)
    await cluster.start("b:1" if address == "a:1" else "a:1")
    await cluster.stop(address)
    await cluster.settled()


async def parquet_files(cluster: Cluster) -> list[str]:
    return [info.key async for info in cluster.store.list(keys.PARQUET)]


@virtual
async def test_a_consumer_reads_what_was_cleaned_with_gaps_and_then_the_log() -> None:
    async with (
        cluster_of("a:1", store=MemoryStore("", virtual_sources(1000)), constants=AGES, bundles=2) as cluster,
        client_of(cluster) as client,
    ):
        await client.create_topic("t", 1, KEYED)
        await put(client, ("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("c", None), ("d", "5"), ("e", "6"))
        await clean(cluster)
        assert await parquet_files(cluster) == []
        await restart(cluster)
        assert [(m.offset, m.value) for m in await read_messages(client)] == [
            (1, b"2"),
            (2, b"3"),
            (4, None),
            (5, b"5"),
            (6, b"6"),
        ]
        await put(client, ("b", None), ("f", "7"))
        assert [m.offset for m in await read_messages(client)] == [1, 2, 4, 5, 6, 7, 8]
        assert [m.offset for m in await read_messages(client, start={0: 3})] == [4, 5, 6, 7, 8]
        await asyncio.sleep(90)  # the tombstone of c is old now
        await clean(cluster)
        await restart(cluster)
        assert [m.offset for m in await read_messages(client)] == [2, 5, 6, 7, 8]
        assert await client.list_offsets("t", "earliest") == {0: 0}


@virtual
async def test_the_last_tombstone_stays_so_that_readers_come_to_the_end() -> None:
    async with (
        cluster_of("a:1", store=MemoryStore("", virtual_sources(1000)), constants=AGES, bundles=2) as cluster,
        client_of(cluster) as client,
    ):
        await client.create_topic("t", 1, KEYED | {"delete.retention.ms": 0})
        await put(client, ("a", "1"), ("b", "2"), ("a", None), ("b", None))
        await clean(cluster)
        await clean(cluster)
        await restart(cluster)
        assert [m.offset for m in await read_messages(client)] == [3]


@virtual
async def test_a_search_by_time_finds_cleaned_records() -> None:
    async with (
        cluster_of("a:1", store=MemoryStore("", virtual_sources(1000)), constants=AGES, bundles=2) as cluster,
        client_of(cluster) as client,
    ):
        await client.create_topic("t", 1, KEYED)
        async with client.producer() as producer:
            for n, key in enumerate("abacabad"):
                await producer.send("t", str(n), key=key, timestamp=n * 1_000_000)
        await clean(cluster)
        await restart(cluster)
        assert [m.offset for m in await read_messages(client)] == [3, 5, 6, 7]
        for second, offset in ((0, 3), (3, 3), (4, 5), (6, 6), (7, 7)):
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
            assert await client.list_offsets("t", moment) == {0: offset}, second


@virtual
async def test_a_table_survives_takeovers_and_cleaning() -> None:
    async with (
        cluster_of("a:1", store=MemoryStore("", virtual_sources(1000)), constants=AGES, bundles=2) as cluster,
        client_of(cluster) as client,
    ):
        await client.create_topic("t", 3, KEYED)
        truth: dict[bytes, bytes] = {}
        async with client.table("t") as table:
            for life in range(4):
                for n in range(40):
                    key, value = f"k{(n * 7 + life) % 13}", None if n % 5 == 0 else f"{life}-{n}"
                    await put(client, (key, value))
                    if value is None:
                        truth.pop(key.encode(), None)
                    else:
                        truth[key.encode()] = value.encode()
                await table.wait_caught_up()
                assert dict(table.items()) == truth
                await clean(cluster)
                await restart(cluster)
                async with client.table("t") as fresh:
                    assert dict(fresh.items()) == truth
            await put(client, ("last", "1"))
            await table.wait_caught_up()
            assert (table["last"], table.state) == (b"1", "following")


@virtual
async def test_a_group_reads_and_commits_over_gaps() -> None:
    async with (
        cluster_of("a:1", store=MemoryStore("", virtual_sources(1000)), constants=AGES, bundles=2) as cluster,
        client_of(cluster) as client,
    ):
        await client.create_topic("t", 1, KEYED)
        await put(client, *[(key, str(n)) for n, key in enumerate("abacabadabacabae")])
        await clean(cluster)
        await restart(cluster)
        async with client.consumer("t", group="g") as consumer:
            messages: list[Message] = []
            while len(messages) < 5:
                messages += await consumer.fetch(timeout=10)
            assert [m.offset for m in messages] == [7, 11, 13, 14, 15]
            assert await consumer.fetch(timeout=0.1) == []  # a request for more finishes what came before
            await consumer.commit()
            assert list((await consumer.committed()).values()) == [16]


@virtual
async def test_a_queue_finishes_what_was_cleaned_and_goes_on_from_versions_to_the_log() -> None:
    async with (
        cluster_of("a:1", store=MemoryStore("", virtual_sources(1000)), constants=AGES, bundles=2) as cluster,
        client_of(cluster) as client,
    ):
        await client.create_topic("t", 1, KEYED)
        await put(client, ("a", "1"), ("b", "2"), ("a", "3"), ("c", "4"), ("c", None), ("d", "5"), ("e", "6"))
        async with client.queue("t", group="before") as queue:
            [first] = await queue.fetch(1, timeout=5)
            assert (first.offset, first.value) == (0, b"1")
            assert await first.ack()
        await clean(cluster)
        await restart(cluster)
        await put(client, ("a", "7"))
        for group in ("before", "new"):
            async with client.queue("t", group=group) as queue:
                found = await queue.fetch(timeout=5)
                for _ in range(5):
                    found += await queue.fetch(timeout=1)
                assert [(m.offset, m.value) for m in found] == [
                    (1, b"2"),
                    (2, b"3"),
                    (4, None),
                    (5, b"5"),
                    (6, b"6"),
                    (7, b"7"),
                ]
                assert all([await message.ack() for message in found])
            assert (await client.queues.describe(group)).backlog == 0, group
