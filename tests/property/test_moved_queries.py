"""Queries without a broker, while the partition that they read moves from bundle to bundle, is written and
compacted: a step of that comes between any two requests of the query to the store.

A query reads each record once, from its begin to an end that is no earlier than what was acknowledged before it
began; a stream, over restarts, each record once and in order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.blocking import run_inline
from ledger.object_store.contract import ObjectInfo, ObjectStore
from ledger.object_store.memory import MemoryStore
from ledger.object_store.wrapper import StoreWrapper
from ledger.parquet.engine import LocalEngine
from ledger.rounds.runner import compact_root
from ledger.view.range_read import RangeReader
from spark.source import followed, planning
from spark.source.followed import FollowedTopics
from spark.source.options import SourceOptions, parse_options
from spark.source.planning import TopicRange, plan_query
from spark.source.positions import Position
from spark.source.tracking import Tracker
from tests.stores.backends import seeded_sources
from tests.virtual_time import run_virtual
from tests.worlds.roots import Root

BUNDLES = 4
T = TypeVar("T")


class World:
    """A root whose topic t has one partition, and what happens to it step by step."""

    def __init__(self, root: Root, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self._left: list[Callable[[str, int], Awaitable[None]]] = []
        """The steps of the move that is under way."""
        self._turn = asyncio.Lock()

    @property
    def values(self) -> list[bytes]:
        return self.root.produced["t", 0]

    async def step(self) -> None:
        async with self._turn:
            kind = self.random.random()
            if kind < 0.3:
                await self.produce()
            elif kind < 0.5:
                await self._compact(self.random.randrange(BUNDLES))
            elif self._left:
                await self._left.pop(0)("t", 0)
            else:
                here = self.root.topics["t"].bundles[0]
                await self.root.decide_move("t", 0, self.random.choice([b for b in range(1, BUNDLES) if b != here]))
                self._left = [self.root.seal, self.root.open_moved, self.root.hand_over, self.root.end_move]

    async def produce(self) -> None:
        if self._left[:1] == [self.root.open_moved]:
            return  # nobody takes records between the seal and the open
        number = len(self.root.produced.get(("t", 0), ()))
        await self.root.produce("t", (0, [b"%d" % (number + i) for i in range(self.random.randint(1, 3))]))

    async def settle(self) -> None:
        """End the move that is under way, as brokers would in the end."""
        async with self._turn:
            while self._left:
                await self._left.pop(0)("t", 0)

    async def _compact(self, bundle: int) -> None:
        root = self.root
        assert not (
            await compact_root(root.store, root.sources, LocalEngine(root.sources, run_inline), bundles=[bundle])
        ).failures


class Unsteady(StoreWrapper):
    """The query's view of the store: before a request a step may be taken; `calm`: no longer."""

    def __init__(self, inner: ObjectStore, world: World, chance: float) -> None:
        super().__init__(inner)
        self._world = world
        self._chance = chance
        self.steps_left = 40

    async def _perhaps(self) -> None:
        if self.steps_left > 0 and self._world.random.random() < self._chance:
            self.steps_left -= 1
            await self._world.step()
        elif self.steps_left == 0:
            await self._world.settle()

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        await self._perhaps()
        return await step()

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._perhaps()
        async for info in self.inner.list(prefix, start_after):
            yield info


async def opened(seed: int) -> World:
    sources = seeded_sources()
    root = await Root.open(MemoryStore("moved", sources), sources, bundles=BUNDLES)
    await root.create_topic("t", 1)
    world = World(root, seed)
    for _ in range(world.random.randint(1, 4)):
        await world.produce()
    for _ in range(world.random.randint(0, 12)):
        await world.step()
    return world


def options(**more: str) -> SourceOptions:
    return parse_options({"root": "memory://moved", "topic": "t", **more})


async def read(store: ObjectStore, tasks: Sequence[Sequence[TopicRange]]) -> dict[int, bytes]:
    """As tasks do; asserts that no offset comes twice."""
    found: dict[int, bytes] = {}
    reader = RangeReader(store, run_inline)
    for each in (each for task in tasks for each in task):
        async for first, rows in reader.read(each.range):
            new = dict(enumerate(rows.column("value").to_pylist(), first))
            assert not found.keys() & new.keys()
            found |= new
    return found


async def query(seed: int, chance: float) -> None:
    world = await opened(seed)
    store = Unsteady(world.root.store, world, chance)
    before = len(world.values)
    found = await read(store, await plan_query(store, options()))
    assert list(found) == list(range(len(found)))
    assert len(found) >= before
    assert list(found.values()) == world.values[: len(found)]


async def stream(seed: int, chance: float) -> None:
    world = await opened(seed)
    store = Unsteady(world.root.store, world, chance)
    given = options(maxOffsetsPerTrigger="4")
    topics, tracker, at = await driver(store, world, given, None)
    found: dict[int, bytes] = {}
    for _ in range(300):
        if world.random.random() < 0.1:
            topics, tracker, at = await driver(store, world, given, at)
        start = at
        if await topics.refresh():
            at = tracker.next(start, given.offsets_per_trigger_max)
        if at != start:
            end = at
            rows = await read(store, await topics.planned(partial(tracker.ranges, start, end)))
            assert list(rows) == list(range(len(found), len(found) + len(rows)))
            found |= rows
        if store.steps_left == 0 and len(found) == len(world.values):
            break
        await asyncio.sleep(1)
    assert list(found.values()) == world.values


async def driver(
    store: ObjectStore, world: World, given: SourceOptions, at: Position | None
) -> tuple[FollowedTopics, Tracker, Position]:
    topics = FollowedTopics(store, world.root.cluster, given)
    await topics.open()
    tracker = Tracker(topics, world.root.cluster.cluster_id, given, lambda _: None)
    return topics, tracker, at or await topics.planned(tracker.first)


@pytest.mark.parametrize("room", [1, 10_000])
@pytest.mark.parametrize("kind", [query, stream])
@given(seed=st.integers(0, 2**32), chance=st.sampled_from([0.02, 0.1, 0.4]))
@settings(max_examples=40)
def test_each_record_is_read_once(
    kind: Callable[[int, float], Awaitable[None]], room: int, seed: int, chance: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (planning, followed):
            patch.setattr(module, "INDEX_BATCHES_MAX", room)
        run_virtual(partial(kind, seed, chance))
