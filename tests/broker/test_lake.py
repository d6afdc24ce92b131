"""The tables of all topics, in pages, as the owners of their first partitions describe them; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ledgermq.errors import InvalidRequest, Unauthorized
from ledgermq_ledger.delta.names import commit_name
from ledgermq_ledger.object_store.contract import ObjectInfo
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.access import RULES, token
from tests.broker.cluster import cluster_of
from tests.broker.test_tables import AGES, FOLDER, TABLE, a_cluster, make_round, put
from tests.virtual_time import virtual


@virtual
async def test_a_summary_says_what_a_description_says() -> None:
    async with a_cluster() as (cluster, client):
        await client.create_topic("t", 2, TABLE)
        await client.create_topic("plain", 1)
        [found] = await client.tables.list()
        assert (found.topic, found.version, found.rows, found.changed) == ("t", None, 0, None)
        await put(client, "a", "b")
        await make_round(cluster)
        await asyncio.sleep(5)
        await put(client, "c")
        await make_round(cluster)
        [found] = await client.tables.list()
        table = await client.tables.describe("t")
        assert (found.format, found.folder, found.version) == ("delta", table.folder, table.version)
        assert (found.rows, found.files, found.missing) == (2, 1, 1)
        assert found.size_bytes == sum(each.size_bytes for each in table.partitions) > 0
        assert (found.changed, found.held_bytes, found.stopped) == (table.changed, table.held_bytes, 0)
        await asyncio.sleep(5)
        [found] = await client.tables.list()
        assert (found.rows, found.missing, found.behind_s, found.trouble) == (3, 0, 0.0, "")


@virtual
async def test_pages_over_several_brokers() -> None:
    async with cluster_of("a:1", "b:1", constants=AGES, bundles=4) as cluster, cluster.client() as client:
        names = [f"t{number}" for number in range(7)]
        for name in names:
            await client.create_topic(name, 1, TABLE)
        await client.create_topic("t", 1)
        assert len({await cluster.owner_of(name, 0) for name in names}) == 2
        assert [each.topic for each in await client.tables.list()] == names
        found: list[str] = []
        while page := await client.tables.list(after=found[-1] if found else "", limit=3):
            found += [each.topic for each in page]
        assert found == names
        await client.delete_topic("t3")
        await asyncio.sleep(1)
        assert [each.topic for each in await client.tables.list(after="t1", limit=2)] == ["t2", "t4"]
        for limit in (0, 101):
            with pytest.raises(InvalidRequest, match="limit"):
                await client.tables.list(limit=limit)


@virtual
async def test_a_page_reads_the_checkpoint_of_each_bundle_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read for each partition: a page of 50 topics with 8 partitions listed and read the store 400 times."""
    looks, true = list[str](), MemoryStore.list

    def noted(self: MemoryStore, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        looks.append(prefix)
        return true(self, prefix, start_after)

    async with a_cluster() as (cluster, client):
        names = [f"t{number}" for number in range(5)]
        for name in names:
            await client.create_topic(name, 4, TABLE)
            await put(client, "a", topic=name)
        await make_round(cluster)
        await asyncio.sleep(5)
        monkeypatch.setattr(MemoryStore, "list", noted)
        found = await client.tables.list()
        read = [prefix for prefix in looks if prefix.endswith("/checkpoints/")]
    assert [(each.topic, each.rows, each.missing) for each in found] == [(name, 1, 0) for name in names]
    assert 1 <= len(read) == len(set(read)), read


@virtual
async def test_a_table_that_cannot_be_read_hides_no_other() -> None:
    async with a_cluster() as (cluster, client):
        for name in ("t", "u"):
            await client.create_topic(name, 1, TABLE)
            await put(client, "a", topic=name)
        await make_round(cluster)
        await asyncio.sleep(5)
        version = (await client.tables.describe("t")).version
        await cluster.store.put(f"{FOLDER}_delta_log/{commit_name(version or 0)}", b"no JSON")
        damaged, whole = await client.tables.list()
        assert (damaged.topic, damaged.version, damaged.rows) == ("t", None, 0)
        assert damaged.trouble
        assert (whole.topic, whole.rows, whole.trouble) == ("u", 1, "")


@virtual
async def test_it_needs_the_right_of_operators() -> None:
    async with cluster_of("a:1", constants=AGES, **RULES) as cluster:
        alice = await token(cluster, "alice")
        async with cluster.client(token=alice.text) as client:
            with pytest.raises(Unauthorized):
                await client.tables.list()
