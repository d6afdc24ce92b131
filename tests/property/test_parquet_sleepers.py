"""Rival compactors, retention, garbage collection and brokers that sleep between any two
operations, for minutes, past all deletions.

The stores fail, and let puts and deletes land late. After every operation of any process a plain reader
looks: the files of a partition follow each other, no record twice, none live missing. At the end
everything acknowledged is there. `fence`: a store whose fences close, as files; `url`: one whose
permissions only expire, as S3, where only the age of commits protects.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from ledgermq.errors import DataDamaged, LedgerMQError
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.sweep import collect_garbage, tidy_bundle
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint, partition_of
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.topics.catalog import read_catalog
from tests.stores.faulty import Faults
from tests.stores.sleepy import SleepyStore
from tests.stores.url import UrlStore
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.ledgers import append_and_wait, batch, ledger_of, take_over
from tests.worlds.roots import Root, read_parquet_rows, read_segments

SEEDS = int(os.environ.get("LEDGERMQ_SEEDS", "3"))
DURATION_S = 120.0
PARTITIONS = 2


class _WatchedSleepyStore(SleepyStore):
    """A plain reader looks after each delay."""

    def __init__(self, world: _World, sources: Sources) -> None:
        faults = Faults(before=0.001, after=0.002, late=0.003, throttle=0.001, delay_s_max=0.05)
        super().__init__(world.shared, sources, faults, naps=0.005, naps_s_max=(3, 10, 30, 120))
        self._world = world

    async def _delay(self) -> None:
        await super()._delay()
        await self._world.look()


class _World:
    def __init__(self, seed: int, mode: str) -> None:
        self.seed = seed
        self.sources = virtual_sources(seed)
        self.objects = MemoryStore("test", self.sources)
        self.shared: ObjectStore = (
            self.objects if mode == "fence" else UrlStore(self.objects, virtual_sources(seed + 1))
        )
        self.root: Root
        self.acked: dict[tuple[int, int], bytes] = {}
        self.looks = self.rounds = self.errors = self.processes = self.values = 0

    async def prepare(self) -> None:
        self.root = await Root.open(self.objects, self.sources)
        await self.root.create_topic(
            "t", partitions=PARTITIONS, parquet_max_lag_ms="20000", parquet_target_bytes="2000"
        )

    def value(self) -> bytes:
        self.values += 1
        return b"%d" % self.values

    def acknowledged(self, partition: int, base: int, values: list[bytes]) -> None:
        for offset, value in enumerate(values, base):
            assert self.acked.setdefault((partition, offset), value) == value

    def process(self) -> tuple[_WatchedSleepyStore, Sources]:
        self.processes += 1
        sources = virtual_sources(self.seed * 100 + self.processes)
        return _WatchedSleepyStore(self, sources), sources

    async def look(self) -> None:
        """A plain reader, by the names of the files; every thousandth time by the rows, and with
        the ledger behind them.
        """
        self.looks += 1
        before: keys.ParquetName | None = None
        names = [name async for info in self.objects.list(keys.PARQUET) if (name := keys.parse_parquet(info.key))]
        for name in sorted(names, key=lambda n: (n.partition, n.first_offset)):
            if before is not None and before.partition == name.partition:
                assert name.first_offset == before.last_offset + 1, f"{before.key} and then {name.key}"
            before = name
        checkpoint = await newest_checkpoint(self.objects, 1)
        for counters in checkpoint.partitions:
            mine = [name for name in names if name.partition == counters.partition]
            first_live = max(counters.parquet_start, counters.log_start)
            if first_live < counters.parquet_end:
                assert mine, "live files are gone"
                assert mine[0].first_offset <= first_live
                assert mine[-1].last_offset >= counters.parquet_end - 1
        if self.looks % 1000 == 0:
            await self.check_records()

    async def check_records(self) -> None:
        """Everything acknowledged is where it was acknowledged, unless it lies below the log start."""
        parquet = await read_parquet_rows(self.objects)
        checkpoint = await newest_checkpoint(self.objects, 1)
        segments = await read_segments(self.root, "t")
        topic_id = self.root.topics["t"].id
        for (partition, offset), value in self.acked.items():
            counters = partition_of(checkpoint, topic_id, partition)
            if offset >= counters.log_start:
                rows = parquet if offset < counters.parquet_end else segments
                assert rows.get(("t", partition), {}).get(offset) == value, f"partition {partition} offset {offset}"


Step = Callable[[_World, ObjectStore, Sources], Awaitable[None]]


async def _compact(world: _World, store: ObjectStore, sources: Sources) -> None:
    engine = LocalEngine(sources, run_inline, 1)
    catalog = await read_catalog(ledger_of(world.objects, 0, cluster=world.root.cluster))
    everything = sources.random.random() < 0.7
    if await compact_bundle(Compaction(store, world.root.cluster, sources, engine), 1, catalog, everything=everything):
        world.rounds += 1


async def _retain(world: _World, store: ObjectStore, sources: Sources) -> None:
    """Move the log start, mostly within Parquet, sometimes beyond; then delete."""
    checkpoint = await newest_checkpoint(store, 1)
    topic = world.root.topics["t"]
    partition = sources.random.randrange(PARTITIONS)
    counters = partition_of(checkpoint, topic.id, partition)
    ends = {part.partition: part.end for part in checkpoint.state.ends}
    end = counters.parquet_end if sources.random.random() < 0.8 else ends.get(partition, 0)
    start = sources.random.randint(counters.log_start, max(counters.log_start, end))
    await advance_checkpoint(
        ledger_of(store, 1, cluster=world.root.cluster, sources=sources),
        log_start_move({PartitionId(topic.id, partition): start}),
    )
    catalog = await read_catalog(ledger_of(world.objects, 0, cluster=world.root.cluster))
    await tidy_bundle(ledger_of(store, 1, cluster=world.root.cluster, sources=sources), catalog)


async def _collect(world: _World, store: ObjectStore, sources: Sources) -> None:
    collected = await collect_garbage(store, world.root.cluster)
    for error in collected.failures.values():
        raise error


async def _produce(world: _World, store: ObjectStore, sources: Sources) -> None:
    """A term of ownership: claims, appends, may be fenced at any time."""
    writer = await take_over(ledger_of(store, 1, cluster=world.root.cluster, sources=sources), "b")
    topic = world.root.topics["t"]
    for _ in range(sources.random.randrange(1, 12)):
        partition = sources.random.randrange(PARTITIONS)
        values = [world.value() for _ in range(sources.random.randrange(1, 4))]
        base = (await append_and_wait(writer, batch(*values, topic_id=topic.id, partition=partition)))[0]
        world.acknowledged(partition, base, values)


async def _again_and_again(world: _World, pause_s: float, step: Step) -> None:
    """One process after another does one step; they may end by typed errors only.

    A sleeper is not waited for.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + DURATION_S
    async with asyncio.TaskGroup() as group:
        while loop.time() < end:
            store, sources = world.process()
            task = group.create_task(_one(world, store, sources, step))
            await asyncio.wait([task], timeout=sources.random.uniform(0, 2 * pause_s))


async def _one(world: _World, store: ObjectStore, sources: Sources, step: Step) -> None:
    try:
        await step(world, store, sources)
    except DataDamaged:
        raise
    except LedgerMQError:
        world.errors += 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fence", "url"])
@pytest.mark.parametrize("seed", range(SEEDS))
@virtual
async def test_no_reader_ever_sees_a_gap_a_double_or_a_loss(seed: int, mode: str) -> None:
    world = _World(seed, mode)
    await world.prepare()
    async with asyncio.TaskGroup() as group:
        for step, pause_s in (
            (_compact, 15.0),
            (_compact, 15.0),
            (_produce, 8.0),
            (_retain, 20.0),
            (_collect, 30.0),
        ):
            group.create_task(_again_and_again(world, pause_s, step))
    await asyncio.sleep(100)
    assert not (await world.root.compact(world.shared)).failures
    await world.check_records()
    await world.look()
    assert world.rounds > 1
    assert list(await world.objects.list_fences()) == []
