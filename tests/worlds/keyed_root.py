"""A root with one keyed topic of one partition, which may move, by a clock that the test sets."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.keyed.version import KeyedVersion, newest_version
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.hand_over import has_forgotten
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.rounds.runner import bring_facts_into_force, compact_bundle
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic
from tests.worlds.keyed_topics import Pair, Written, put_pairs, read_plain_version
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root

HOUR_MS = 3_600_000


@dataclass
class Clock:
    now_us: int = 1_764_547_200_000_000

    def __call__(self) -> int:
        return self.now_us


@dataclass
class Keyed:
    """By default its keys are forgotten after an hour. The partition begins in bundle 1."""

    root: Root
    clock: Clock
    topic: Topic
    written: Written

    @classmethod
    async def open(cls, bundles: int = 2, **settings: str) -> Keyed:
        clock = Clock()
        sources = Sources(clock, random.Random(1))
        root = await Root.open(MemoryStore("keyed", sources), sources, bundles)
        asked = {
            "cleanup_policy": "compact,delete",
            "retention_ms": str(HOUR_MS),
            "min_cleanable_dirty_ratio": "0",
        } | settings
        return cls(root, clock, await root.create_topic("t", **asked), Written())

    @property
    def bundle(self) -> int:
        """The one that the catalog names."""
        return self.topic.bundles[0]

    def compaction(self, store: ObjectStore | None = None) -> Compaction:
        return Compaction(
            store or self.root.store, self.root.cluster, self.root.sources, LocalEngine(self.root.sources, run_inline)
        )

    async def put(self, *pairs: Pair, age_ms: int = 0) -> None:
        await put_pairs(self.root, self.topic, self.written, pairs, timestamp_ms=self.clock.now_us // 1000 - age_ms)

    async def compact(self) -> None:
        await compact_bundle(self.compaction(), self.bundle, await self.root.catalog(), everything=True)

    async def clean(self, catalog: Catalog | None = None, store: ObjectStore | None = None) -> int:
        """How many versions were published.

        `catalog`: of some time ago; `store`: a wrapper of the same objects.
        """
        catalog = catalog or await self.root.catalog()
        bundle = catalog.topics_by_name["t"].bundles[0]
        return len(await clean_bundle(self.compaction(store), bundle, catalog, everything=False))

    async def alter(self, **settings: str) -> None:
        """Answered: the newest checkpoints of the partition's bundles name it."""
        root = self.root
        await root.alter_topic("t", **settings)
        self.topic = root.topics["t"]
        catalog = await root.catalog()
        for bundle in sorted(catalog.topics_by_name["t"].bundles_in_use):
            ledger = ledger_of(root.store, bundle, cluster=root.cluster, sources=root.sources)
            await bring_facts_into_force(ledger, catalog)

    async def move(self, bundle: int) -> None:
        """All steps of a move, without a round of cleaning."""
        root = self.root
        await root.decide_move("t", 0, bundle)
        for step in (root.seal, root.open_moved):
            await step("t", 0)
        await self.hand_over()
        await root.end_move("t", 0)
        self.topic = root.topics["t"]

    async def hand_over(self) -> None:
        """Rounds of the log until the old bundle has forgotten the partition."""
        root, topic = self.root, self.root.topics["t"]
        move = topic.moves[0]
        while not has_forgotten(await root.newest(move.source), PartitionId(topic.id, 0), move.id):
            for bundle in (move.source, topic.bundles[0]):
                await compact_bundle(self.compaction(), bundle, await root.catalog(), everything=True)

    def wait(self, hours: float) -> None:
        self.clock.now_us += int(hours * HOUR_MS * 1000)

    async def version(self) -> KeyedVersion:
        published = await newest_version(self.root.store, PartitionId(self.topic.id, 0))
        assert published is not None
        return published.version

    async def offsets(self) -> list[int]:
        """That a plain reader of the newest version finds."""
        found = await read_plain_version(self.root.store, self.topic)
        assert found is not None
        return [row.offset for row in found[1]]

    async def objects(self) -> list[str]:
        """Of versions."""
        return [info.key async for info in self.root.store.list(keys.KEYED)]
