"""A topic with a table in a cluster: its owner registers what rounds make, retention deletes behind the gate, another
broker takes over, a partition moves, the topic is deleted and made again.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pyarrow.parquet as pq
import pytest

from ledgermq.client.client import Client
from ledgermq.errors import InvalidConfig, InvalidRequest, Unavailable
from ledgermq_broker.cluster.heartbeat import TABLES
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.delta.actions import decode_path
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.tables import follower
from ledgermq_ledger.tables.formats.delta import DeltaLog
from tests.broker.cluster import Cluster, cluster_of
from tests.virtual_time import virtual, virtual_sources

AGES = BrokerConstants(damaged_retry_s=5, url_life_ms=1000, parquet_min_age_ms=4000)
KEEP_MS = 60_000
TABLE = {"table.format": "delta", "table.delta.place": "topic", "table.keep.ms": KEEP_MS}
FOLDER = keys.parquet_topic("t")


@asynccontextmanager
async def a_cluster(**more: object) -> AsyncIterator[tuple[Cluster, Client]]:
    store = MemoryStore("", virtual_sources(1000))
    async with cluster_of("a:1", store=store, constants=AGES, **more) as cluster, cluster.client() as client:
        yield cluster, client


async def put(client: Client, *values: str, topic: str = "t") -> None:
    async with client.producer() as producer:
        for value in values:
            await producer.send(topic, value, partition=0)


async def make_round(cluster: Cluster) -> None:
    report = await compact_root(cluster.store, virtual_sources(99), LocalEngine(virtual_sources(98), run_inline))
    assert not report.failures


async def table_of(cluster: Cluster) -> Table:
    return await DeltaLog(cluster.store, FOLDER, virtual_sources(97)).read()


async def rows_of(cluster: Cluster) -> list[bytes]:
    """The values that a reader of the newest version sees."""
    rows: dict[int, bytes] = {}
    for path in (await table_of(cluster)).files:
        data = await cluster.store.get(FOLDER + decode_path(path))
        for row in pq.read_table(io.BytesIO(data), columns=["offset", "value"]).to_pylist():
            assert row["offset"] not in rows
            rows[row["offset"]] = row["value"]
    return [rows[offset] for offset in sorted(rows)]


@virtual
async def test_rounds_become_visible_within_seconds() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        await put(client, "a", "b")
        await make_round(cluster)
        await asyncio.sleep(5)
        assert await rows_of(cluster) == [b"a", b"b"]
        await put(client, "c")
        await make_round(cluster)
        await asyncio.sleep(5)
        assert await rows_of(cluster) == [b"a", b"b", b"c"]
        [broker] = cluster.brokers.values()
        [state] = broker.context.tables.values()
        assert (state.topic, state.behind_s, state.alarms()) == ("t", 0.0, [])


@virtual
async def test_retention_deletes_what_no_version_names_any_longer() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        for value in ("a", "b", "c"):
            await put(client, value)
            await make_round(cluster)
        await asyncio.sleep(5)
        await client.delete_records("t", {0: 2})
        for _ in range(3):
            await asyncio.sleep(5)
            await make_round(cluster)
        assert await rows_of(cluster) == [b"c"], "the table has removed them"
        stored = [info.key async for info in cluster.store.list(keys.parquet_partition("t", 0))]
        assert len(stored) == 3, "versions that may be open name them"
        [broker] = cluster.brokers.values()
        await asyncio.sleep(follower.GATES_EVERY_S)
        [state] = broker.context.tables.values()
        assert state.held_bytes > 0
        await asyncio.sleep(KEEP_MS / 1000 + 2 * follower.GATES_EVERY_S)
        await make_round(cluster)
        await asyncio.sleep(follower.GATES_EVERY_S + 5)
        stored = [info.key async for info in cluster.store.list(keys.parquet_partition("t", 0))]
        assert len(stored) == 1
        assert state.held_bytes == 0


@virtual
async def test_a_table_that_holds_back_too_much_is_unset_by_rule() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE | {"table.keep.ms": 3_600_000, "table.hold.max.bytes": 1})
        for value in ("a", "b", "c"):
            await put(client, value)
            await make_round(cluster)
        await asyncio.sleep(5)
        generation = (await client.describe_topic("t")).settings["table.generation"]
        await client.delete_records("t", {0: 2})
        await asyncio.sleep(2 * follower.GATES_EVERY_S)
        settings = (await client.describe_topic("t")).settings
        assert settings["table.format"] == "none"
        assert settings["table.let.go"] == generation
        [broker] = cluster.brokers.values()
        [problem] = [text for text in broker.alarms.now() if "table" in text]
        assert "more than table.hold.max.bytes=1" in problem
        assert [topic.name for topic in broker.tables_let_go()] == ["t"]
        for _ in range(3):
            await asyncio.sleep(5)
            await make_round(cluster)
        stored = [info.key async for info in cluster.store.list(keys.parquet_partition("t", 0))]
        assert len(stored) == 1, "what it held back is deleted"
        with pytest.raises(InvalidRequest, match=r"held back more than table\.hold\.max\.bytes"):
            await client.tables.describe("t")
        await client.alter_topic("t", settings={"table.format": "delta"})
        await asyncio.sleep(65)
        assert await rows_of(cluster) == [b"c"]
        assert "table.let.go" not in (await client.describe_topic("t")).settings
        assert not [text for text in broker.alarms.now() if "table" in text]


@virtual
async def test_a_table_whose_log_cannot_be_read_is_measured_and_unset() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE | {"table.hold.max.bytes": 1})
        await cluster.store.put(f"{FOLDER}_delta_log/{0:020d}.json", b"no json\n")
        for value in ("a", "b"):
            await put(client, value)
            await make_round(cluster)
        await client.delete_records("t", {0: 1})
        await asyncio.sleep(3 * follower.GATES_EVERY_S)
        assert (await client.describe_topic("t")).settings["table.format"] == "none"


@virtual
async def test_a_bound_that_was_raised_or_another_generation_keeps_the_table() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE | {"table.hold.max.bytes": 1000})
        [broker] = cluster.brokers.values()
        topic = broker.metadata.catalog.living("t")
        await broker.context.let_go_of_table(topic, 1000)
        assert broker.metadata.catalog.living("t").settings.table_generation == topic.settings.table_generation
        await client.tables.rebuild("t")
        await broker.context.let_go_of_table(topic, 1001)
        again = broker.metadata.catalog.living("t")
        assert again.settings.table_generation > topic.settings.table_generation
        await broker.context.let_go_of_table(again, 1001)
        assert broker.metadata.catalog.living("t").settings.table_let_go == again.settings.table_generation


@virtual
async def test_another_broker_goes_on_with_the_table() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        await put(client, "a")
        await make_round(cluster)
        await asyncio.sleep(5)
        before = (await table_of(cluster)).version
        await cluster.start("b:1")
        await cluster.stop("a:1")
        await cluster.settled()
        async with cluster.client() as other:
            await put(other, "b")
        await make_round(cluster)
        await asyncio.sleep(5)
        assert await rows_of(cluster) == [b"a", b"b"]
        assert (await table_of(cluster)).version == before + 1
        assert [state.topic for state in cluster.brokers["b:1"].context.tables.values()] == ["t"]


@virtual
async def test_a_partition_that_moves_takes_its_table_along() -> None:
    async with a_cluster() as (cluster, client):
        topic = await client.create_topic("t", 1, TABLE)
        await put(client, "a")
        await make_round(cluster)
        [bundle] = [partition.bundle for partition in (await client.describe_topic(topic.name)).partitions]
        await client.move_partition("t", 0, 3 - bundle)
        for _ in range(6):
            await asyncio.sleep(5)
            await make_round(cluster)
        await put(client, "b")
        await make_round(cluster)
        await asyncio.sleep(5)
        assert await rows_of(cluster) == [b"a", b"b"]


@virtual
async def test_a_topic_that_is_made_again_begins_its_table_anew() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        await put(client, "a")
        await make_round(cluster)
        await asyncio.sleep(5)
        before = await table_of(cluster)
        await client.delete_topic("t")
        await asyncio.sleep(60)
        assert [info.key async for info in cluster.store.list(keys.parquet_partition("t", 0))] == []
        await client.create_topic("t", 1, TABLE)
        await put(client, "b")
        await make_round(cluster)
        await asyncio.sleep(5)
        assert await rows_of(cluster) == [b"b"]
        assert (await table_of(cluster)).version > before.version


@virtual
async def test_a_table_that_is_unset_and_set_again_is_another_generation() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        await put(client, "a", "b")
        await make_round(cluster)
        await asyncio.sleep(5)
        await client.alter_topic("t", settings={"table.format": "none"})
        await put(client, "c")
        await make_round(cluster)
        await asyncio.sleep(10)
        assert await rows_of(cluster) == [b"a", b"b"]
        [broker] = cluster.brokers.values()
        assert not broker.context.tables
        await client.alter_topic("t", settings={"table.format": "delta"})
        await asyncio.sleep(65)  # nothing is written to the bundle
        assert await rows_of(cluster) == [b"a", b"b", b"c"]
        settings = (await client.describe_topic("t")).settings
        assert int(settings["table.generation"]) > 0
        kept = settings["table.generation"]
        await client.alter_topic("t", settings={"table.keep.ms": 120_000})
        assert (await client.describe_topic("t")).settings["table.generation"] == kept, "readers go on"


@virtual
async def test_a_foreign_object_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "FOREIGN_EVERY_S", 120.0)
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        await asyncio.sleep(5)
        foreign = f"{FOLDER}part-0000.parquet"
        await cluster.store.put(foreign, b"x")
        await asyncio.sleep(follower.FOREIGN_EVERY_S + 10)
        [broker] = cluster.brokers.values()
        [alarm] = broker.context.table_alarms()
        assert foreign in alarm
        await cluster.store.delete([foreign])
        await asyncio.sleep(follower.GATES_EVERY_S + 10)
        assert broker.context.table_alarms() == []


@virtual
async def test_what_is_refused() -> None:
    async with a_cluster() as (_, client):
        with pytest.raises(InvalidConfig, match=r"needs table\.delta\.place=topic"):
            await client.create_topic("t", 1, {"table.format": "delta"})
        with pytest.raises(InvalidConfig, match="unset the table"):
            await client.create_topic("t", 1, TABLE | {"table.hold.max.bytes": 0})
        with pytest.raises(InvalidConfig, match="set by the system only"):
            await client.create_topic("t", 1, {"table.generation": 4})
        await client.create_topic("t", 1, TABLE)
        with pytest.raises(InvalidConfig, match=r"cleanup\.policy cannot change while the topic has a table"):
            await client.alter_topic("t", settings={"cleanup.policy": "compact"})


@virtual
async def test_no_table_beside_a_broker_that_does_not_know_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1)
        [broker] = cluster.brokers.values()
        older = broker.membership.me
        monkeypatch.setattr(broker.controller, "_lacking", lambda feature: [older] if feature == TABLES else [])
        with pytest.raises(Unavailable, match="tables of topics need every broker"):
            await broker.controller.create_topic("u", 1, {k: str(v) for k, v in TABLE.items()})
        await broker.controller.create_topic("u", 1, {})


@virtual
async def test_a_table_that_fails_stops_nothing_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "LATE_S", 120.0)
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        log = f"{FOLDER}_delta_log/"
        await cluster.store.put(f"{log}{0:020d}.json", b"no json\n")
        await put(client, "a")
        await make_round(cluster)
        await asyncio.sleep(follower.LATE_S + 10)
        [broker] = cluster.brokers.values()
        [alarm] = broker.context.table_alarms()
        assert "minutes behind its Parquet files" in alarm
        assert "is no action of a Delta log" in alarm
        await put(client, "b")
