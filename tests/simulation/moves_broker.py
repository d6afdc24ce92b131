"""A broker of level *moves*: it knows decisions late, and tells where the log begins of a partition that came late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

from ledgermq.errors import LedgerMQError, NotOwner
from ledgermq_broker.bundle.moving import Moving
from ledgermq_broker.bundle.reading.former import FormerReaders
from ledgermq_broker.bundle.shared.context import BundleContext, BundleMetrics
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.chains.checkpoint import partition_of as partition_of_checkpoint
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic, topic_key
from tests.judges.violation import Violation
from tests.simulation.ledger_broker import LedgerBroker
from tests.simulation.ledger_clients import TOPIC_ID
from tests.simulation.ledger_run import PARTITIONS
from tests.simulation.plan import RunPlan
from tests.simulation.world import World

OTHER = 2
TOPIC = "t"
KNOWN_CHANCE = 0.7
CHECKPOINT_CHANCE = 0.6
"""Seals and opens do not wait for checkpoints, so some come without one before and behind them."""
ASKED_EVERY_S = 0.5
SELDOM = 0.15
"""Factor of how often checkpoints and rounds come in runs in which deletions overtake seals."""


def is_keyed(seed: int) -> bool:
    return random.Random(f"keyed moves {seed}").random() < 0.35


def overtakes(seed: int) -> bool:
    """Return whether few checkpoints come, so that a deletion can still be put behind the seal that overtakes it."""
    return not is_keyed(seed) and random.Random(f"overtaken {seed}").random() < 0.2


def known_chance(seed: int) -> float:
    """Return how often a compactor reads what was decided: in some runs with a keyed topic so seldom that it freezes
    file lists, and cleans, by catalogs from before the move. Facts of the topic's settings keep it out no longer then.
    """
    return SELDOM if is_keyed(seed) and random.Random(f"late catalogs {seed}").random() < 0.3 else KNOWN_CHANCE


def topic_of(catalog: Catalog) -> Topic:
    return catalog.topics_by_id[TOPIC_ID]


def read_records(catalog: Catalog, records: Sequence[bytes]) -> None:
    """Bring a catalog up to the last of the records: the first one creates the topic, so its offset is the id."""
    for offset in range(max(catalog.offset, TOPIC_ID), TOPIC_ID + len(records)):
        catalog.apply(offset, topic_key(TOPIC), records[offset - TOPIC_ID])


class LogStarts:
    """Where the logs begin by the newest checkpoints that were put. A broker that is asked later tells no earlier
    offset, whichever ledger it reads that in.

    records came back    a log began further down than it had begun before the question
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._newest: dict[int, int] = {}
        """By bundle, the number of the newest checkpoint: one with a number that was free again does not count."""
        self._starts: dict[PartitionId, int] = {}
        self.asked: dict[PartitionId, int] = {}
        """The newest move of which an owner has read the former ledger."""

    def on_checkpoint(self, checkpoint: fmt.Checkpoint) -> None:
        if checkpoint.number <= self._newest.get(checkpoint.bundle, 0):
            return
        self._newest[checkpoint.bundle] = checkpoint.number
        for part in checkpoint.partitions:
            key = PartitionId(part.topic_id, part.partition)
            self._starts[key] = max(self._starts.get(key, 0), part.log_start)

    def known(self, key: PartitionId) -> int:
        return self._starts.get(key, 0)

    def told(self, name: str, key: PartitionId, move: int, known: int, start: int) -> None:
        """`known`: what `known` returned when the question began."""
        self._world.coverage.saw("a log start was told while its files were elsewhere")
        self.asked[key] = max(self.asked.get(key, 0), move)
        if start < known:
            text = f"{name}: partition {key.partition} begins at {start}, and began at {known} before"
            self._world.violations.append(Violation("records came back", text))


class Reported(BundleMetrics):
    """Tells the world of the errors of a broker's moves."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def upkeep_failed(self, bundle: int, work: str, error: BaseException) -> None:
        if not isinstance(error, LedgerMQError):
            raise error
        self._world.note(self._name, f"{work}: {error.message[:80]}")
        self._world.judge_error(error)


class MovingBroker(LedgerBroker):
    """Serves a partition as the records of `__metadata` that it has read say, and carries them out as the product
    does.
    """

    def __init__(
        self,
        world: World,
        plan: RunPlan,
        name: str,
        incarnation: int,
        others: Mapping[str, LedgerBroker],
        bundle: int,
        records: Sequence[bytes],
        log_starts: LogStarts,
    ) -> None:
        self._records = records
        self._log_starts = log_starts
        self._checkpoint_chance = CHECKPOINT_CHANCE * (SELDOM if overtakes(world.seed) else 1.0)
        self._catalog = Catalog()
        self._moving: tuple[LedgerWriter, Moving] | None = None
        super().__init__(world, plan, name, incarnation, others, bundle)
        self._context = BundleContext(
            self._store,
            self._sources,
            plan.cluster,
            name,
            lambda: self._catalog,
            metrics=Reported(world, name),
            run_blocking=run_inline,
        )
        read_records(self._catalog, self._records[:1])

    def _moves_of(self, writer: LedgerWriter) -> Moving:
        if self._moving is None or self._moving[0] is not writer:
            self._moving = writer, Moving(self._context, writer, lambda key: False)
        return self._moving[1]

    async def _upkeep(self, writer: LedgerWriter) -> None:
        if self._world.healed or self._sources.random.random() < self._checkpoint_chance:
            await super()._upkeep(writer)
        if self._world.healed or self._sources.random.random() < KNOWN_CHANCE:
            read_records(self._catalog, self._records)
        before = writer.durable.moves.copy()
        if not await self._moves_of(writer).carry_out():
            self._world.coverage.saw("a partition was not sealed yet")
        for partition in range(PARTITIONS):
            key = PartitionId(TOPIC_ID, partition)
            if writer.durable.moves.move(key) > before.move(key):
                is_sealed = writer.durable.moves.seal_of(key) is not None
                self._world.coverage.saw(f"a partition was {'sealed' if is_sealed else 'opened'}")
                if not is_sealed:
                    self.process.spawn(self._tell_log_starts(writer, key))

    async def _tell_log_starts(self, writer: LedgerWriter, key: PartitionId) -> None:
        """Say where the log of a partition begins while its files are elsewhere, as the product's owner does."""
        former = FormerReaders(self.bundle, self._context)
        while writer.lost is None and (opened := writer.durable.moves.open_of(key)) is not None:
            known = self._log_starts.known(key)
            try:
                start = (await former.reader(key, opened)).view.log_start(key)
                counters = partition_of_checkpoint(await newest_checkpoint(self._store, self.bundle), *key)
            except LedgerMQError as error:
                self._world.note(self.name, f"no log start: {error.message[:80]}")
                self._world.judge_error(error)
            else:
                if counters.taken_over == opened.move:
                    return
                self._log_starts.told(self.name, key, opened.move, known, start)
            await asyncio.sleep(self._sources.random.uniform(0, 2 * ASKED_EVERY_S))

    def _check_here(self, partition: int) -> None:
        bundle, writer = topic_of(self._catalog).bundles[partition], self._owned()
        if bundle != self.bundle:
            raise NotOwner(f"partition {partition} is in bundle {bundle}")
        self._moves_of(writer).check_arrived(TOPIC_ID, partition)
        writer.durable.moves.check_here(PartitionId(TOPIC_ID, partition))

    async def append(self, batch: Batch) -> int:
        self._check_here(batch.partition)
        return await super().append(batch)

    async def opened_slot(self, topic_id: int, partition: int) -> int:
        self._check_here(partition)
        return await super().opened_slot(topic_id, partition)

    async def latest(self, topic_id: int, partition: int) -> int:
        self._check_here(partition)
        return await super().latest(topic_id, partition)
