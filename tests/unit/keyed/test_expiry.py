"""`compact,delete`: keys that were not written for `retention.ms` go, and then there is quiet."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ledger.blocking import run_inline
from ledger.catalog import Catalog, Topic
from ledger.keyed.runner import clean_bundle
from ledger.keyed.version import KeyedVersion, newest_version
from ledger.keys import KeyedPlace
from ledger.object_store.memory import MemoryStore
from ledger.parquet.compaction import Compaction
from ledger.parquet.engine import LocalEngine
from ledger.parquet.runner import compact_bundle
from ledgermq.sources import Sources
from tests.keyed_topics import Pair, Written, put_pairs, read_plain_version
from tests.roots import Root

HOUR_MS = 3_600_000


@dataclass
class Clock:
    now_us: int = 1_764_547_200_000_000

    def __call__(self) -> int:
        return self.now_us


@dataclass
class Keyed:
    """A topic with one partition whose keys are forgotten after an hour."""

    root: Root
    clock: Clock
    topic: Topic
    written: Written

    @classmethod
    async def open(cls, **settings: str) -> Keyed:
        clock = Clock()
        sources = Sources(clock, random.Random(1))
        root = await Root.open(MemoryStore("keyed", sources), sources)
        asked = {"cleanup_policy": "compact,delete", "retention_ms": str(HOUR_MS)} | settings
        return cls(root, clock, await root.create_topic("t", **asked), Written())

    @property
    def _compaction(self) -> Compaction:
        return Compaction(self.root.store, self.root.cluster, self.root.sources, LocalEngine(self.root.sources, run_inline))

    async def put(self, *pairs: Pair, age_ms: int = 0) -> None:
        await put_pairs(self.root, self.topic, self.written, pairs, timestamp_ms=self.clock.now_us // 1000 - age_ms)

    async def compact(self) -> None:
        await compact_bundle(self._compaction, 1, await self.root.catalog(), everything=True)

    async def clean(self, catalog: Catalog | None = None) -> int:
        """How many versions were published."""
        return len(await clean_bundle(self._compaction, 1, catalog or await self.root.catalog(), everything=False))

    def wait(self, hours: float) -> None:
        self.clock.now_us += int(hours * HOUR_MS * 1000)

    async def version(self) -> KeyedVersion:
        published = await newest_version(self.root.store, KeyedPlace(self.topic.id, 0))
        assert published is not None
        return published.version

    async def offsets(self) -> list[int]:
        """That a plain reader of the newest version finds."""
        found = await read_plain_version(self.root.store, self.topic)
        assert found is not None
        return [row.offset for row in found[1]]


async def test_the_last_record_that_stays_however_old_makes_no_version_after_version() -> None:
    keyed = await Keyed.open()
    await keyed.put((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    await keyed.compact()
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [1, 2]
    keyed.wait(1.2)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [2]
    assert await keyed.clean() == 0
    keyed.wait(1.2)
    assert await keyed.clean() == 0


async def test_what_was_the_last_record_goes_when_others_follow() -> None:
    keyed = await Keyed.open(min_cleanable_dirty_ratio="0")
    await keyed.put((b"a", b"1"))
    await keyed.compact()
    await keyed.clean()
    keyed.wait(1.2)
    assert await keyed.clean() == 1
    assert await keyed.clean() == 0
    await keyed.put((b"b", b"2"))
    await keyed.compact()
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [1]


async def test_a_last_record_that_is_older_than_the_others_hides_none_of_them() -> None:
    keyed = await Keyed.open()
    await keyed.put((b"a", b"1"))
    await keyed.put((b"b", b"2"), age_ms=HOUR_MS // 2)
    await keyed.compact()
    await keyed.clean()
    keyed.wait(0.7)
    assert await keyed.clean() == 1
    assert await keyed.clean() == 0
    assert await keyed.offsets() == [0, 1]
    keyed.wait(0.5)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [1]
    assert await keyed.clean() == 0
