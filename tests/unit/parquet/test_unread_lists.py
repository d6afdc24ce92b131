"""A list of merged files that cannot be read, because it is lost, damaged, or of a later release, stops no reader, no
merge of another partition and no deletion.
"""

from __future__ import annotations

import pytest

from ledgermq_ledger.garbage.sweep import sweep
from ledgermq_ledger.parquet.merging import merge
from ledgermq_ledger.parquet.merging.merged_list import MergedReader
from tests.virtual_time import virtual
from tests.worlds.merged_files import (
    UNREAD,
    a_root,
    compaction,
    counters_of,
    delete_below,
    make_file,
    read_all,
    spans,
    spoil,
    without_deletions,
)


@pytest.mark.parametrize("how", UNREAD)
@virtual
async def test_readers_take_the_small_files(how: str) -> None:
    root = await a_root(3)
    await spoil(root, how)
    assert await MergedReader(root.store).at(await counters_of(root), 0) is None
    assert await read_all(root) == root.produced["t", 0]


@pytest.mark.parametrize("how", UNREAD)
@virtual
async def test_other_partitions_are_merged(how: str) -> None:
    root = await a_root(3)
    await spoil(root, how)
    await root.create_topic("u", parquet_merge_files="3")
    for _ in range(3):
        await make_file(root, "u")
    assert (await counters_of(root, "u")).merged.number == 1


@pytest.mark.parametrize("by_brokers", [True, False], ids=["brokers", "sweep"])
@pytest.mark.parametrize("how", UNREAD)
@virtual
async def test_merged_files_go_with_their_small_ones(how: str, by_brokers: bool) -> None:
    """Those of this partition, and those of the partitions behind it."""
    root = await a_root(6)
    await root.create_topic("u", parquet_merge_files="3")
    for _ in range(3):
        await make_file(root, "u")
    await spoil(root, how)
    way = "find" if by_brokers else "remove_behind"
    with without_deletions(way):
        await delete_below(root, 3)
        await delete_below(root, 3, "u")
        if not by_brokers:
            assert not (await sweep(compaction(root), grace_ms=0)).failures
    assert min(await spans(root))[0] >= 4, "offsets 0 to 2 are nowhere any longer"
    assert await read_all(root, first=3) == root.produced["t", 0][3:]


@pytest.mark.parametrize("how", UNREAD)
@virtual
async def test_a_partition_moves_without_its_list(how: str) -> None:
    root = await a_root(3, bundles=3)
    await spoil(root, how)
    await root.move("t", 0, 2)
    for _ in range(3):
        await make_file(root)
    counters = await counters_of(root, bundle=2)
    assert (counters.merged.number > 1) == (how != "later"), "the numbers go on"
    assert await read_all(root, bundle=2) == root.produced["t", 0]
    await delete_below(root, 9, bundle=2)
    assert all(first >= 8 for first, _ in await spans(root))
    assert await read_all(root, bundle=2, first=9) == root.produced["t", 0][9:]


@virtual
async def test_a_list_of_a_later_release_is_not_replaced() -> None:
    root = await a_root(3)
    await spoil(root, "later")
    for _ in range(3):
        await make_file(root)
    assert (await counters_of(root)).merged.number == 1
    assert await merge.merge_bundle(compaction(root), 1, await root.catalog()) == []
    assert await spans(root) == [(0, 5)]
