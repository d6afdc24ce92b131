"""Passes over a root by a process that is older than the newest bundle, and what stays of a bundle that a
pass does not know (design N5).
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ledgermq.errors import DataDamaged, InvalidRequest
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import FORMAT_VERSION, GROWN_VERSION, ClusterSettings, mark_grown, read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.garbage.found import Kind
from ledgermq_ledger.garbage.sweep import collect_garbage, find_garbage
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.open_root import check_bundles
from ledgermq_ledger.parquet.compacting.repair import find_parked
from ledgermq_ledger.parquet.files.columns import FooterNote, empty_file
from ledgermq_ledger.topics.catalog import read_catalog, reread_bundles
from tests.stores.backends import memory_store
from tests.unit.sweep.test_sweep import Untidied
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root

ADDED = 2
"""The bundle that is added to a root with bundles 0 and 1."""


async def filled(store: ObjectStore, sources: Sources) -> Untidied:
    """Records in an added bundle, and two rounds of it."""
    untidied = await Untidied.open(store, sources)
    root = untidied.root
    await root.create_topic("old")
    await root.produce("old", (0, [b"o"]))
    await root.add_bundles(ADDED + 1)
    await root.create_topic("new", bundle=ADDED)
    for i in range(2):
        await root.produce("new", (0, [b"%d" % i]))
        await root.compact()
    return untidied


async def test_every_pass_of_an_older_process_covers_an_added_bundle(sources: Sources) -> None:
    async with memory_store(sources) as store:
        untidied = await filled(store, sources)
        root = untidied.root
        assert root.cluster.bundles == ADDED, "it knows what was there when it began"
        written = [info.key async for info in store.list(keys.parquet_topic("new"))]
        assert len(written) == 2, "compaction"
        checked = await check_root(store, root.cluster, run_blocking=run_inline)
        assert not checked.problems, "fsck"
        assert await find_parked(store, root.cluster, run_inline) == [], "repair"
        await check_bundles(store, root.cluster, [ADDED])
        with pytest.raises(InvalidRequest, match="this cluster has bundles 0 to 2"):
            await check_bundles(store, root.cluster, [ADDED + 1])


async def test_garbage_of_an_added_bundle_is_collected_and_stays_where_the_bundle_is_unknown(sources: Sources) -> None:
    async with memory_store(sources) as store:
        untidied = await filled(store, sources)
        root = untidied.root
        topic = root.topics["new"]
        note = FooterNote(root.cluster.cluster_id, ADDED, topic.id, 0, 70, 70, 1, "00", failed="f")
        garbage = keys.ParquetName("new", 0, 70, 70, topic.id, 1).key
        await store.put_if_absent(garbage, [bytes(empty_file(note))])
        untidied.pass_time(100)
        assert (await find_garbage(store, root.cluster)).files == {}, "a pass by the number of before"
        found = await untidied.find()
        assert [each.key for each in found.removable if each.kind is Kind.PARQUET] == [garbage]
        assert found.foreign == []
        assert (await collect_garbage(store, root.cluster)).keys == [garbage]
        await store.put_if_absent(garbage, [bytes(empty_file(note))])
        untidied.pass_time(100)
        swept = await untidied.sweep()
        assert garbage in [each.key for each in swept.removed]
        assert not swept.failures
        assert len([info async for info in store.list(keys.parquet_topic("new"))]) == 2, "the others stay"


async def test_the_number_costs_one_request_until_some_are_added(sources: Sources) -> None:
    async with memory_store(sources) as store:
        root = await Root.open(store, sources)
        asked: list[str] = []
        real = store.get

        async def get(key: str) -> bytes:
            asked.append(key)
            return await real(key)

        store.get = get  # type: ignore[method-assign]
        assert await reread_bundles(store, root.cluster) == root.cluster
        assert asked == [keys.CLUSTER]
        await root.add_bundles(ADDED + 1)
        assert (await reread_bundles(store, root.cluster)).bundles == ADDED + 1


async def test_version_2_has_the_same_values_and_is_put_once(sources: Sources) -> None:
    async with memory_store(sources) as store:
        root = await Root.open(store, sources)
        before = await read_cluster(store)
        await mark_grown(store, root.cluster)
        first = await store.get(keys.CLUSTER)
        after = await read_cluster(store)
        assert (before.format_version, after.format_version) == (FORMAT_VERSION, GROWN_VERSION)
        assert replace(after, format_version=FORMAT_VERSION) == before
        await mark_grown(store, root.cluster)
        assert await store.get(keys.CLUSTER) == first
        with pytest.raises(DataDamaged, match="another cluster"):
            await mark_grown(store, ClusterSettings(cluster_id="of another"))
        without = json.loads(first)
        del without["crc32c"]
        await store.put(keys.CLUSTER, json.dumps(without).encode())
        with pytest.raises(DataDamaged, match="version 2 has a crc32c, and this one has none"):
            await read_cluster(store)


async def test_fsck_names_an_early_cluster_file_that_was_put_back(sources: Sources) -> None:
    async with memory_store(sources) as store:
        root = await Root.open(store, sources)
        early = await store.get(keys.CLUSTER)
        await root.add_bundles(ADDED + 1)
        assert not (await check_root(store, root.cluster, run_blocking=run_inline)).problems
        await store.put(keys.CLUSTER, early)
        catalog = await read_catalog(ledger_of(store, 0, cluster=root.cluster))
        assert catalog.bundles(root.cluster) == ADDED + 1, "the number is not lost"
        problems = (await check_root(store, root.cluster, run_blocking=run_inline)).problems
        assert [problem.code for problem in problems] == ["EARLY_VERSION"]
