"""A topic whose partitions move from bundle to bundle, are written, compacted and shortened: a step of that comes
between any two requests of a query to the store.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ledgermq.errors import Unavailable
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.topics.retention import deletion_move
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectInfo
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.simulation.world import World
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root

BUNDLES = 4
PARTITIONS = (0, 1)
TOPIC = "t"
PAUSE_STEPS_MAX = 4
T = TypeVar("T")
Step = tuple[str, Callable[[str, int], Awaitable[None]]]
"""What is done, and how."""


class MovingTopic:
    """A root with one topic of two partitions, and what happens to them. `moves`: share of the steps that are those of
    moves. `deletes`: also deletion.
    """

    def __init__(self, world: World, root: Root, *, moves: float, deletes: bool) -> None:
        self.root = root
        self.deletes = deletes
        self._moves = moves
        self._world = world
        self._random = world.random
        self._left: list[list[Step]] = [[] for _ in PARTITIONS]
        """The steps of the moves that are under way, by partition."""
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, world: World, *, moves: float, deletes: bool) -> MovingTopic:
        """With some records, after some steps."""
        root = await Root.open(world.store, world.sources("root"), bundles=BUNDLES)
        await root.create_topic(TOPIC, len(PARTITIONS))
        found, random = cls(world, root, moves=moves, deletes=deletes), world.random
        for _ in range(random.randint(1, 4)):
            await found._produce(random.choice(PARTITIONS))
        for _ in range(random.randint(0, 12)):
            await found.step()
        return found

    def values(self, partition: int) -> list[bytes]:
        """Return all that was acknowledged, by offset."""
        return self.root.produced.get((TOPIC, partition), [])

    def ends(self) -> list[int]:
        return [len(self.values(partition)) for partition in PARTITIONS]

    @property
    def moving(self) -> set[int]:
        return {partition for partition in PARTITIONS if self._left[partition]}

    def bundle(self, partition: int) -> int:
        """Return where it is, or is on its way to."""
        return self.root.topics[TOPIC].bundles[partition]

    async def step(self) -> None:
        async with self._turn:
            kind, partition = self._random.random(), self._random.choice(PARTITIONS)
            if self._random.random() < self._moves:
                await (self._go_on(partition) if self._left[partition] else self._decide(partition))
            elif kind < 0.4:
                await self._compact(self._random.choice((*range(BUNDLES), *2 * self.root.topics[TOPIC].bundles)))
            elif kind < 0.5 and self.deletes:
                await self._delete(partition)
            else:
                await self._produce(partition)

    async def settle(self) -> None:
        """End the moves that are under way, as brokers would in the end."""
        async with self._turn:
            for partition in PARTITIONS:
                while self._left[partition]:
                    await self._go_on(partition)

    async def rest(self) -> None:
        """Wait for the step that is under way."""
        async with self._turn:
            pass

    async def _decide(self, partition: int) -> None:
        bundle = self._random.choice([each for each in range(1, BUNDLES) if each != self.bundle(partition)])
        root = self.root
        await root.decide_move(TOPIC, partition, bundle)
        self._left[partition] = [
            ("a partition was sealed", root.seal),
            ("a partition was opened", root.open_moved),
            ("a file list was taken over", root.hand_over),
            ("a move ended", root.end_move),
        ]
        self._saw("a move was decided", f"partition {partition} is to move to bundle {bundle}")

    async def _go_on(self, partition: int) -> None:
        what, step = self._left[partition].pop(0)
        await step(TOPIC, partition)
        self._saw(what, f"partition {partition}")

    def _is_sealed(self, partition: int) -> bool:
        """Between the seal and the open neither bundle takes records."""
        return self._left[partition][:1] == [("a partition was opened", self.root.open_moved)]

    async def _produce(self, partition: int) -> None:
        if self._is_sealed(partition):
            return
        number = len(self.values(partition))
        records = [b"%d" % (number + i) for i in range(self._random.randint(1, 3))]
        await self.root.produce(TOPIC, (partition, records))
        self._saw("records were stored", f"partition {partition} ends at {number + len(records)}")

    async def _delete(self, partition: int) -> None:
        """Delete some of what was acknowledged, unless the bundle is not in charge of it."""
        topic, end = self.root.topics[TOPIC], len(self.values(partition))
        is_open = len(self._left[partition]) < 3
        bundle = topic.bundles[partition] if is_open else topic.moves[partition].source
        ledger = ledger_of(self.root.store, bundle, sources=self.root.sources)
        start = self._random.randint(0, end)
        with suppress(Unavailable):
            if await advance_checkpoint(ledger, deletion_move(topic, {partition: start})) is not None:
                self._saw("a log start was raised by hand", f"partition {partition} starts at {start}")

    async def _compact(self, bundle: int) -> None:
        root = self.root
        done = await compact_root(root.store, root.sources, LocalEngine(root.sources, run_inline), bundles=[bundle])
        assert not done.failures
        self._world.note("world", f"bundle {bundle} is compacted")

    def _saw(self, what: str, text: str) -> None:
        self._world.coverage.saw(what)
        self._world.note("world", f"{what}: {text}")


class UnsteadyStore(StoreWrapper):
    """A query's view of the store: with a chance a step is taken before a request, but while it is calm."""

    def __init__(self, world: World, topic: MovingTopic, chance: float) -> None:
        super().__init__(world.store)
        self.steps_left = 0
        """Then moves that have begun are ended."""
        self._calm_until_s = -math.inf
        self._world = world
        self._topic = topic
        self._chance = chance

    @property
    def is_calm(self) -> bool:
        return self._world.loop.time() < self._calm_until_s

    def calm(self, seconds: float) -> None:
        """No step is taken for so long."""
        self._calm_until_s = self._world.loop.time() + seconds

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        await self._perhaps()
        return await step()

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._perhaps()
        async for info in self.inner.list(prefix, start_after):
            yield info

    async def pause(self, most: int = PAUSE_STEPS_MAX) -> None:
        """Let some steps be taken, or none, as between what a query's driver and its executors do."""
        steps = 0 if self.is_calm else min(self._world.random.choice((0, 0, most // 4, most)), self.steps_left)
        self.steps_left -= steps
        for _ in range(steps):
            await self._topic.step()

    async def _perhaps(self) -> None:
        if self.is_calm:
            return
        if self.steps_left > 0 and self._world.random.random() < self._chance:
            self.steps_left -= 1
            await self._whole(self._topic.step())
        elif self.steps_left == 0:
            await self._whole(self._topic.settle())

    async def _whole(self, step: Coroutine[Any, Any, None]) -> None:
        """The query may take back its request, not what happens in the world."""
        await asyncio.shield(self._world.loop.in_world(step))
