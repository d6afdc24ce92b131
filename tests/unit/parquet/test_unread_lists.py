"""A list of merged files that cannot be read, because it is lost, damaged, or of a later release, stops no reader, no
merge of another partition and no deletion.
"""

from __future__ import annotations

import pytest

from ledgermq_ledger.parquet.merging import merge
from ledgermq_ledger.parquet.merging.merged_list import MergedReader
from tests.virtual_time import virtual
from tests.worlds.merged_files import UNREAD, a_root, compaction, counters_of, make_file, read_all, spans, spoil


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


@virtual
async def test_a_list_of_a_later_release_is_not_replaced() -> None:
    root = await a_root(3)
    await spoil(root, "later")
    for _ in range(3):
        await make_file(root)
    assert (await counters_of(root)).merged.number == 1
    assert await merge.merge_bundle(compaction(root), 1, await root.catalog()) == []
    assert await spans(root) == [(0, 5)]
