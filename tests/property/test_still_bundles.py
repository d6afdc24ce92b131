"""The compaction service beside whatever may happen to a root: what it took for still is compacted,
trimmed and deleted in time.

At the end of a random life a second service, which remembers nothing, looks at the whole of every
bundle at the same moment as the first one: it finds no record that should be in Parquet by now, and
a while later nothing at all that is left to do.
"""

from __future__ import annotations

import asyncio
import os
from random import Random

import pytest

from ledgermq.errors import DataDamaged, LedgerMQError
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.report import RoundReport
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.rounds.service import CompactionService, ServiceEvents
from ledgermq_ledger.rounds.stillness import STILL_S_MAX
from tests.stores.requests_made import LateLists, Requests
from tests.virtual_time import run_virtual, virtual, virtual_sources
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import NoTasks, Root, read_everything

SEEDS = int(os.environ.get("LEDGERMQ_SEEDS", "12"))
BUNDLES, STEPS = 4, 60


class _Heard(ServiceEvents):
    def __init__(self) -> None:
        self.records = 0
        self.failures: list[LedgerMQError] = []

    def round_finished(self, report: RoundReport) -> None:
        self.records += report.records

    def bundle_failed(self, bundle: int, error: LedgerMQError) -> None:
        self.failures.append(error)


class _World:
    def __init__(self, root: Root, store: Requests, seed: int) -> None:
        self.root = root
        self.store = store
        self.heard = _Heard()
        self.service = self.new_service()
        self.skipped = 0
        self.taken_from = {name for name in root.topics if name.startswith("soon")}
        """Topics of which retention or an operator has deleted records."""
        self._random = Random(seed)

    def new_service(self) -> CompactionService:
        root = self.root
        return CompactionService(
            self.store, root.cluster, root.sources, LocalEngine(root.sources, run_inline), self.heard
        )

    async def step(self) -> None:
        deeds = (
            self.produce,
            self.produce,
            self.sleep,
            self.sleep,
            self.run,
            self.run,
            self.alter,
            self.delete,
            self.rival,
            self.dying_rival,
        )
        await self._random.choice(deeds)()

    async def sleep(self) -> None:
        await asyncio.sleep(self._random.choice((1, 30, 60, 400, 5000)))

    async def run(self) -> None:
        self.store.made.clear()
        await self.service.run_once(collect=False)
        looks = self.store.made["list", "compactions"]  # one for each bundle that is looked at as a whole
        self.skipped += max(0, BUNDLES - looks)

    async def produce(self) -> None:
        name = self._random.choice([*self.root.topics])
        now_ms = self.root.sources.now_ms()
        await self.root.produce(name, (0, [b"x" * self._random.choice((1, 500))] * 3), timestamp_ms=now_ms)

    async def alter(self) -> None:
        name = self._random.choice([*self.root.topics])
        changes = (
            ("retention_ms", "100000"),
            ("retention_ms", "-1"),
            ("parquet_max_lag_ms", "0"),
            ("legal_hold", "true"),
        )
        setting, value = self._random.choice(changes)
        if (setting, value) == changes[0]:
            self.taken_from.add(name)
        await self.root.alter_topic(name, **{setting: value})

    async def delete(self) -> None:
        topic = self.root.topics[self._random.choice([*self.root.topics])]
        try:
            await advance_checkpoint(
                ledger_of(self.store, topic.bundles[0], sources=self.root.sources), deletion_move(topic, {0: 2})
            )
            self.taken_from.add(topic.name)
        except (AssertionError, LedgerMQError):
            return  # less is there, or the topic is held

    async def rival(self) -> None:
        engine = LocalEngine(self.root.sources, run_inline)
        compaction = Compaction(self.root.store, self.root.cluster, self.root.sources, engine)
        await compact_bundle(compaction, self._random.randrange(BUNDLES), await self.root.catalog(), everything=True)

    async def dying_rival(self) -> None:
        """It leaves a plan behind, whose files no process has written."""
        engine = LocalEngine(self.root.sources, run_inline)
        compaction = Compaction(NoTasks(self.root.store), self.root.cluster, self.root.sources, engine)
        try:
            await compact_bundle(
                compaction, self._random.randrange(1, BUNDLES), await self.root.catalog(), everything=True
            )
        except DataDamaged:
            return


async def _keys(store: Requests) -> set[str]:
    return {info.key async for info in store.list("")} | {*await store.list_fences()}


async def _live(seed: int) -> int:
    sources = virtual_sources(seed)
    store = LateLists(MemoryStore("", sources), 0.05)
    root = await Root.open(store, sources, BUNDLES)
    for bundle in range(1, BUNDLES):
        await root.create_topic(f"soon{bundle}", bundle=bundle, parquet_max_lag_ms="0", retention_ms="1000000")
        await root.create_topic(
            f"late{bundle}", bundle=bundle, parquet_max_lag_ms="100000", parquet_target_bytes="4000"
        )
    world = _World(root, store, seed)
    for _ in range(STEPS):
        await world.step()
    store.late_s = 0.0  # both services look at the same moment, else something may become due in between
    for _ in range(2):
        await world.service.run_once(collect=False)
    await asyncio.sleep(STILL_S_MAX - 60)  # records that waited for their lag then have waited enough
    await world.service.run_once(collect=False)
    done = world.heard.records
    await world.new_service().run_once(collect=False)
    assert world.heard.records == done, "what is due by lag or size is seen at once, whatever was still before"
    await asyncio.sleep(STILL_S_MAX)
    await world.service.run_once(collect=False)
    before = await _keys(store)
    await world.new_service().run_once(collect=False)
    assert await _keys(store) ^ before == set()
    assert world.heard.failures == []
    everything = await read_everything(root)
    for (name, partition), values in root.produced.items():
        found = everything.get((name, partition), [])
        assert found == values[len(values) - len(found) :], "what goes goes from the beginning"
        assert found == values or name in world.taken_from
    return world.skipped


@pytest.mark.parametrize("seed", range(SEEDS))
@virtual
async def test_due_bundles_are_compacted_in_time_though_they_were_taken_for_still(seed: int) -> None:
    await _live(seed)


def test_those_lives_have_still_bundles_in_them() -> None:
    assert sum(run_virtual(lambda seed=seed: _live(seed)) for seed in range(4)) > 0  # type: ignore[misc]
