"""Level *moves*: two ledgers as in level *ledger*, and partitions that move from one to the other and back while
producers write to them.

Each broker owns one of the two bundles now and then, and knows decisions late. A judge of one log for each
partition does not know where its records are: the logs of both ledgers together are that log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ledger.keys import PartitionId
from ledger.log.moves import open_after
from ledger.log.recovery import recover
from ledger.log.segment import Batch
from ledger.log.writer import LedgerWriter
from ledgermq.errors import LedgerMQError, NotOwner
from tests.simulation.history import FinalLog, Partition
from tests.simulation.ledger_broker import BUNDLE, LedgerBroker
from tests.simulation.ledger_clients import TOPIC_ID, PlainProducer, partition_of
from tests.simulation.ledger_run import HEALING_S, PARTITIONS, LedgerRun
from tests.simulation.loop import SimulatedLoop
from tests.simulation.model import Violation
from tests.simulation.plan import RunPlan
from tests.simulation.result import Result, finish
from tests.simulation.watch import ledger_log
from tests.simulation.world import NoAnswer, Unreachable, World
from tests.worlds.ledgers import ledger_of

OTHER = 2
DECIDED_EVERY_S = 3.0
KNOWN_CHANCE = 0.7


@dataclass(frozen=True, slots=True)
class Decision:
    """`before`: the move of the partition before this one; 0: none."""

    id: int
    partition: int
    source: int
    target: int
    before: int

    @property
    def key(self) -> PartitionId:
        return PartitionId(TOPIC_ID, self.partition)


class MovingBroker(LedgerBroker):
    """Serves a partition as the decisions that it knows say, and carries out those of its bundle."""

    def __init__(
        self,
        world: World,
        plan: RunPlan,
        name: str,
        incarnation: int,
        others: Mapping[str, LedgerBroker],
        bundle: int,
        decided: Sequence[Decision],
    ) -> None:
        self._decided = decided
        self._known: Sequence[Decision] = ()
        super().__init__(world, plan, name, incarnation, others, bundle)

    async def _upkeep(self, writer: LedgerWriter) -> None:
        await super()._upkeep(writer)
        if self._world.healed or self._sources.random.random() < KNOWN_CHANCE:
            self._known = tuple(self._decided)
        for decision in self._known[-2 * PARTITIONS :]:
            try:
                await self._carry_out(writer, decision)
            except LedgerMQError as error:
                self._world.note(self.name, f"move {decision.id}: {error.message[:80]}")
                self._world.judge_error(error)

    async def _carry_out(self, writer: LedgerWriter, decision: Decision) -> None:
        if decision.source == self.bundle:
            sealed = writer.seal(decision.key, decision.id, decision.target, decision.before)
            if sealed is not None:
                await sealed
                self._world.coverage.saw("a partition was sealed")
        elif writer.durable.moves.move(decision.key) < decision.id:
            ledger = ledger_of(self._store, decision.source, cluster=self._plan.cluster, sources=self._sources)
            seal = (await recover(ledger)).state.moves.seal_of(decision.key)
            if seal is None or seal.move != decision.id:
                self._world.coverage.saw("a partition was not sealed yet")
                return
            opened = writer.open_partition(open_after(seal, decision.source))
            if opened is not None:
                await opened
                self._world.coverage.saw("a partition was opened")

    def _check_here(self, partition: int) -> None:
        newest = next((each for each in reversed(self._known) if each.partition == partition), None)
        bundle, move = (newest.target, newest.id) if newest is not None else (BUNDLE, 0)
        moves, key = self._owned().durable.moves, PartitionId(TOPIC_ID, partition)
        if bundle != self.bundle or moves.move(key) < move:
            raise NotOwner(f"partition {partition} is in bundle {bundle}, by move {move}")
        moves.check_here(key)

    async def append(self, batch: Batch) -> int:
        self._check_here(batch.partition)
        return await super().append(batch)

    async def opened_slot(self, topic_id: int, partition: int) -> int:
        self._check_here(partition)
        return await super().opened_slot(topic_id, partition)

    async def latest(self, topic_id: int, partition: int) -> int:
        self._check_here(partition)
        return await super().latest(topic_id, partition)


class MovesRun(LedgerRun):
    bundles = (BUNDLE, OTHER)

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self.plan = replace(self.plan, brokers=2 * self.plan.brokers, requests_max=2 * self.plan.requests_max)
        self._decided: list[Decision] = []
        self._random = random.Random(f"moves {seed}")

    def _broker(self, name: str) -> MovingBroker:
        return self._moving_broker(name, self._bundle_of(name))

    def _moving_broker(self, name: str, bundle: int) -> MovingBroker:
        return MovingBroker(self.world, self.plan, name, self._incarnation, self.brokers, bundle, self._decided)

    def _start_clients(self) -> None:
        super()._start_clients()
        self._work.append(self.world.loop.in_world(self._decide()))

    async def _decide(self) -> None:
        """Decide moves, of a partition the next one only when the one before is complete."""
        while not self.world.healed:
            await asyncio.sleep(self._random.expovariate(1 / DECIDED_EVERY_S))
            partition = self._random.randrange(PARTITIONS)
            last = next((each for each in reversed(self._decided) if each.partition == partition), None)
            if last is not None and not await self._is_open(last):
                continue
            source = BUNDLE if last is None else last.target
            target = OTHER if source == BUNDLE else BUNDLE
            number = len(self._decided) + 1
            self._decided.append(Decision(number, partition, source, target, 0 if last is None else last.id))
            self.world.note("world", f"decides {self._decided[-1]}")

    async def _is_open(self, decision: Decision) -> bool:
        ledger = ledger_of(self.world.store, decision.target, cluster=self.plan.cluster)
        return (await recover(ledger)).state.moves.move(decision.key) >= decision.id

    async def _conclude(self) -> Result:
        """Last brokers take both bundles over, carry out what is decided, and are asked for the ends."""
        world = self.world
        for broker in self.brokers.values():
            broker.process.kill()
        self.brokers.clear()
        for bundle in self.bundles:
            self.brokers[f"last{bundle}"] = self._moving_broker(f"last{bundle}", bundle)
        newest = {decision.partition: decision for decision in self._decided}
        async with asyncio.timeout(HEALING_S):
            while not all([await self._is_open(decision) for decision in newest.values()]):
                await asyncio.sleep(0.5)
            for number in range(PARTITIONS):
                await self._ask_end(number)
        logs = self._logs()
        for number in range(PARTITIONS):
            bundle = newest[number].target if number in newest else BUNDLE
            state = (await recover(ledger_of(world.store, bundle, cluster=self.plan.cluster))).state
            end = logs.get(partition_of(number), FinalLog({})).end
            if state.end(TOPIC_ID, number) != end:
                text = f"partition {number}: bundle {bundle} ends at {state.end(TOPIC_ID, number)}, both logs at {end}"
                world.violations.append(Violation("recovery differs", text))
        world.violations += self._judge(logs)
        self._cover()
        world.coverage.saw("a move was decided", len(self._decided))
        world.coverage.saw("a partition moved back", sum(decision.target == BUNDLE for decision in self._decided))
        return finish(world)

    async def _ask_end(self, number: int) -> None:
        asker = PlainProducer(self.world, "last", self.brokers)
        op = self.world.history.ask_end("last", partition_of(number))
        while True:
            try:
                end = await asker.ask(lambda broker: broker.latest(TOPIC_ID, number))
            except (LedgerMQError, NoAnswer, Unreachable):
                await asyncio.sleep(0.5)
                continue
            self.world.history.tell_end(op, end)
            return

    def _logs(self) -> dict[Partition, FinalLog]:
        logs: dict[int, dict[int, str]] = {}
        for bundle in self.bundles:
            for (_, partition), log in sorted(ledger_log(self.world.store, bundle).items()):
                whole = logs.setdefault(partition, {})
                for offset, value in log.items():
                    whole[offset] = f"{whole[offset]}|{value}" if offset in whole else value
        return {partition_of(partition): FinalLog(log) for partition, log in sorted(logs.items())}
