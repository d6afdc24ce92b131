"""What `client.tables` says and does, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ledgermq.errors import DataDamaged, InvalidRequest, Unavailable, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger import keys
from ledgermq_ledger.delta.actions import Add
from ledgermq_ledger.delta.names import commit_name
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.delta.versions import Draft
from ledgermq_ledger.tables import follower
from ledgermq_ledger.tables.drop import empty_table
from ledgermq_ledger.tables.formats.contract import Committed
from ledgermq_ledger.tables.formats.delta import DeltaLog
from ledgermq_ledger.topics.settings import TopicSettings
from tests.broker.test_tables import FOLDER, KEEP_MS, TABLE, a_cluster, make_round, put, rows_of, table_of
from tests.virtual_time import virtual, virtual_sources


@virtual
async def test_a_description_says_what_the_table_has_and_lacks() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 2, TABLE)
        await put(client, "a", "b")
        await make_round(cluster)
        await asyncio.sleep(5)
        await put(client, "c")
        await make_round(cluster)
        found = await client.tables.describe("t")
        table = await table_of(cluster)
        first, second = found.partitions
        assert (found.topic, found.format, found.folder, found.is_current) == ("t", "delta", f"memory:/{FOLDER}", True)
        assert (found.version, found.oldest_held, found.rows) == (table.version, 0, 2)
        assert (first.end, first.rows, first.files, first.parquet_end, first.missing) == (2, 2, 1, 3, 1)
        assert first.size_bytes == sum(add.size for add in table.files.values())
        assert (second.end, second.rows, second.parquet_end) == (0, 0, 0)
        assert found.changed is not None
        await asyncio.sleep(5)
        found = await client.tables.describe("t")
        assert (found.rows, found.partitions[0].missing, found.waits_for, found.behind_s) == (3, 0, "", 0.0)
        log = f"{FOLDER}_delta_log/{commit_name(found.version or 0)}"
        [stored_ms] = [info.modified_ms async for info in cluster.store.list(log)]
        assert found.changed == datetime.fromtimestamp(stored_ms / 1000, UTC)
        await asyncio.sleep(KEEP_MS / 1000)
        assert (await client.tables.describe("t")).oldest_held == found.version


@virtual
async def test_what_is_held_back_and_what_is_foreign_is_told() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        for value in ("a", "b"):
            await put(client, value)
            await make_round(cluster)
        await asyncio.sleep(5)
        await client.delete_records("t", {0: 1})
        await cluster.store.put(f"{FOLDER}partition=0/part-0.parquet", b"x")
        await asyncio.sleep(60)
        await make_round(cluster)
        await asyncio.sleep(3600)
        found = await client.tables.describe("t")
        assert found.partitions[0].start == 1
        assert (found.foreign_objects, *found.foreign) == (1, f"{FOLDER}partition=0/part-0.parquet")


@virtual
async def test_any_broker_leads_to_the_owner_and_a_table_without_a_version_is_told() -> None:
    async with a_cluster() as (cluster, client):
        await cluster.start("b:1")
        await cluster.settled()
        await client.create_topic("t", 1, TABLE)
        found = await client.tables.describe("t")
        assert (found.version, found.oldest_held, found.changed, found.is_current) == (None, None, None, False)
        assert found.waits_for
        for address in cluster.brokers:
            async with cluster.client(address) as other:
                assert (await other.tables.describe("t")).generation == found.generation


@virtual
async def test_what_has_no_table_is_a_typed_error() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        await client.create_topic("plain", 1)
        await put(client, "a")
        await make_round(cluster)
        await asyncio.sleep(5)
        with pytest.raises(UnknownTopic):
            await client.tables.describe("nowhere")
        with pytest.raises(InvalidRequest, match="topic 'plain' has no table: `ledgermq topic alter plain"):
            await client.tables.describe("plain")
        await cluster.store.put(f"{keys.parquet_topic('t')}_delta_log/{commit_name(7)}", b"{}")
        with pytest.raises(DataDamaged, match=commit_name(1)[:-5]) as caught:
            await client.tables.describe("t")
        assert caught.value.object_key.startswith(f"{FOLDER}_delta_log/")


@virtual
async def test_a_rebuild_shows_all_anew_and_keeps_the_files_of_former_versions() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        for value in ("a", "b", "c"):
            await put(client, value)
            await make_round(cluster)
        await asyncio.sleep(5)
        named = (await table_of(cluster)).files.keys()
        await client.delete_records("t", {0: 2})
        before = (await client.tables.describe("t")).generation
        generation = await client.tables.rebuild("t")
        assert generation > before
        for _ in range(4):
            await asyncio.sleep(5)
            await make_round(cluster)
        found = await client.tables.describe("t")
        assert (found.generation, found.is_current, found.rows) == (generation, True, 1)
        assert await rows_of(cluster) == [b"c"]
        stored = {info.key.removeprefix(FOLDER) async for info in cluster.store.list(keys.parquet_partition("t", 0))}
        assert named <= stored, "readers of former versions have them open"
        await asyncio.sleep(KEEP_MS / 1000 + 3 * follower.GATES_EVERY_S)
        await make_round(cluster)
        await asyncio.sleep(follower.GATES_EVERY_S + 5)
        stored = {info.key async for info in cluster.store.list(keys.parquet_partition("t", 0))}
        assert len(stored) == 1


@virtual
async def test_one_call_rebuilds_once_however_often_it_is_sent() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        line, request = cluster.line("a:1"), pb.AlterTopicRequest(name="t", nonce=b"n" * 16, rebuild_table=True)
        first, second = [(await line.alter_topic(request)).topic.settings["table.generation"] for _ in range(2)]
        assert first == second
        await put(client, "a")
        await make_round(cluster)
        await asyncio.sleep(5)
        assert await client.tables.rebuild("t") < await client.tables.rebuild("t")
        await asyncio.sleep(5)
        assert await rows_of(cluster) == [b"a"]
        await client.create_topic("plain", 1)
        with pytest.raises(InvalidRequest, match="topic 'plain' has no table"):
            await client.tables.rebuild("plain")


@virtual
async def test_a_controller_of_an_earlier_release_rebuilds_nothing_and_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        service = cluster.brokers["a:1"].service
        now = service.alter_topic

        async def before(request: pb.AlterTopicRequest) -> pb.AlterTopicResponse:
            request.ClearField("rebuild_table")  # it does not know it
            return await now(request)

        monkeypatch.setattr(service, "alter_topic", before)
        with pytest.raises(InvalidRequest, match="an earlier release"):
            await client.tables.rebuild("t")


@virtual
async def test_a_dropped_table_names_no_file_and_the_topic_goes_on() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 2, TABLE)
        await put(client, "a", "b")
        await make_round(cluster)
        await asyncio.sleep(5)
        await client.tables.drop("t")
        assert (await table_of(cluster)).files == {}
        settings = (await client.describe_topic("t")).settings
        assert not settings.keys() & {"table.format", "table.delta.place", "table.generation"}
        last = (await table_of(cluster)).version
        await client.tables.drop("t")
        await put(client, "c")
        await make_round(cluster)
        await asyncio.sleep(70)
        assert (await table_of(cluster)).version == last, "no registrar goes on, and a repeated call says nothing"
        with pytest.raises(InvalidRequest, match="has no table"):
            await client.tables.describe("t")
        await client.alter_topic("t", settings=TABLE)
        await asyncio.sleep(65)
        assert await rows_of(cluster) == [b"a", b"b", b"c"]
        with pytest.raises(InvalidRequest, match="has its table yet"):
            await cluster.line("a:1").drop_table(pb.DropTableRequest(topic="t"))


@virtual
async def test_a_drop_ends_what_was_left_by_an_unset() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        await put(client, "a")
        await make_round(cluster)
        await asyncio.sleep(5)
        await client.alter_topic("t", settings={"table.format": "none"})
        assert (await table_of(cluster)).files
        await client.tables.drop("t")
        assert (await table_of(cluster)).files == {}


@virtual
@pytest.mark.parametrize("is_damaged", [False, True])
async def test_a_deleted_topic_leaves_a_table_without_files_and_its_name(*, is_damaged: bool) -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        await put(client, "a")
        await make_round(cluster)
        await asyncio.sleep(5)
        if is_damaged:
            await cluster.store.put(f"{FOLDER}_delta_log/{commit_name(7)}", b"{}")
        await client.delete_topic("t", now=True)
        await asyncio.sleep(60)
        assert [info async for info in cluster.store.list(keys.parquet_partition("t", 0))] == []
        assert is_damaged or (await table_of(cluster)).files == {}
        await client.create_topic("t", 1)


@virtual
async def test_a_version_without_files_comes_after_what_a_registrar_has_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        await put(client, "a")
        await make_round(cluster)
        await asyncio.sleep(5)
        commit, before = DeltaLog.commit, await table_of(cluster)

        async def late(log: DeltaLog, base: Table, draft: Draft, now_ms: int) -> Committed:
            monkeypatch.setattr(DeltaLog, "commit", commit)
            [add] = base.files.values()
            sent = Draft("WRITE", [Add(add.path.replace("partition=0", "partition=1"), add.size, 0, stats=add.stats)])
            assert await commit(log, base, sent, now_ms) is Committed.WON
            return await commit(log, base, draft, now_ms)

        await client.alter_topic("t", settings={"table.format": "none"})
        monkeypatch.setattr(DeltaLog, "commit", late)
        await client.tables.drop("t")
        table = await table_of(cluster)
        assert (table.version, table.files) == (before.version + 2, {})


@virtual
async def test_nothing_is_emptied_while_a_bundle_takes_the_table_for_set() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 1, TABLE)
        await put(client, "a")
        await make_round(cluster)
        await asyncio.sleep(5)
        [broker] = cluster.brokers.values()
        topic = replace(broker.metadata.catalog.topics_by_name["t"], settings=TopicSettings())
        with pytest.raises(Unavailable, match="does not know yet that topic 't' has no table"):
            await empty_table(cluster.store, broker.context.cluster, topic, virtual_sources(5))
        assert (await table_of(cluster)).files
