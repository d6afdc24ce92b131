"""Merged files go when they have to, and whatever comes between a merged file and its list wins."""

import asyncio
from functools import partial

import pytest

from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.sweep import sweep
from ledgermq_ledger.garbage.topics import merged_files
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.log.chains.checkpoint import encode_checkpoint
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectMissing
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.merging import merge
from ledgermq_ledger.parquet.merging.merged_list import read_list
from ledgermq_ledger.parquet.merging.names import MergedName
from ledgermq_ledger.rounds.runner import bring_facts_into_force
from ledgermq_ledger.topics.topic import METADATA, topic_key
from tests.stores.backends import seeded_sources
from tests.stores.dying import Crash, DyingStore
from tests.virtual_time import run_virtual, virtual
from tests.worlds.cuts import drop_cut, end_cuts, take_cut
from tests.worlds.ledgers import ledger_of
from tests.worlds.merged_files import (
    AGED_S,
    Meanwhile,
    a_root,
    a_sources,
    check_all,
    compaction,
    counters_of,
    damage,
    delete_below,
    make_file,
    merged_keys,
    read_all,
    spans,
    unmerged,
    without_deletions,
)
from tests.worlds.restoring import restore_into, root_of
from tests.worlds.roots import Root, parquet_keys

# What goes, and when.


@virtual
async def test_a_merged_file_goes_with_the_first_of_its_small_ones() -> None:
    root = await a_root(9)
    assert await spans(root) == [(0, 5), (6, 11), (12, 17)]
    await delete_below(root, 3)
    assert await spans(root) == [(6, 11), (12, 17)], "offsets 0 and 1 are nowhere any longer"
    assert (await counters_of(root)).merged.first == 6
    assert await read_all(root, first=3) == root.produced["t", 0][3:]
    await check_all(root)
    await make_file(root)
    assert await spans(root) == [(6, 11), (12, 17)], "what is left of the first run is no run"
    await delete_below(root, 18)
    assert await spans(root) == []
    await check_all(root)


@pytest.mark.parametrize("rounds", [5, 6])
@virtual
async def test_a_merge_before_the_deletion_forgets_no_file_behind_the_front(rounds: int) -> None:
    root = await a_root(rounds)
    with without_deletions("find", "remove_behind"):
        await delete_below(root, 3)
        for _ in range(3 * 2 - rounds if rounds < 6 else 3):
            await make_file(root)
    listed = (await read_list(root.store, await counters_of(root))).files
    assert [file.first_offset for file in listed] == [0, 6, 12][: len(listed)]
    assert await read_all(root, first=3) == root.produced["t", 0][3:]
    with without_deletions("find"):  # brokers alone, no compactor
        assert not (await root.compact()).failures
    assert await spans(root) == [(6, 11), (12, 17)][: len(listed) - 1]
    assert (await counters_of(root)).merged.first == 6
    await check_all(root)


@virtual
async def test_what_a_merge_lists_while_files_behind_the_front_go_is_not_forgotten() -> None:
    root = await a_root(5)
    with without_deletions("find", "remove_behind"):
        await delete_below(root, 3)
    await root.produce("t", (0, [b"10", b"11"]))
    await asyncio.sleep(1)
    store, catalog = Meanwhile(root.store, "checkpoints/"), await root.catalog()
    store.then = [make_file_and_keep(root)]
    ledger = ledger_of(store, 1, cluster=root.cluster, sources=root.sources)
    assert await merged_files.remove_behind(ledger, catalog) == 1
    with without_deletions("find"):
        await delete_below(root, 8)
        await delete_below(root, 9)
    assert await spans(root) == []


async def make_file_and_keep(root: Root) -> None:
    with without_deletions("find", "remove_behind"):
        assert not (await root.compact()).failures


@virtual
async def test_a_held_topic_keeps_all_of_them() -> None:
    root = await a_root(6)
    ledger = ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources)
    assert await advance_checkpoint(ledger, deletion_move(root.topics["t"], {0: 3}))
    await root.alter_topic("t", legal_hold="true")
    await bring_facts_into_force(ledger, await root.catalog())
    before = await merged_keys(root)
    await asyncio.sleep(AGED_S)
    assert not (await sweep(compaction(root), grace_ms=0)).failures
    assert await merged_keys(root) == before
    for _ in range(3):
        await make_file(root)
    assert (12, 17) in await spans(root), "a hold forbids no addition"
    await root.alter_topic("t", legal_hold="false")
    await bring_facts_into_force(ledger, await root.catalog())
    await delete_below(root, 4)
    assert await spans(root) == [(6, 11), (12, 17)]
    await check_all(root)


@virtual
async def test_all_of_a_removed_topic_goes_and_a_new_one_of_its_name_begins_anew() -> None:
    root = await a_root(6)
    old = root.topics["t"].id
    await root.remove_topic("t")
    for _ in range(4):
        await asyncio.sleep(AGED_S)
        assert not (await sweep(compaction(root), grace_ms=0)).failures
        assert not (await root.compact()).failures
    assert await merged_keys(root) == []
    await root.put_internal(METADATA, topic_key("t"), None)
    root.produced.clear()
    await root.create_topic("t", parquet_merge_files="3")
    assert root.topics["t"].id > old
    for _ in range(3):
        await make_file(root)
    assert await spans(root) == [(0, 5)]
    await check_all(root)


@virtual
async def test_what_a_dead_merge_left_goes_with_the_next_one() -> None:
    root = await a_root(3)
    place = keys.PartitionId(root.topics["t"].id, 0)
    left = [MergedName(place, 2, b"d" * 16, (0, 9)).key, MergedName(place, 2, b"d" * 16).key]
    for key in left:
        await root.store.put_if_absent(key, [b"put, and never listed"])
    await asyncio.sleep(10 * AGED_S)
    assert not (await sweep(compaction(root), grace_ms=0)).failures
    assert set(left) <= set(await merged_keys(root)), "merge 2 may list them yet, however old they are"
    for _ in range(3):
        await make_file(root)
    assert await spans(root) == [(0, 5), (6, 11)]
    await check_all(root)


# Pairs.


@virtual
async def test_two_mergers_of_one_run_make_one_list_and_garbage() -> None:
    root = await a_root(0, parquet_merge_files="0")
    for _ in range(3):
        await make_file(root)
    await root.alter_topic("t", parquet_merge_files="3")
    catalog = await root.catalog()
    both = [merge.merge_bundle(compaction(root, seed=seed), 1, catalog) for seed in (1, 2)]
    reports = await asyncio.gather(*both)
    assert sorted(len(found) for found in reports) == [0, 1]
    assert (await counters_of(root)).merged.number == 1
    assert await spans(root) == [(0, 5), (0, 5)]
    await check_all(root)
    assert await spans(root) == [(0, 5)]


@virtual
async def test_retention_between_file_and_list_wins() -> None:
    root = await unmerged(3)
    store = Meanwhile(root.store)

    async def expire() -> None:
        await root.alter_topic("t", parquet_merge_files="0")
        await delete_below(root, 2)

    store.then = [expire()]
    assert await merge.merge_bundle(compaction(root, store), 1, await root.catalog()) == []
    assert (await counters_of(root)).merged.number == 0
    await check_all(root)
    assert await spans(root) == [], "it can stand for nothing any longer"
    await root.alter_topic("t", parquet_merge_files="3")
    for _ in range(3):
        await make_file(root)
    await check_all(root)
    assert len(await merged_keys(root)) == 2, "the list that was never in force has gone with the next merge"


@virtual
async def test_a_move_between_file_and_list_wins_and_the_list_goes_over() -> None:
    root = await unmerged(3, bundles=3)
    store = Meanwhile(root.store)
    store.then = [root.move("t", 0, 2)]
    catalog = await root.catalog()
    await merge.merge_bundle(compaction(root, store), 1, catalog)
    assert (await counters_of(root, bundle=1)).forgotten
    assert not (await counters_of(root, bundle=1)).merged.number
    assert not (await root.compact()).failures
    assert (await counters_of(root, bundle=2)).merged.number >= 1
    for _ in range(3):
        await make_file(root)
    number = (await counters_of(root, bundle=2)).merged.number
    await root.move("t", 0, 1)
    there = await counters_of(root)
    assert there.merged.number == number
    assert await read_list(root.store, there)
    assert await read_all(root) == root.produced["t", 0]
    await check_all(root)
    assert await spans(root) == [(0, 5), (6, 11)]


@virtual
async def test_deletion_between_file_and_list_wins() -> None:
    root = await unmerged(3)
    store = Meanwhile(root.store)

    async def delete() -> None:
        await root.remove_topic("t")
        for _ in range(3):
            await asyncio.sleep(AGED_S)
            assert not (await root.compact()).failures

    store.then = [delete()]
    assert await merge.merge_bundle(compaction(root, store), 1, await root.catalog()) == []
    await asyncio.sleep(AGED_S)
    assert not (await sweep(compaction(root), grace_ms=0)).failures
    assert await merged_keys(root) == []


@virtual
async def test_a_topic_that_is_removed_is_merged_by_no_process_with_an_older_catalog() -> None:
    root = await unmerged(3)
    catalog = await root.catalog()
    await root.remove_topic("t")
    ledger = ledger_of(root.store, 1, cluster=root.cluster, sources=root.sources)
    checkpoint = await bring_facts_into_force(ledger, await root.catalog())
    assert [note.topic_id for note in checkpoint.removed_topics] == [root.topics["t"].id]
    assert await merge.merge_bundle(compaction(root), 1, catalog) == []
    assert await merged_keys(root) == []


@virtual
async def test_a_cut_is_read_and_restored_without_merged_files() -> None:
    root = await a_root(6)
    await take_cut(root)
    await delete_below(root, 8)
    assert await spans(root) == [], "a cut keeps small files alone"
    store = MemoryStore("target", a_sources(3))
    target = root_of(await restore_into(root.store, "c", store), store, root)
    assert await merged_keys(target) == []
    assert await read_all(target) == root.produced["t", 0][:12]
    assert await damage(target) == []
    for _ in range(3):
        await target.produce("t", (0, [b"later"]))
        assert not (await target.compact()).failures
    assert (await counters_of(target)).merged.number == 3, "the copy begins to merge anew"
    await drop_cut(root)
    await end_cuts(root)
    await check_all(root)


@pytest.mark.slow
@pytest.mark.parametrize("after_effect", [False, True])
def test_a_merge_that_dies_anywhere_is_done_by_the_next(after_effect: bool) -> None:
    async def run(dies_at: int) -> bool:
        root = await unmerged(4)
        catalog = await root.catalog()
        dying = DyingStore(root.store, dies_at, after_effect)
        try:
            await merge.merge_bundle(compaction(root, dying, dies_at), 1, catalog)
            died = False
        except Crash:
            died = True
        assert await read_all(root) == root.produced["t", 0]
        assert await damage(root) == []
        assert not (await root.compact(sources=seeded_sources(99))).failures
        await check_all(root)
        assert (0, 5) in await spans(root)
        assert await read_all(root) == root.produced["t", 0]
        return died

    dies_at = 1
    while run_virtual(partial(run, dies_at)):
        dies_at += 1
    assert dies_at > 8, "a merge has more operations than that"


@virtual
async def test_a_checkpoint_without_its_list_leaves_garbage_that_later_merges_free() -> None:
    """An earlier release drops the field."""
    root = await a_root(9)
    before = await merged_keys(root)
    checkpoint = await root.newest()
    for part in checkpoint.partitions:
        part.ClearField("merged")
    store = root.store
    assert isinstance(store, MemoryStore)
    await store.put(keys.checkpoint(1, checkpoint.number), encode_checkpoint(checkpoint))
    assert await read_all(root) == root.produced["t", 0]
    assert len(await merge.merge_bundle(compaction(root), 1, await root.catalog())) == 3
    assert (await counters_of(root)).merged.number == 3, "the numbers began again"
    await check_all(root)
    assert await spans(root) == [(0, 5), (6, 11), (12, 17)]
    assert set(before).isdisjoint(await merged_keys(root))


@virtual
async def test_an_expired_input_ends_a_merge_without_an_error() -> None:
    root = await unmerged(3)
    key = (await parquet_keys(root.store))[0]
    merges = await merge.find_merges(compaction(root), 1, await root.catalog())
    await root.store.delete([key])
    with pytest.raises(ObjectMissing):
        await merges[0].task.run(root.store, root.sources, run_inline)
    assert await merge.merge_bundle(compaction(root), 1, await root.catalog()) == []
