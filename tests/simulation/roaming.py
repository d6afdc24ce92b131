"""A topic whose partitions move from bundle to bundle while it is written, read and compacted, in some runs of the
levels *cluster* and *transactions*. Moves are decided by whichever broker is the controller.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ledgermq.errors import LedgerMQError, PartitionBusy
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.cluster_clients import PARTITIONS
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.growth_watch import metadata_batches
from tests.simulation.history import FinalLog
from tests.simulation.loop import State
from tests.simulation.world import World

TOPIC = "roaming"
DECIDED_EVERY_S, ANSWERED_S_MAX = 4.0, 10.0


def roams(seed: int) -> bool:
    return random.Random(f"roaming {seed}").random() < 0.4


def with_moves(plan: ClusterPlan) -> ClusterPlan:
    """Return the plan with bundles to move partitions between."""
    return replace(plan, settings=plan.settings.model_copy(update={"bundles": max(3, plan.settings.bundles)}))


class Roaming:
    """`topic`: whose partitions move, `every_s` about."""

    def __init__(
        self,
        world: World,
        brokers: Mapping[str, ClusterBroker],
        bundles: Callable[[], int],
        topic: str = TOPIC,
        every_s: float = DECIDED_EVERY_S,
    ) -> None:
        self.topic = topic
        self._every_s = every_s
        self._world = world
        self._brokers = brokers
        self._bundles = bundles
        self._random = random.Random(f"moves of {world.seed}")

    async def decide(self) -> None:
        """Ask one broker after another to move a partition, until the world heals."""
        while not self._world.healed:
            await asyncio.sleep(self._random.expovariate(1 / self._every_s))
            partition, bundle = self._random.randrange(PARTITIONS), self._random.randrange(1, self._bundles())
            for name in sorted(self._brokers):
                running = self._brokers[name]
                if running.broker is None or running.process.state is not State.RUNNING:
                    continue
                move = running.process.spawn(self._move(running, partition, bundle))
                await asyncio.wait({move}, timeout=ANSWERED_S_MAX)

    async def _move(self, running: ClusterBroker, partition: int, bundle: int) -> None:
        assert running.broker is not None
        try:
            move = await running.broker.controller.move_partition(self.topic, partition, bundle, dry_run=False)
        except PartitionBusy as busy:
            self._world.coverage.saw("a partition could not move: something kept it")
            self._world.note(running.name, f"moves nothing: {busy.message[:100]}")
            return
        except LedgerMQError as error:
            self._world.note(running.name, f"moves nothing: {error.message[:100]}")
            return
        if move is not None and not move.ended:
            self._world.coverage.saw("a partition was to move")
            self._world.note(running.name, f"moves {self.topic}/{partition} to bundle {bundle}: {move}")

    def together(self, partition: int, others: FinalLog, here: FinalLog, bundle: int) -> FinalLog:
        """Return the log of a partition that several bundles have parts of; a doubled offset shows as "a|b"."""
        doubled = {at: f"{others.records[at]}|{here.records[at]}" for at in others.records.keys() & here.records.keys()}
        is_there = _records(self._world, self.topic)[-1].bundles[partition] == bundle
        return FinalLog({**others.records, **here.records, **doubled}, (here if is_there else others).log_start)


def moves_left(world: World, topics: Iterable[str]) -> list[fmt.PartitionMove]:
    """Return the moves of the topics' partitions that have not ended."""
    return [move for topic in topics for move in _records(world, topic)[-1].moves if not move.ended]


def _records(world: World, topic: str) -> list[fmt.TopicRecord]:
    return [record for batch in metadata_batches(world.store) for record in batch if record.name == topic]
