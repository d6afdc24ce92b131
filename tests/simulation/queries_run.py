"""Level *queries*: queries without a broker, while the partitions that they read move from bundle to bundle, are
written, compacted and shortened.

A query reads each record once, from its begin to an end that is no earlier than what was acknowledged before it
began. A stream reads, over restarts, each record of a partition once and in order, but for those that were deleted
before; and all of the partitions that are not on their way, while others are. One that ends with what was there
when it began has read all of that. No query fails. Tasks are read as executors read them.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from ledgermq.errors import LedgerMQError
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.view.following.follow import LOOK_AFTER_S_MAX
from ledgermq_ledger.view.ranges.range_read import RangeReader
from ledgermq_ledger.view.ranges.shared_slots import SharedSlots
from ledgermq_spark.source.options import SourceOptions, parse_options
from ledgermq_spark.source.ranges.move_wait import PAUSE_S
from ledgermq_spark.source.ranges.planning import TopicRange, plan_query
from ledgermq_spark.source.streaming.driver import Batches
from ledgermq_spark.source.streaming.followed import FollowedTopics
from ledgermq_spark.source.streaming.positions import Position, decode, encode
from ledgermq_spark.source.streaming.tracking import Tracker
from tests.judges.violation import Violation
from tests.simulation.loop import SimulatedLoop
from tests.simulation.queries_world import PARTITIONS, TOPIC, MovingTopic, UnsteadyStore
from tests.simulation.result import Result, finish
from tests.simulation.world import World, failed_assertions

Kind = Literal["query", "stream", "stream beside deletion", "available-now"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CHANCES = (0.02, 0.1, 0.4)
MOVES = (0.1, 0.5, 0.5)
ROOMS = (1, 10_000)
QUERIES = 4
QUERY_STEPS, STREAM_STEPS = 20, 40
BATCH_ROWS_MAX = 4
RESTART_CHANCE = 0.1
CALM_CHANCE = 0.1
CALM_S = 2 * LOOK_AFTER_S_MAX
"""A slot that was compacted and trimmed before it was read is found by the next look at the checkpoint."""
AGAIN_CHANCE = 0.3
LONG_PAUSE = 12
SECONDS_MAX = 3600.0
"""Of virtual time, in which each query ends."""
Found = dict[int, list[tuple[int, bytes]]]
"""Offsets and values, by partition."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueriesPlan:
    """`chance`: of a step before a request. `moves`: share of the steps that are those of moves. `room`: batches of a
    bundle in the driver's index.
    """

    kind: Kind
    chance: float
    moves: float
    room: int


def queries_plan_of(seed: int) -> QueriesPlan:
    r = random.Random(f"queries {seed}")
    return QueriesPlan(r.choice(KINDS), r.choice(CHANCES), r.choice(MOVES), r.choice(ROOMS))


class QueriesRun:
    """`plan`: instead of the one that the seed draws."""

    def __init__(
        self, loop: SimulatedLoop, seed: int, lines_kept: int | None, *, plan: QueriesPlan | None = None
    ) -> None:
        self.world = World(loop, seed, lines_kept)
        self.plan = plan or queries_plan_of(seed)
        self._random = random.Random(f"query {seed}")
        self._topic: MovingTopic
        self._store: UnsteadyStore

    async def run(self) -> Result:
        kind = self.plan.kind
        self.world.coverage.saw(f"a run: {kind}")
        self.world.coverage.saw(f"room in the index: {self.plan.room}")
        self._topic = await MovingTopic.open(
            self.world, moves=self.plan.moves, deletes=kind == "stream beside deletion"
        )
        self._store = UnsteadyStore(self.world, self._topic, self.plan.chance)
        works = {"query": self._queries, "available-now": self._available_now}
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await works.get(kind, self._stream)()
        except AssertionError as error:
            self.world.violations += failed_assertions(error)
        except LedgerMQError as error:
            self._report("a query failed", f"{type(error).__name__}: {error.message}")
        return finish(self.world)

    # The three ways to read.

    async def _queries(self) -> None:
        for _ in range(QUERIES):
            self._store.steps_left = QUERY_STEPS
            before = self._topic.ends()
            query = plan_query(self._store, self._options(), index_batches_max=self.plan.room)
            tasks = await self._waiting("a query waited", query)
            await self._store.pause()
            await self._judge(await self._read(tasks), before)

    async def _stream(self) -> None:
        """Until all is read that there is when nothing happens any longer."""
        self._store.steps_left = STREAM_STEPS
        options = self._options(failOnDataLoss="false")
        batches = await self._batches(options)
        at = await self._waiting("a stream waited to begin", batches.first())
        found, calm_since_s = nothing(), 0.0
        while not (self._store.steps_left == 0 and self._is_at_end(at)) and not self.world.has_failed:
            if self._random.random() < RESTART_CHANCE:
                self.world.coverage.saw("a driver began again")
                batches, at = await self._batches(options), again(at)
            elif not self._store.is_calm and self._random.random() < CALM_CHANCE:
                calm_since_s = self._now_s()
                self._store.calm(CALM_S)
            start, begun_s = at, self._now_s()
            at = await batches.next(start, BATCH_ROWS_MAX)
            if self._now_s() - begun_s >= PAUSE_S:
                self._report("a stream stands still", f"it waited {self._now_s() - begun_s:.1f} s to go on")
            if at != start:
                batches = await self._batch(options, batches, start, at, found)
            elif self._store.is_calm and self._knows_what_moves(batches):
                if self._is_at_end(at, but=self._topic.moving):
                    self._store.calm(0)
                elif self._now_s() - calm_since_s > LOOK_AFTER_S_MAX:
                    self._report("a stream stands still", f"at {at.topics}, and the partitions end at {self._ends()}")
            await asyncio.sleep(1)
        if not self.world.has_failed:
            await self._judge(found, () if self._topic.deletes else self._topic.ends())

    async def _available_now(self) -> None:
        """Several, each from the end of the one before."""
        options, found, at = self._options(), nothing(), None
        for _ in range(QUERIES):
            self._store.steps_left = QUERY_STEPS
            batches = await self._batches(options)
            at = at or await self._waiting("a query with available-now waited to begin", batches.first())
            await self._store.pause(most=LONG_PAUSE)
            before = self._topic.ends()
            await self._waiting("a query with available-now waited for what was there", batches.stop_at_latest())
            start = None
            while start != at:
                start = at
                at = await self._waiting("available-now waited before its end", batches.next(start, BATCH_ROWS_MAX))
                if at != start:
                    batches = await self._batch(options, batches, start, at, found)
            await self._judge(found, before)

    async def _batch(
        self, options: SourceOptions, batches: Batches, start: Position, end: Position, found: Found
    ) -> Batches:
        """Read a batch, and add it to what was found. Return the batches of the driver that goes on: one that begins
        again before the batch is committed plans it a second time.
        """
        self.world.note("query", f"batch from {start.topics} to {end.topics}")
        rows = await self._planned_and_read(batches, start, end)
        count = sum(map(len, rows.values()))
        if count > BATCH_ROWS_MAX:
            self._report("a batch above its limit", f"{count} records from {start.topics} to {end.topics}")
        if count and batches.followed.away:
            self.world.coverage.saw("a stream went on while a partition was away")
        if self.plan.kind != "available-now" and self._random.random() < AGAIN_CHANCE:
            self.world.coverage.saw("a batch was planned again by another driver")
            batches = await self._batches(options)
            there = await self._planned_and_read(batches, again(start), again(end))
            if not (self._is_within(there, rows) if self._topic.deletes else there == rows):
                self._report("a batch changed", f"from {start.topics} to {end.topics}: {rows}, then {there}")
        for partition, more in rows.items():
            found[partition] += more
        return batches

    @staticmethod
    def _is_within(some: Found, rows: Found) -> bool:
        return all(set(more) <= set(rows[partition]) for partition, more in some.items())

    async def _planned_and_read(self, batches: Batches, start: Position, end: Position) -> Found:
        await self._store.pause()
        tasks = await self._waiting("a batch waited", batches.ranges(start, end))
        await self._store.pause()
        return await self._read(tasks)

    # What a query consists of.

    def _options(self, **more: str) -> SourceOptions:
        """A move lasts as long as the world likes."""
        return parse_options({"root": self._store.url, "topic": TOPIC, "moveTimeoutS": "86400", **more})

    async def _batches(self, options: SourceOptions) -> Batches:
        """Return those of a driver that begins."""
        cluster = self._topic.root.cluster
        topics = FollowedTopics(self._store, cluster, options, index_batches_max=self.plan.room)
        await topics.open()
        return Batches(topics, Tracker(topics, cluster.cluster_id, options, lambda text: None))

    async def _read(self, tasks: Sequence[Sequence[TopicRange]]) -> Found:
        """As tasks do, without their own check of what was deleted since they were planned."""
        found = nothing()
        for task in tasks:
            reader = RangeReader(SharedSlots(self._store, (each.range for each in task)), run_inline)
            for each in task:
                partition = each.range.key.partition
                if each.range.bundle != self._topic.bundle(partition):
                    self.world.coverage.saw("the partition of a range was elsewhere, or about to go, when it was read")
                async for first, rows in reader.read(each.range, skip_lost=True):
                    found[partition] += enumerate(rows.column("value").to_pylist(), first)
        self.world.note("query", f"has read {found}")
        return found

    async def _waiting(self, what: str, work: Awaitable[T]) -> T:
        """Return what it gives; it has waited for the end of a move if it took that long."""
        begun_s = self._now_s()
        found = await work
        if self._now_s() - begun_s >= PAUSE_S:
            self.world.coverage.saw(what)
        return found

    def _now_s(self) -> float:
        return self.world.loop.time()

    def _ends(self) -> dict[int, int]:
        return dict(enumerate(self._topic.ends()))

    def _is_at_end(self, at: Position, but: Collection[int] = ()) -> bool:
        offsets = at.topics[TOPIC].offsets
        return all(offsets.get(partition, 0) == end for partition, end in self._ends().items() if partition not in but)

    def _knows_what_moves(self, batches: Batches) -> bool:
        return {key.partition for key in batches.followed.away} == self._topic.moving

    # The judge.

    async def _judge(self, found: Found, least: Sequence[int]) -> None:
        """`least`: by partition, how many of its first records the query has to read."""
        await self._topic.rest()
        for partition, rows in found.items():
            self.world.violations += self._wrong(partition, rows)
        for partition, end in enumerate(least):
            if len(found[partition]) < end:
                text = f"partition {partition}: {len(found[partition])} of {end} records that were there"
                self._report("a query ended too early", text)

    def _wrong(self, partition: int, rows: Sequence[tuple[int, bytes]]) -> Iterator[Violation]:
        """Each record once, in order and as it was acknowledged; without deletion, all of them."""
        values, due = self._topic.values(partition), 0
        for offset, value in rows:
            text = f"partition {partition}: offset {offset} was read, {due} was due"
            if offset < due:
                yield Violation("read again", text)
            elif offset > due and not self._topic.deletes:
                yield Violation("left out", text)
            if values[offset : offset + 1] != [value]:
                yield Violation("another record", f"partition {partition}, offset {offset}: {value!r} was read")
            due = offset + 1

    def _report(self, kind: str, text: str) -> None:
        self.world.violations.append(Violation(kind, text))


def nothing() -> Found:
    return {partition: [] for partition in PARTITIONS}


def again(position: Position) -> Position:
    """Return it as a driver that begins again gets it."""
    return decode(json.loads(json.dumps(encode(position))))
