"""Queries without a broker, while the partitions that they read move from bundle to bundle, are written, compacted
and shortened: a step of that comes between any two requests of the query to the store.

A query reads each record once, from its begin to an end that is no earlier than what was acknowledged before it
began. A stream reads, over restarts, each record of a partition once and in order, but for those that were deleted
before; and all of the partitions that are not on their way, while others are. One that ends with what was there
when it began has read all of that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ledger.blocking import run_inline
from ledger.garbage.retention import deletion_move
from ledger.log.recovery import advance_checkpoint
from ledger.object_store.contract import ObjectInfo, ObjectStore
from ledger.object_store.memory import MemoryStore
from ledger.object_store.wrapper import StoreWrapper
from ledger.parquet.engine import LocalEngine
from ledger.rounds.runner import compact_root
from ledger.view.follow import LOOK_AFTER_S_MAX
from ledger.view.range_read import RangeReader
from ledgermq.errors import Unavailable
from spark.source import followed, planning
from spark.source.followed import FollowedTopics
from spark.source.options import SourceOptions, parse_options
from spark.source.planning import TopicRange, plan_query
from spark.source.positions import Position
from spark.source.tracking import Tracker
from tests.stores.backends import seeded_sources
from tests.virtual_time import run_virtual
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root

BUNDLES = 4
PARTITIONS = (0, 1)
T = TypeVar("T")


class World:
    """A root whose topic t has two partitions, and what happens to them step by step. `deletes`: also deletion."""

    def __init__(self, root: Root, seed: int, *, deletes: bool) -> None:
        self.root = root
        self.deletes = deletes
        self.random = random.Random(seed)
        self._left: list[list[Callable[[str, int], Awaitable[None]]]] = [[], []]
        """The steps of the moves that are under way, by partition."""
        self._turn = asyncio.Lock()

    def values(self, partition: int) -> list[bytes]:
        return self.root.produced.get(("t", partition), [])

    @property
    def moving(self) -> list[int]:
        return [partition for partition in PARTITIONS if self._left[partition]]

    async def step(self) -> None:
        async with self._turn:
            kind, partition = self.random.random(), self.random.choice(PARTITIONS)
            if kind < 0.3:
                await self.produce(partition)
            elif kind < 0.5:
                await self._compact(self.random.randrange(BUNDLES))
            elif kind < 0.55 and self.deletes:
                await self._delete(partition)
            elif self._left[partition]:
                await self._left[partition].pop(0)("t", partition)
            else:
                here = self.root.topics["t"].bundles[partition]
                bundle = self.random.choice([b for b in range(1, BUNDLES) if b != here])
                await self.root.decide_move("t", partition, bundle)
                root = self.root
                self._left[partition] = [root.seal, root.open_moved, root.hand_over, root.end_move]

    async def produce(self, partition: int) -> None:
        if self._left[partition][:1] == [self.root.open_moved]:
            return  # nobody takes records between the seal and the open
        number = len(self.values(partition))
        records = [b"%d" % (number + i) for i in range(self.random.randint(1, 3))]
        await self.root.produce("t", (partition, records))

    async def settle(self) -> None:
        """End the moves that are under way, as brokers would in the end."""
        async with self._turn:
            for partition, left in enumerate(self._left):
                while left:
                    await left.pop(0)("t", partition)

    async def _delete(self, partition: int) -> None:
        """Delete some of what was acknowledged, unless the bundle is not in charge of it."""
        topic, end = self.root.topics["t"], len(self.values(partition))
        is_open = len(self._left[partition]) < 3
        bundle = topic.bundles[partition] if is_open else topic.moves[partition].source
        ledger = ledger_of(self.root.store, bundle, sources=self.root.sources)
        with suppress(Unavailable):
            await advance_checkpoint(ledger, deletion_move(topic, {partition: self.random.randint(0, end)}))

    async def _compact(self, bundle: int) -> None:
        root = self.root
        assert not (
            await compact_root(root.store, root.sources, LocalEngine(root.sources, run_inline), bundles=[bundle])
        ).failures


class Unsteady(StoreWrapper):
    """The query's view of the store: before a request a step may be taken, unless it is calm."""

    def __init__(self, inner: ObjectStore, world: World, chance: float) -> None:
        super().__init__(inner)
        self._world = world
        self._chance = chance
        self.steps_left = 40
        self.is_calm = False
        self._steps: set[asyncio.Task[None]] = set()

    async def _perhaps(self) -> None:
        if self.is_calm:
            return
        if self.steps_left > 0 and self._world.random.random() < self._chance:
            self.steps_left -= 1
            await self._whole(self._world.step())
        elif self.steps_left == 0:
            await self._whole(self._world.settle())

    async def _whole(self, step: Coroutine[Any, Any, None]) -> None:
        """The query may take back its request, not what happens in the world."""
        task = asyncio.get_running_loop().create_task(step)
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        await asyncio.shield(task)

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        await self._perhaps()
        return await step()

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._perhaps()
        async for info in self.inner.list(prefix, start_after):
            yield info


async def opened(seed: int, *, deletes: bool = False) -> World:
    sources = seeded_sources()
    root = await Root.open(MemoryStore("moved", sources), sources, bundles=BUNDLES)
    await root.create_topic("t", len(PARTITIONS))
    world = World(root, seed, deletes=deletes)
    for _ in range(world.random.randint(1, 4)):
        await world.produce(world.random.choice(PARTITIONS))
    for _ in range(world.random.randint(0, 12)):
        await world.step()
    return world


def options(**more: str) -> SourceOptions:
    """A move lasts as long as the world likes."""
    return parse_options({"root": "memory://moved", "topic": "t", "moveTimeoutS": "86400", **more})


Found = dict[int, list[tuple[int, bytes]]]
"""Offsets and values, by partition."""


async def read(store: ObjectStore, tasks: Sequence[Sequence[TopicRange]]) -> Found:
    """As tasks do, without the task's own check of what was deleted since it was planned."""
    found: Found = {partition: [] for partition in PARTITIONS}
    reader = RangeReader(store, run_inline)
    for each in (each for task in tasks for each in task):
        async for first, rows in reader.read(each.range, skip_lost=True):
            found[each.range.key.partition] += enumerate(rows.column("value").to_pylist(), first)
    return found


async def query(seed: int, chance: float) -> None:
    world = await opened(seed)
    store = Unsteady(world.root.store, world, chance)
    before = [len(world.values(partition)) for partition in PARTITIONS]
    found = await read(store, await plan_query(store, options()))
    for partition, rows in found.items():
        assert rows == [*enumerate(world.values(partition))][: len(rows)]
        assert len(rows) >= before[partition]


async def stream(seed: int, chance: float) -> None:
    await run_stream(await opened(seed), chance)


async def stream_and_deletion(seed: int, chance: float) -> None:
    await run_stream(await opened(seed, deletes=True), chance)


async def run_stream(world: World, chance: float) -> None:
    store = Unsteady(world.root.store, world, chance)
    given = options(maxOffsetsPerTrigger="4", failOnDataLoss="false")
    topics, tracker, at = await driver(store, world, given, None)
    found: Found = {partition: [] for partition in PARTITIONS}
    loop, calm_since_s = asyncio.get_running_loop(), 0.0
    while not (store.steps_left == 0 and is_at_end(world, at)):
        if world.random.random() < 0.1:
            topics, tracker, at = await driver(store, world, given, at)
        elif not store.is_calm and world.random.random() < 0.1:
            store.is_calm, calm_since_s = True, loop.time()  # until all that can be read now is read
        start = at
        await topics.refresh()
        at = tracker.next(start, given.offsets_per_trigger_max)
        if at == start and store.is_calm and world_is_known(topics, world):
            store.is_calm = not is_at_end(world, at, but=world.moving)
            # a slot that was compacted and trimmed before it was read is found by the next look
            assert not store.is_calm or loop.time() - calm_since_s <= LOOK_AFTER_S_MAX
        if at != start:
            assert world.deletes or passed(at) - passed(start) <= 4
            rows = await read(store, await planned(topics, tracker, start, at))
            for partition in PARTITIONS:
                found[partition] += rows[partition]
        await asyncio.sleep(1)
    check_rows(world, found)


async def available_now(seed: int, chance: float) -> None:
    world = await opened(seed)
    store = Unsteady(world.root.store, world, chance)
    given = options(maxOffsetsPerTrigger="4")
    topics, tracker, at = await driver(store, world, given, None)
    before = [len(world.values(partition)) for partition in PARTITIONS]
    await topics.refresh(at_once=True, look=True)
    await topics.here(topics.every)
    tracker.stop_at_latest()
    found: Found = {partition: [] for partition in PARTITIONS}
    start = None
    while start != at:
        start = at
        await topics.refresh(at_once=True)
        await topics.here(partial(tracker.behind_its_end, start))
        at = tracker.next(start, given.offsets_per_trigger_max)
        if at != start:
            rows = await read(store, await planned(topics, tracker, start, at))
            for partition in PARTITIONS:
                found[partition] += rows[partition]
    check_rows(world, found)
    for partition in PARTITIONS:
        assert len(found[partition]) >= before[partition]


def is_at_end(world: World, at: Position, but: Sequence[int] = ()) -> bool:
    offsets = at.topics["t"].offsets
    return all(offsets.get(p, 0) == len(world.values(p)) for p in PARTITIONS if p not in but)


def passed(at: Position) -> int:
    return sum(at.topics["t"].offsets.values())


def world_is_known(topics: FollowedTopics, world: World) -> bool:
    """The stream knows which partitions are on their way, and which are not any longer."""
    return {key.partition for key in topics.away} == set(world.moving)


def check_rows(world: World, found: Found) -> None:
    """Each record once and in order; without deletion, all."""
    for partition, rows in found.items():
        offsets = [offset for offset, _ in rows]
        assert offsets == sorted(set(offsets))
        assert all(world.values(partition)[offset] == value for offset, value in rows)
        assert world.deletes or offsets == [*range(len(offsets))]


async def planned(topics: FollowedTopics, tracker: Tracker, start: Position, end: Position) -> list[list[TopicRange]]:
    return await topics.planned(partial(tracker.ranges, start, end), partial(tracker.wanted, start, end))


async def driver(
    store: ObjectStore, world: World, given: SourceOptions, at: Position | None
) -> tuple[FollowedTopics, Tracker, Position]:
    topics = FollowedTopics(store, world.root.cluster, given)
    await topics.open()
    tracker = Tracker(topics, world.root.cluster.cluster_id, given, lambda _: None)
    return topics, tracker, at or await topics.planned(tracker.first, topics.every)


@pytest.mark.parametrize("room", [1, 10_000])
@pytest.mark.parametrize("kind", [query, stream, stream_and_deletion, available_now])
@given(seed=st.integers(0, 2**32), chance=st.sampled_from([0.02, 0.1, 0.4]))
@example(seed=3396956, chance=0.02)  # a stream far behind, whose next slot was compacted and trimmed
@settings(max_examples=20)
def test_each_record_is_read_once(
    kind: Callable[[int, float], Coroutine[Any, Any, None]], room: int, seed: int, chance: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (planning, followed):
            patch.setattr(module, "INDEX_BATCHES_MAX", room)
        run_virtual(partial(kind, seed, chance))
