"""Readers without a broker, beside everything that can happen to a ledger: they see each durable
record once, in order, and nothing else.

Owners fight for the ledger and leave zombies whose puts land late; rival compactors trim and
delete; retention moves log starts. Stores fail, and let processes sleep for long, past all
deletions. What a reader shows is held against what was put: an offset never has two values, no
record is passed over, and what was acknowledged is shown in the end, by the same readers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import pytest

from ledgermq.errors import DataDamaged, LedgerMQError, OffsetOutOfRange
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.sweep import tidy_bundle
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint, partition_of
from ledgermq_ledger.log.history import History
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.resilient import ResilientStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.merging.merge import merge_bundle
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.view.following.follow import Follower
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from ledgermq_ledger.view.ranges.range_read import RangeReader, plan_ranges, split
from tests.stores.faulty import Faults
from tests.stores.sleepy import SleepyStore
from tests.virtual_time import run_virtual, virtual, virtual_sources
from tests.worlds.ledgers import append, batch, ledger_of, take_over
from tests.worlds.reading import rows_of
from tests.worlds.roots import Root, read_rows

SEEDS = int(os.environ.get("LEDGERMQ_SEEDS", "4"))
FAILED_ONCE = (79, 297)
"""What the index has no room for was looked up, and the reader had to begin again: "in no segment"."""
DURATION_S = 30.0
PARTITIONS = 2
READERS = 3


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.sources = virtual_sources(seed)
        self.objects = MemoryStore("readers", self.sources)
        self.root: Root
        self.shown: dict[tuple[int, int], bytes] = {}
        """By (partition, offset), for all readers: they see the same."""
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.starts = [0] * PARTITIONS
        """Asked for: what is below may go."""
        self.processes = self.values = self.rounds = self.merges = self.begun_again = self.queries = 0

    @property
    def merging(self) -> bool:
        return self.seed % 2 == 1 and self.seed not in FAILED_ONCE

    async def prepare(self) -> None:
        self.root = await Root.open(self.objects, self.sources)
        settings = {"parquet_target_bytes": "20000", "parquet_merge_files": "3"} if self.merging else {}
        await self.root.create_topic(
            "t", PARTITIONS, **{"parquet_target_bytes": "2000", "parquet_max_lag_ms": "10000", **settings}
        )

    @property
    def topic_id(self) -> int:
        return self.root.topics["t"].id

    def process(self) -> tuple[ObjectStore, Sources]:
        self.processes += 1
        sources = virtual_sources(self.seed * 1000 + self.processes)
        faults = Faults(before=0.005, after=0.01, late=0.01, throttle=0.005, delay_s_max=0.03)
        return ResilientStore(SleepyStore(self.objects, sources, faults), sources), sources

    def show(self, partition: int, rows: Mapping[int, bytes]) -> None:
        for offset, value in rows.items():
            known = self.shown.setdefault((partition, offset), value)
            assert known == value, f"partition {partition} offset {offset} was {known!r}, and is {value!r}"


class CountingLedger(FollowedLedger):
    world: World

    def _begin(self, history: History) -> None:
        self.world.begun_again += self._follower is not None
        super()._begin(history)


class Reading:
    """A reader that sleeps, and goes on by offset; now and then a new one takes its place."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store, self.sources = world.process()
        self.positions = [0] * PARTITIONS
        self.ledger = self._follow()
        self.is_open = False

    def _follow(self) -> FollowedLedger:
        choose = self.sources.random.choice
        bounds = {"index_batches_max": choose((8, 10_000, 10_000)), "recent_bytes_max": choose((0, 1500, 1 << 20))}
        ref = LedgerRef(self.store, 1, self.world.root.cluster, self.sources)
        ledger = CountingLedger(ref, run_blocking=run_inline, **bounds)
        ledger.world = self.world
        return ledger

    async def run(self) -> None:
        random = self.sources.random
        while True:
            await asyncio.sleep(random.choice((0.2, 0.2, 1.0, 15.0)) * random.random())
            if random.random() < 0.02:
                self.ledger, self.is_open = self._follow(), False
            await self.try_step(random.choice((100, 1 << 20)))

    async def try_step(self, bytes_max: int) -> None:
        """Damage is none of what may happen here."""
        try:
            await self.step(bytes_max)
        except DataDamaged:
            raise
        except LedgerMQError:
            pass

    async def step(self, bytes_max: int) -> None:
        if not self.is_open:
            await self.ledger.open()
            self.is_open = True
        await self.ledger.refresh()
        for partition, offset in enumerate(self.positions):
            key = PartitionId(self.world.topic_id, partition)
            try:
                batches = await self.ledger.reader.read(key, offset, bytes_max)
            except OffsetOutOfRange:
                start = self.ledger.reader.log_start(key)
                assert offset < start <= self.world.starts[partition], (
                    "nothing was to be dropped that this reader has not read"
                )
                self.positions[partition] = start
                continue
            self.world.show(partition, rows_of(batches, offset))
            if batches:
                self.positions[partition] = batches[-1].end


async def query(world: World, store: ObjectStore, sources: Sources) -> None:
    """As a query does: ranges are planned, and read by another process, maybe much later, when the
    records are somewhere else.
    """
    room = sources.random.choice((8, 10_000))
    ledger = FollowedLedger(
        ledger_of(store, 1, cluster=world.root.cluster), run_blocking=run_inline, index_batches_max=room
    )
    await ledger.open()
    spans = {}
    for number in range(PARTITIONS):
        part = PartitionId(world.topic_id, number)
        first = sources.random.randint(ledger.reader.log_start(part), ledger.reader.end(part))
        spans[part] = first, sources.random.randint(first, ledger.reader.end(part))
    partition = sources.random.randrange(PARTITIONS)
    key = PartitionId(world.topic_id, partition)
    ranges = split((await plan_ranges(ledger.reader, spans))[key], sources.random.randint(1, 4))
    await asyncio.sleep(sources.random.choice((0, 1, 20)) * sources.random.random())
    executor, _ = world.process()
    for wanted in ranges:
        offset = wanted.first
        try:
            async for at, rows in RangeReader(executor, run_inline).read(wanted):
                assert at == offset
                world.show(partition, dict(enumerate(rows.column("value").to_pylist(), at)))
                offset += rows.num_rows
        except OffsetOutOfRange:
            assert offset < world.starts[partition], "it was not to be dropped"
            return
        assert offset == wanted.end
    world.queries += 1


Step = Callable[[World, ObjectStore, Sources], Awaitable[None]]


async def produce(world: World, store: ObjectStore, sources: Sources) -> None:
    """A term of ownership with several puts in flight; it may be fenced, and be a zombie, at any
    time.
    """
    writer = await take_over(ledger_of(store, 1, cluster=world.root.cluster, sources=sources), "b")
    try:
        for _ in range(sources.random.randrange(1, 8)):
            waiting = []
            for _ in range(sources.random.randrange(1, 4)):
                partition = sources.random.randrange(PARTITIONS)
                world.values += 1
                values = [b"%d/%d" % (world.values, i) for i in range(sources.random.randrange(1, 4))]
                waiting.append(
                    (partition, values, append(writer, batch(*values, topic_id=world.topic_id, partition=partition))[0])
                )
            for partition, values, done in waiting:
                base = await done
                world.acknowledged |= {(partition, offset): value for offset, value in enumerate(values, base)}
    finally:
        await writer.close()


async def compact(world: World, store: ObjectStore, sources: Sources) -> None:
    compaction = Compaction(store, world.root.cluster, sources, LocalEngine(sources, run_inline, 1))
    if await compact_bundle(compaction, 1, await world.root.catalog(), everything=True):
        world.rounds += 1
    world.merges += len(await merge_bundle(compaction, 1, await world.root.catalog()))


async def checkpoint(world: World, store: ObjectStore, sources: Sources) -> None:
    await advance_checkpoint(ledger_of(store, 1, cluster=world.root.cluster, sources=sources))


async def retain(world: World, store: ObjectStore, sources: Sources) -> None:
    newest = await newest_checkpoint(store, 1)
    partition = sources.random.randrange(PARTITIONS)
    counters = partition_of(newest, world.topic_id, partition)
    ends = {part.partition: part.end for part in newest.state.ends}
    start = sources.random.randint(counters.log_start, max(counters.log_start, ends.get(partition, 0)))
    world.starts[partition] = max(world.starts[partition], start)
    move = log_start_move({PartitionId(world.topic_id, partition): start})
    await advance_checkpoint(ledger_of(store, 1, cluster=world.root.cluster, sources=sources), move)
    await tidy_bundle(ledger_of(store, 1, cluster=world.root.cluster, sources=sources), await world.root.catalog())


async def again_and_again(world: World, pause_s: float, step: Step) -> None:
    """One process after another does one step; a sleeper is not waited for."""
    loop = asyncio.get_running_loop()
    end = loop.time() + DURATION_S
    async with asyncio.TaskGroup() as group:
        while loop.time() < end:
            store, sources = world.process()
            group.create_task(one(world, store, sources, step))
            await asyncio.sleep(sources.random.uniform(0, 2 * pause_s))


async def one(world: World, store: ObjectStore, sources: Sources, step: Step) -> None:
    try:
        await step(world, store, sources)
    except DataDamaged:
        raise
    except LedgerMQError:
        pass


async def live(seed: int) -> World:
    world = World(seed)
    await world.prepare()
    readings = [Reading(world) for _ in range(READERS)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(reading.run()) for reading in readings]
        async with asyncio.TaskGroup() as others:
            for step, pause_s in (
                (produce, 1.5),
                (compact, 4.0),
                (compact, 5.0),
                (checkpoint, 5.0),
                (retain, 15.0),
                (query, 3.0),
            ):
                others.create_task(again_and_again(world, pause_s, step))
        for task in tasks:
            task.cancel()
    await asyncio.sleep(100)  # what was late has landed
    await check(world, readings)
    return world


async def check(world: World, readings: list[Reading]) -> None:
    """Everybody comes to the end; what was acknowledged was shown, and what was shown is there."""
    there = {
        (p, offset): value for (_, p), rows in (await read_rows(world.root)).items() for offset, value in rows.items()
    }
    recovered = await recover(ledger_of(world.objects, 1, cluster=world.root.cluster))
    ends = [recovered.state.end(world.topic_id, partition) for partition in range(PARTITIONS)]
    starts = [
        partition_of(recovered.checkpoint, world.topic_id, partition).log_start for partition in range(PARTITIONS)
    ]
    for reading in readings:
        for _ in range(300):
            if reading.positions == ends:
                break
            await reading.try_step(1 << 20)
            await asyncio.sleep(1)
        assert reading.positions == ends, "a reader does not come to the end"
    for place, value in world.acknowledged.items():
        assert world.shown.get(place, value) == value, place
        assert place[1] < starts[place[0]] or (there.get(place) == value and world.shown.get(place) == value), (
            f"{place} was acknowledged"
        )
    for (partition, offset), value in world.shown.items():
        assert offset < starts[partition] or there.get((partition, offset)) == value, f"{partition}-{offset} was shown"
    assert world.rounds > 1
    assert bool(world.merges) == world.merging
    assert world.queries > 1
    assert len(world.acknowledged) > 20


@pytest.mark.parametrize("seed", sorted({*range(SEEDS), *FAILED_ONCE}))
@virtual
async def test_readers_see_each_durable_record_once_and_in_order(seed: int) -> None:
    await live(seed)


def never_begin_again(self: Follower, trim_slot: int, now_s: float) -> bool:
    return LOOK(self, 0, now_s)


def never_look_at_void(self: Follower, index: fmt.SegmentIndex) -> bool:
    is_valid = TAKE(self, index)
    self._must_look = False
    return True if is_valid else LOOK(self, 0, 0)


LOOK, TAKE = Follower.look, Follower.take


@pytest.mark.parametrize("broken", [never_begin_again, never_look_at_void])
def test_without_the_rules_of_looking_a_reader_goes_wrong(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[..., bool]
) -> None:
    """Else the lives above would prove nothing."""
    monkeypatch.setattr(Follower, "look" if broken is never_begin_again else "take", broken)
    with pytest.raises((AssertionError, BaseExceptionGroup, LedgerMQError)):
        run_seeds(6)


def run_seeds(count: int) -> None:
    for seed in range(count):
        run_virtual(partial(live, seed))
