"""The log of a keyed partition is deleted only below what the newest checkpoint says, whatever number was won."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ledger.keyed.delete import delete_cleaned_log
from ledger.keyed.runner import clean_bundle
from ledger.keys import KeyedPlace
from ledger.object_store.contract import ObjectStore
from ledger.object_store.memory import MemoryStore
from ledger.parquet.engine import LocalEngine
from ledger.parquet.group_build import run_inline
from ledger.parquet.runner import compact_bundle
from ledgermq.sources import Sources
from tests.keyed_topics import Written, put_pairs
from tests.late_checkpoint import LateCheckpoint
from tests.roots import Root, parquet_keys


@dataclass
class Clock:
    now_us: int = 1_764_547_200_000_000

    def __call__(self) -> int:
        return self.now_us


async def test_a_checkpoint_under_a_number_that_was_free_again_deletes_nothing() -> None:
    """A legal hold may stand in the newer ones that it did not see."""
    clock = Clock()
    sources = Sources(clock, random.Random(1))
    root = await Root.open(MemoryStore("keyed", sources), sources)
    topic = await root.create_topic("t", cleanup_policy="compact")
    await put_pairs(root, topic, Written(), [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
    engine, catalog = LocalEngine(sources, run_inline), await root.catalog()
    assert await compact_bundle(root.store, 1, root.cluster, catalog, sources, engine, everything=True)
    await clean_bundle(root.store, 1, root.cluster, catalog, sources, engine, everything=True)
    clock.now_us += 1000 * (root.cluster.parquet_min_age_ms + 1)

    async def delete(store: ObjectStore) -> list[str]:
        return await delete_cleaned_log(store, root.cluster, topic, KeyedPlace(topic.id, 0), 1, sources)

    files = await parquet_keys(root.store)
    assert files
    late = LateCheckpoint(root, lambda checkpoint: any(part.parquet_start for part in checkpoint.partitions))
    assert await delete(late) == []
    assert late.came_late
    assert await parquet_keys(root.store) == files
    clock.now_us += 1000 * (root.cluster.parquet_min_age_ms + 1)  # the newest checkpoint witnesses the age of the plan, and is new
    assert await delete(root.store) == files
    assert not await parquet_keys(root.store)
