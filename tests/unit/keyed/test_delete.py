"""The log of a keyed partition is deleted only below what the newest checkpoint says, and from
below, by every process.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledgermq_ledger.garbage.topics.cleaned_files import remove_cleaned as remove_cleaned_log
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.rounds.runner import compact_bundle
from tests.stores.late_checkpoint import LateCheckpoint
from tests.worlds.keyed_root import HOUR_MS, Keyed
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import parquet_keys


async def cleaned(keyed: Keyed) -> None:
    """Three records more, a file of them, a version that holds them, and time for both to be old."""
    await keyed.put((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    catalog = await keyed.root.catalog()
    assert await compact_bundle(keyed.compaction(), 1, catalog, everything=True)
    await clean_bundle(keyed.compaction(), 1, catalog, everything=True)
    age(keyed)


def age(keyed: Keyed) -> None:
    keyed.wait((keyed.root.cluster.parquet_min_age_ms + 1) / HOUR_MS)


async def delete(keyed: Keyed, store: ObjectStore) -> list[str]:
    return await remove_cleaned_log(
        ledger_of(store, 1, cluster=keyed.root.cluster, sources=keyed.root.sources),
        keyed.topic,
        PartitionId(keyed.topic.id, 0),
    )


async def test_a_checkpoint_under_a_number_that_was_free_again_deletes_nothing() -> None:
    """A legal hold may stand in the newer ones that it did not see."""
    keyed = await Keyed.open(cleanup_policy="compact")
    await cleaned(keyed)
    root = keyed.root
    files = await parquet_keys(root.store)
    assert files
    late = LateCheckpoint(root, lambda checkpoint: any(part.parquet_start for part in checkpoint.partitions))
    assert await delete(keyed, late) == []
    assert late.came_late
    assert await parquet_keys(root.store) == files
    age(keyed)  # the newest checkpoint witnesses the age of the plan, and is new
    assert await delete(keyed, root.store) == files
    assert not await parquet_keys(root.store)


class _Gone(Exception):
    """The process has ended."""


class _NoDeletes(StoreWrapper):
    async def delete(self, keys: Sequence[str]) -> None:
        raise _Gone


async def test_a_higher_file_never_goes_before_a_lower_one() -> None:
    """Another process had moved the start of the log, and had not come to its files yet."""
    keyed = await Keyed.open(cleanup_policy="compact")
    await cleaned(keyed)
    with pytest.raises(_Gone):
        await delete(keyed, _NoDeletes(keyed.root.store))
    assert (await keyed.root.newest()).partitions[0].parquet_start == 3
    await cleaned(keyed)
    age(keyed)
    lower, higher = sorted(await parquet_keys(keyed.root.store))
    assert await delete(keyed, keyed.root.store) == [lower, higher]
