"""Keyed topics whose partitions move: a reader finds the latest record of each key at every moment, and cleaning goes
on in the new bundle. In virtual time.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence

import pytest

from ledgermq.client.client import Client
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.keyed.version import newest_version
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.topic import Topic
from tests.broker.cluster import cluster_of, in_cluster
from tests.broker.test_move_partition import controller_of
from tests.broker.test_moves import BROKERS, FAILURES, SOURCE, TARGET, MovesCluster, kill
from tests.virtual_time import virtual, virtual_sources
from tests.waiting import until
from tests.worlds.consumed import read_messages

KEYED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
AGES = BrokerConstants(damaged_retry_s=5, url_life_ms=1000, parquet_min_age_ms=4000)

keyed_cluster = in_cluster(*BROKERS, constants=AGES, kind=MovesCluster, background_compaction=True)


async def put(client: Client, values: Sequence[int]) -> None:
    """Keys are the last digits."""
    async with client.producer() as producer:
        for value in values:
            await producer.send("t", str(value), key=str(value % 10))


async def latest(client: Client) -> dict[bytes, bytes | None]:
    found = await read_messages(client)
    offsets = [message.offset for message in found]
    assert offsets == sorted(set(offsets))
    return {message.key or b"": message.value for message in found}


def of(values: Sequence[int]) -> dict[bytes, bytes]:
    return {str(value % 10).encode(): str(value).encode() for value in values}


async def move(cluster: MovesCluster, bundle: int) -> None:
    await cluster.decide("t", 0, bundle)
    await until(lambda: cluster.has_ended("t", 0), timeout_s=3600)


async def clean(cluster: MovesCluster) -> None:
    """Everything to Parquet and into versions; what they replace is old enough to go, and goes."""
    for _ in range(4):
        report = await compact_root(cluster.store, virtual_sources(99), LocalEngine(virtual_sources(98), run_inline))
        assert not report.failures
        await asyncio.sleep(6)


async def parquet_files(cluster: MovesCluster) -> list[str]:
    return [info.key async for info in cluster.store.list(keys.PARQUET)]


@keyed_cluster
async def test_a_keyed_partition_goes_there_and_back_while_it_is_written_and_read(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1, KEYED)
        await put(client, range(100))
        await clean(cluster)
        assert await parquet_files(cluster) == [], "the log begins above the version"
        await put(client, range(100, 150))
        written = asyncio.create_task(put(client, range(150, 400)))
        topic = await cluster.decide("t", 0, TARGET)
        while not cluster.has_ended("t", 0):
            assert (await latest(client)).keys() == of(range(10)).keys()
            await asyncio.sleep(0.5)
        await written
        assert await latest(client) == of(range(400))
        await clean(cluster)
        assert await parquet_files(cluster) == [], "files that the old bundle made go, too"
        published = await newest_version(cluster.store, PartitionId(topic.id, 0))
        assert published is not None
        assert published.version.end == 400
        await put(client, range(400, 420))
        await move(cluster, SOURCE)
        await clean(cluster)
        await kill(cluster, cluster.owner_of_bundle(SOURCE))  # the next owner has nothing in memory
        assert await latest(client) == of(range(420))
        assert [message.value for message in await client.find("t", key="7").all()] == [b"417"]
        await cluster.check_root()


@keyed_cluster
async def test_a_topic_that_has_moved_becomes_keyed(cluster: MovesCluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        await put(client, range(50))
        await move(cluster, TARGET)
        await client.alter_topic("t", settings=KEYED)
        await put(client, range(50, 70))
        await clean(cluster)
        assert len(await read_messages(client)) == 10
        assert await latest(client) == of(range(70))
        await cluster.check_root()


@keyed_cluster
async def test_cleaning_by_an_old_catalog_does_nothing_in_the_bundle_that_the_partition_has_left(
    cluster: MovesCluster,
) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 1, KEYED)
        await put(client, range(100))
        old = copy.deepcopy(controller_of(cluster)._metadata.catalog)
        await move(cluster, TARGET)
        sources = virtual_sources(97)
        compaction = Compaction(
            cluster.store, await read_cluster(cluster.store), sources, LocalEngine(sources, run_inline)
        )
        before = [info.key async for info in cluster.store.list("")]
        assert await clean_bundle(compaction, SOURCE, old, everything=True) == []
        assert [key for key in before if not await has(cluster, key)] == []
        assert await latest(client) == of(range(100))


# Owners that fail


async def put_and_delete(client: Client, values: Sequence[int]) -> None:
    """Keys are the last digits. Each is written, and those above 6 are deleted, too."""
    async with client.producer() as producer:
        for value in values:
            await producer.send("t", None if value % 20 > 16 else str(value), key=str(value % 10))


def left_of(values: Sequence[int]) -> dict[bytes, bytes | None]:
    return {str(v % 10).encode(): None if v % 20 > 16 else str(v).encode() for v in values}


@pytest.mark.parametrize("fail", FAILURES)
@virtual
async def test_no_latest_record_is_lost_and_no_deleted_key_comes_back_after(
    fail: Callable[[MovesCluster, Callable[[], Awaitable[Topic]]], Awaitable[None]],
) -> None:
    async with (
        cluster_of(*BROKERS, constants=AGES, kind=MovesCluster, background_compaction=True) as cluster,
        cluster.client() as client,
    ):
        await client.create_topic("t", 1, KEYED)
        await put_and_delete(client, range(100))
        await clean(cluster)
        written = asyncio.create_task(put_and_delete(client, range(100, 220)))
        await fail(cluster, lambda: cluster.decide("t", 0, TARGET))
        while not cluster.has_ended("t", 0):
            assert (await latest(client)).keys() == left_of(range(10)).keys()
            await clean(cluster)
        await written
        assert await latest(client) == left_of(range(220))
        await clean(cluster)
        assert await parquet_files(cluster) == []
        assert await latest(client) == left_of(range(220))
        await cluster.check_root()


async def has(cluster: MovesCluster, key: str) -> bool:
    return key in [info.key async for info in cluster.store.list(key)]
