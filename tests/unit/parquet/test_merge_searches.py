"""A process looks for runs among the small files that came since its last look, and finds what a whole look finds."""

import random

from ledgermq_ledger.parquet.merging import merge
from tests.stores.requests_made import Requests
from tests.virtual_time import virtual
from tests.worlds.merged_files import a_root, compaction, counters_of, delete_below, make_file, unmerged
from tests.worlds.roots import Root


async def found(root: Root, of: merge.Compaction) -> list[tuple[int, tuple[bytes, ...]]]:
    merges = await merge.find_merges(of, 1, await root.catalog())
    return [(each.task.number, each.task.inputs) for each in merges]


@virtual
async def test_a_partition_without_new_files_is_not_read_again() -> None:
    root = await a_root(4)
    store, catalog = Requests(root.store), await root.catalog()
    of = compaction(root, store)
    assert await merge.merge_bundle(of, 1, catalog) == []
    assert (store.made["get", "merged"], store.made["get", "files"]) == (1, 1)
    store.made.clear()
    assert await merge.merge_bundle(of, 1, catalog) == []
    assert (store.made["get", "merged"], store.made["get", "files"]) == (0, 0)
    await make_file(root)
    store.made.clear()
    assert await merge.merge_bundle(of, 1, catalog) == []
    assert (store.made["get", "merged"], store.made["get", "files"]) == (0, 2), "pages of the unfinished run"


@virtual
async def test_other_settings_are_a_new_search() -> None:
    root = await unmerged(5)
    await root.alter_topic("t", parquet_merge_files="6")
    of = compaction(root)
    assert await found(root, of) == []
    await root.alter_topic("t", parquet_merge_files="3")
    assert len(await found(root, of)) == 1


@virtual
async def test_a_run_that_is_too_large_for_this_process_is_found_when_it_is_not() -> None:
    root = await unmerged(3)
    of, catalog = compaction(root), await root.catalog()
    assert await merge.find_merges(of, 1, catalog, bytes_max=10) == []
    assert await merge.find_merges(of, 1, catalog, bytes_max=10) == []
    assert len(await merge.find_merges(of, 1, catalog)) == 1


@virtual
async def test_a_search_from_the_last_one_finds_what_a_whole_one_finds() -> None:
    dice = random.Random(5)
    root = await unmerged(0)
    await root.alter_topic("t", parquet_target_bytes="20000")
    of, count, start = compaction(root), 0, 0
    for _ in range(40):
        await root.alter_topic("t", parquet_merge_files="0", parquet_appended=dice.choice((*["true"] * 9, "false")))
        size = dice.choice((10, 10, 10, 10, 3000, 9000))
        await make_file(root, values=[dice.randbytes(size), dice.randbytes(size)])
        if dice.random() < 0.1:
            start += dice.randrange(1, 6)
            await delete_below(root, start)
        await root.alter_topic("t", parquet_merge_files=dice.choice((*["3"] * 9, "4")))
        assert await found(root, of) == await found(root, compaction(root))
        if dice.random() < 0.5:
            by = of if dice.random() < 0.5 else compaction(root)
            count += len(await merge.merge_bundle(by, 1, await root.catalog()))
    assert count > 5
    assert (await counters_of(root)).merged.first > 0
