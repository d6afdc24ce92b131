"""The log of a keyed partition is deleted only below what the newest checkpoint says, and from below, whoever is at it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from ledger.blocking import run_inline
from ledger.catalog import Topic
from ledger.keyed.delete import delete_cleaned_log
from ledger.keyed.runner import clean_bundle
from ledger.keys import KeyedPlace
from ledger.object_store.contract import ObjectStore
from ledger.object_store.memory import MemoryStore
from ledger.parquet.compaction import Compaction
from ledger.parquet.engine import LocalEngine
from ledger.parquet.runner import compact_bundle
from ledgermq.sources import Sources
from tests.keyed_topics import Written, put_pairs
from tests.late_checkpoint import LateCheckpoint
from tests.passing_store import PassingStore
from tests.roots import Root, parquet_keys


@dataclass
class Clock:
    now_us: int = 1_764_547_200_000_000

    def __call__(self) -> int:
        return self.now_us


@dataclass
class Keyed:
    """A keyed topic with one partition."""

    root: Root
    clock: Clock
    topic: Topic
    written: Written

    @classmethod
    async def open(cls) -> Keyed:
        clock = Clock()
        sources = Sources(clock, random.Random(1))
        root = await Root.open(MemoryStore("keyed", sources), sources)
        return cls(root, clock, await root.create_topic("t", cleanup_policy="compact"), Written())

    async def clean(self) -> None:
        """Three records more, a file of them, a version that holds them, and time for both to be old."""
        root = self.root
        await put_pairs(root, self.topic, self.written, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
        engine, catalog = LocalEngine(root.sources, run_inline), await root.catalog()
        assert await compact_bundle(Compaction(root.store, root.cluster, root.sources, engine), 1, catalog, everything=True)
        await clean_bundle(Compaction(root.store, root.cluster, root.sources, engine), 1, catalog, everything=True)
        self.wait()

    def wait(self) -> None:
        self.clock.now_us += 1000 * (self.root.cluster.parquet_min_age_ms + 1)

    async def delete(self, store: ObjectStore) -> list[str]:
        return await delete_cleaned_log(store, self.root.cluster, self.topic, KeyedPlace(self.topic.id, 0), 1, self.root.sources)


async def test_a_checkpoint_under_a_number_that_was_free_again_deletes_nothing() -> None:
    """A legal hold may stand in the newer ones that it did not see."""
    keyed = await Keyed.open()
    await keyed.clean()
    root = keyed.root
    files = await parquet_keys(root.store)
    assert files
    late = LateCheckpoint(root, lambda checkpoint: any(part.parquet_start for part in checkpoint.partitions))
    assert await keyed.delete(late) == []
    assert late.came_late
    assert await parquet_keys(root.store) == files
    keyed.wait()  # the newest checkpoint witnesses the age of the plan, and is new
    assert await keyed.delete(root.store) == files
    assert not await parquet_keys(root.store)


class _Gone(Exception):
    """The process is no more."""


class _NoDeletes(PassingStore):
    async def delete(self, keys: Sequence[str]) -> None:
        raise _Gone


async def test_a_higher_file_never_goes_before_a_lower_one() -> None:
    """Another process had moved the start of the log, and had not come to its files yet."""
    keyed = await Keyed.open()
    await keyed.clean()
    with pytest.raises(_Gone):
        await keyed.delete(_NoDeletes(keyed.root.store))
    assert (await keyed.root.newest()).partitions[0].parquet_start == 3
    await keyed.clean()
    keyed.wait()
    lower, higher = sorted(await parquet_keys(keyed.root.store))
    assert await keyed.delete(keyed.root.store) == [lower, higher]
