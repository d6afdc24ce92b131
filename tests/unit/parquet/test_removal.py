"""Removed topics leave every bundle, whatever stage of compaction they are in; a name that is
created again never sees old data.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.topics.removed import remove as remove_topics
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.chains.plans import put_plan
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.compacting.plan import make_plan
from ledgermq_ledger.parquet.compacting.repair import find_parked, repair_partition
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.topics.removal import note_of, take_in_facts
from ledgermq_ledger.topics.topic import METADATA, encode_topic_record, topic_key
from tests.stores.late_checkpoint import LateCheckpoint
from tests.worlds.damage import damage_batch, damage_checkpoint
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, parquet_keys, read_everything


class AgedStore(StoreWrapper):
    """As S3: late puts are refused by their age only."""

    fences_close_at_once = False
    now_ms = 1_000_000

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.fences_close_at_once = False

    async def store_time_ms(self) -> int:
        return self.now_ms


async def removal(root: Root, store: ObjectStore | None = None) -> list[str]:
    engine = LocalEngine(root.sources, run_inline)
    done = await remove_topics(
        Compaction(store or root.store, root.cluster, root.sources, engine), await root.catalog()
    )
    assert not done.failures
    return [topic.name for topic in done.free]


@pytest.fixture
async def root(sources: Sources) -> Root:
    root = await Root.open(MemoryStore("removal", sources), sources)
    await root.create_topic("gone", partitions=2)
    await root.create_topic("kept")
    await root.produce("gone", (0, [b"a", b"b"]), (1, [b"c"]))
    await root.produce("kept", (0, [b"k"]))
    return root


@pytest.mark.parametrize("compacted", ["never", "all", "partly"])
async def test_a_removed_topic_is_gone_and_the_others_are_not(root: Root, compacted: str) -> None:
    if compacted != "never":
        await root.compact()
    if compacted == "partly":
        await root.produce("gone", (0, [b"tail"]))
        await root.produce("kept", (0, [b"tail"]))
    await root.remove_topic("gone")
    assert await removal(root) == ["gone"]
    assert not [key for key in await parquet_keys(root.store) if "topic=gone" in key]
    kept = {part: values for part, values in root.produced.items() if part[0] == "kept"}
    assert {part: values for part, values in (await read_everything(root)).items() if part[0] == "kept"} == kept
    checkpoint = await newest_checkpoint(root.store, 1)
    gone = root.topics["gone"].id
    assert note_of(checkpoint, gone) is not None
    assert gone not in {part.topic_id for part in checkpoint.partitions}
    assert await removal(root) == ["gone"]  # once more changes nothing
    await root.compact()
    assert not [key for key in await parquet_keys(root.store) if "topic=gone" in key]


async def test_a_name_that_is_created_again_never_sees_old_data(root: Root) -> None:
    await root.compact()
    old = root.topics["gone"].id
    await root.remove_topic("gone")
    assert await removal(root) == ["gone"]
    await root.put_internal(METADATA, topic_key("gone"), None)
    new = await root.create_topic("gone")
    assert new.id != old
    root.produced = {part: values for part, values in root.produced.items() if part[0] != "gone"}
    await root.produce("gone", (0, [b"new"]))
    await root.compact()
    assert await read_everything(root) == root.produced
    assert [key for key in await parquet_keys(root.store) if "topic=gone" in key] == [
        keys.ParquetName("gone", 0, 0, 0, new.id, (await newest_checkpoint(root.store, 1)).finished_plan).key
    ]


async def removed_behind_an_open_plan(root: Root) -> fmt.CompactionPlan:
    """A plan that names files of the topic `gone` is put, then the topic is removed, and the
    bundle's checkpoint says so.
    """
    history = await read_history(ledger_of(root.store, 1, cluster=root.cluster))
    plan = make_plan(
        history, await root.catalog(), everything=True, now_ms=root.sources.now_ms(), put_id=root.sources.new_id()
    )
    assert plan is not None
    assert await put_plan(root.store, plan, root.sources)
    await root.remove_topic("gone")
    await advance_checkpoint(
        ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources), take_in_facts(await root.catalog())
    )
    return plan


async def test_an_open_plan_that_names_files_of_the_topic_is_finished_first(root: Root) -> None:
    """The barrier: the plan was frozen before the removal; a rival may run it at any time, so it
    has to be over before any delete.
    """
    plan = await removed_behind_an_open_plan(root)
    assert await removal(root) == ["gone"]
    assert (await newest_checkpoint(root.store, 1)).finished_plan == plan.number
    assert not [key for key in await parquet_keys(root.store) if "topic=gone" in key]
    assert (await root.compact()).failures == {}


async def test_removal_deletes_nothing_while_the_plan_is_open_though_its_commit_seemed_to_succeed(root: Root) -> None:
    """Another process may run the open plan's tasks at any time: its fence is not closed, so a
    deleted file would come back.
    """
    plan = await removed_behind_an_open_plan(root)
    late = LateCheckpoint(root, lambda checkpoint: checkpoint.finished_plan == 1)
    late.fences_close_at_once = False  # else the plan is cut short, and none of its files is ever put
    assert await removal(root, late) == []
    assert late.came_late
    assert (await root.newest()).finished_plan == 0
    planned = {file.key for file in plan.files if file.topic == "gone"}
    assert planned
    assert planned <= set(await parquet_keys(root.store))
    assert await removal(root) == ["gone"]
    assert not [key for key in await parquet_keys(root.store) if "topic=gone" in key]
    assert not await root.store.list_fences()


async def test_records_that_a_stale_owner_appends_to_a_removed_topic_do_no_harm(root: Root) -> None:
    await root.remove_topic("gone")
    assert await removal(root) == ["gone"]
    await root.produce("gone", (0, [b"late"]))
    await root.produce("kept", (0, [b"more"]))
    assert (await root.compact()).failures == {}
    assert not [key for key in await parquet_keys(root.store) if "topic=gone" in key]
    root.writers.clear()
    await root.produce("kept", (0, [b"after a takeover"]))


async def test_where_late_puts_are_refused_by_age_only_files_stay_until_then(root: Root) -> None:
    await root.compact()
    await root.remove_topic("gone")
    store = AgedStore(root.store)
    assert await removal(root, store) == []
    assert [key for key in await parquet_keys(root.store) if "topic=gone" in key]
    store.now_ms += root.cluster.parquet_min_age_ms - 1
    assert await removal(root, store) == []
    store.now_ms += 1
    assert await removal(root, store) == ["gone"]


@pytest.mark.parametrize("repaired", [False, True])
async def test_files_that_failed_count_for_late_puts_too(root: Root, repaired: bool) -> None:
    """A plan named a file of the topic, so that a task that sleeps may still put it, although no
    list of files has ever named one.
    """
    for partition in range(2):
        await damage_batch(root.store, 1, 2, PartitionId(root.topics["gone"].id, partition))
    assert len((await root.compact()).parked) == 2
    if repaired:
        for found in await find_parked(root.store, root.cluster, run_inline):
            assert await repair_partition(root.store, root.cluster, found, root.sources)
    assert not any(
        part.newest_page for part in (await root.newest()).partitions if part.topic_id == root.topics["gone"].id
    )
    await root.remove_topic("gone")
    store = AgedStore(root.store)
    assert await removal(root, store) == []
    store.now_ms += root.cluster.parquet_min_age_ms - 1
    assert await removal(root, store) == []
    store.now_ms += 1
    assert await removal(root, store) == ["gone"]
    assert not [key for key in await parquet_keys(root.store) if "topic=gone" in key]


async def test_a_damaged_bundle_keeps_no_topic_in_another(sources: Sources) -> None:
    """The name of a topic of which nothing is left is free, and those behind the one that has to
    wait have their turn.
    """
    root = await Root.open(MemoryStore("removal", sources), sources, bundles=4)
    for name, bundle in (("before", 1), ("inside", 2), ("behind", 1)):
        await root.create_topic(name, bundle=bundle)
        await root.produce(name, (0, [b"a"]))
    await root.compact()
    both = await root.create_topic("both", bundle=1)
    await root.put_internal(
        METADATA, topic_key("both"), encode_topic_record(replace(both, bundles=(1, 2), removed=True))
    )
    for name in ("before", "inside", "behind"):
        await root.remove_topic(name)
    damaged = await damage_checkpoint(root.store, 2)
    engine = LocalEngine(sources, run_inline)
    done = await remove_topics(Compaction(root.store, root.cluster, sources, engine), await root.catalog())
    assert [topic.name for topic in done.free] == ["before", "behind"]
    assert {bundle: error.object_key for bundle, error in done.failures.items()} == {2: damaged}
    assert [keys.parse_parquet(key).topic for key in await parquet_keys(root.store)] == ["inside"]  # type: ignore[union-attr]
    note = note_of(await newest_checkpoint(root.store, 1), both.id)
    assert note is not None
    assert note.files_deleted, "it has left the bundle that is whole"


async def test_a_topic_without_any_planned_file_need_not_wait(root: Root) -> None:
    await root.remove_topic("gone")
    assert await removal(root, AgedStore(root.store)) == ["gone"]
