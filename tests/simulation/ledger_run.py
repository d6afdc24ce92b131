"""Level one: a single ledger, whole. Brokers that take it from each other, clients, rival
compactors that trim and delete, all by the product's code; the topic counts as removed, so that
plans trim it without writing a single Parquet file, and a seed takes milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ledgermq.errors import LedgerMQError
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.ledgers.fences import close_finished as close_finished_fences
from ledgermq_ledger.garbage.sweep import tidy_checkpoints, tidy_segments
from ledgermq_ledger.log.chains.checkpoint import Move
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.parquet.compacting.round import run_round
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.topics.catalog import Catalog
from tests.judges.violation import Violation
from tests.simulation.ambush import NO_AMBUSH
from tests.simulation.checker import check
from tests.simulation.disturbances import Disturbances, fill_and_free
from tests.simulation.history import FinalLog, Outcome, Partition
from tests.simulation.ledger_broker import BUNDLE, LedgerBroker
from tests.simulation.ledger_clients import (
    TOPIC_ID,
    Client,
    ConditionalProducer,
    EndAsker,
    IdempotentProducer,
    PlainProducer,
    partition_of,
)
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.plan import RunPlan, plan_of
from tests.simulation.result import Result, finish
from tests.simulation.store import NO_FAULTS
from tests.simulation.watch import ledger_log
from tests.simulation.world import World
from tests.worlds.ledgers import ledger_of

PARTITIONS = 2
HEALING_S = 600.0


class LedgerRun:
    bundles: tuple[int, ...] = (BUNDLE,)

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        self.world = World(loop, seed, lines_kept)
        self.plan: RunPlan = plan_of(seed)
        self.brokers: dict[str, LedgerBroker] = {}
        self._incarnation = 0
        self._compactors: dict[str, Process] = {}
        self._clients: list[Client] = []
        self._work: list[asyncio.Task[None]] = []

    async def run(self) -> Result:
        world, plan = self.world, self.plan
        for bundle in self.bundles:
            ledger = ledger_of(world.store, bundle, cluster=plan.cluster, sources=world.sources("genesis"))
            await advance_checkpoint(ledger, self._genesis())
        names = [f"b{i}" for i in range(plan.brokers)] + [f"c{i}" for i in range(plan.compactors)]
        for name in names:
            self._start(name)
        self._start_clients()
        world.weather.faults, world.weather.slow = plan.faults, plan.slow
        world.weather.list_page = plan.list_page
        world.lost_calls, world.net_delay_s_max = plan.lost_calls, plan.net_delay_s_max
        world.weather.naps, world.weather.nap_s_max, world.weather.stalls = plan.naps, plan.pause_s_max, plan.stalls
        world.weather.ambush, world.weather.slow_s = plan.ambush, plan.slow_s
        disturbances = Disturbances(world, plan, self._victims, self._start)
        hand = world.loop.in_world(disturbances.run())
        filling = world.loop.in_world(fill_and_free(world, plan.full))
        await world.go_on(plan.seconds, plan.requests_max)
        hand.cancel()
        filling.cancel()
        await self._heal(disturbances)
        return await self._conclude()

    def _genesis(self) -> Move | None:
        """Return what the first checkpoint says: that the topic is removed."""
        return _removed

    def _victims(self) -> list[Process]:
        return [broker.process for broker in self.brokers.values()] + list(self._compactors.values())

    def _start(self, name: str) -> None:
        self._incarnation += 1
        if name.startswith("b"):
            self.brokers[name] = self._broker(name)
        else:
            self._compactors[name] = self.world.start(name)
            self._compactors[name].spawn(self._compact(name, self._incarnation))

    def _broker(self, name: str) -> LedgerBroker:
        return LedgerBroker(self.world, self.plan, name, self._incarnation, self.brokers)

    def _bundle_of(self, name: str) -> int:
        """Return the bundle that a process is for."""
        return self.bundles[int(name[1:]) % len(self.bundles)]

    def _start_clients(self) -> None:
        world, brokers = self.world, self.brokers
        producers: list[IdempotentProducer | PlainProducer] = [
            IdempotentProducer(world, "pipe", brokers),
            IdempotentProducer(world, "one", brokers, window=1),
            PlainProducer(world, "plain", brokers),
            IdempotentProducer(world, "brief", brokers, session_s=1.0),
            IdempotentProducer(world, "burst", brokers, burst=3),
        ]
        for i, client in enumerate(producers):
            self._clients.append(client)
            self._work.append(world.loop.in_world(client.run(i % PARTITIONS)))
        for i, name in enumerate(("sure", "surer")):
            careful = ConditionalProducer(world, name, brokers)
            self._clients.append(careful)
            self._work.append(world.loop.in_world(careful.run(i % PARTITIONS)))
        asker = EndAsker(world, "end", brokers)
        self._clients.append(asker)
        self._work.append(world.loop.in_world(asker.run(PARTITIONS)))

    async def _compact(self, name: str, incarnation: int) -> None:
        store, sources = self.world.line(name), self.world.sources(f"{name} {incarnation}")
        cluster, bundle = self.plan.cluster, self._bundle_of(name)
        compaction = Compaction(store, cluster, sources, LocalEngine(sources, run_inline))
        while not self.world.healed:
            await asyncio.sleep(sources.random.uniform(0, 2 * self.plan.compact_every_s))
            try:
                done = await run_round(compaction, bundle, _catalog(), everything=True)
                if done is not None:
                    self.world.coverage.saw("a round was finished")
                if sources.random.random() < 0.4:
                    await tidy_segments(store, bundle)
                    await close_finished_fences(store, bundle)
                    await tidy_checkpoints(store, bundle)
            except LedgerMQError as error:
                self.world.note(name, f"round: {type(error).__name__} {error.message[:80]}")
                self.world.judge_error(error)

    async def _heal(self, disturbances: Disturbances) -> None:
        """All faults end, everybody wakes; then every client must come to an end by itself."""
        world = self.world
        world.weather.faults, world.weather.slow, world.weather.naps, world.lost_calls = NO_FAULTS, 0.0, 0.0, 0.0
        world.weather.stalls, world.weather.ambush, world.weather.full = 0.0, NO_AMBUSH, 0.0
        world.note("world", "heals")
        world.healed = True
        await disturbances.heal()
        for client in self._clients:
            client.stopped.set()
        _, waiting = await asyncio.wait(self._work, timeout=HEALING_S)
        if waiting:
            world.violations.append(
                Violation("stuck", f"{len(waiting)} clients did not end within {HEALING_S:.0f} s of health")
            )

    async def _conclude(self) -> Result:
        """A last broker takes over from whatever is left, appends to every partition and is asked
        for the ends.
        """
        world = self.world
        for broker in self.brokers.values():
            broker.process.kill()
        last = LedgerBroker(world, self.plan, "last", 0, {})
        async with asyncio.timeout(HEALING_S):
            while not last.serves:
                await asyncio.sleep(0.1)
        asker = PlainProducer(world, "last", {"last": last})
        recovered = await recover(ledger_of(world.store, BUNDLE, cluster=self.plan.cluster))
        for number in range(PARTITIONS):
            op = world.history.ask_end("last", partition_of(number))
            world.history.tell_end(op, await asker.ask(lambda broker, number=number: broker.latest(TOPIC_ID, number)))  # type: ignore[misc]
        logs = {partition_of(p): FinalLog(log) for (_, p), log in sorted(ledger_log(world.store, BUNDLE).items())}
        for number in range(PARTITIONS):
            end = logs.get(partition_of(number), FinalLog({})).end
            if recovered.state.end(TOPIC_ID, number) != end:
                told = f"recovery says {recovered.state.end(TOPIC_ID, number)}, all segments together {end}"
                world.violations.append(Violation("recovery differs", f"partition {number}: {told}"))
        world.violations += self._judge(logs)
        self._cover()
        return finish(world)

    def _judge(self, logs: dict[Partition, FinalLog]) -> Iterator[Violation]:
        yield from check(self.world.history, logs)

    def _cover(self) -> None:
        world = self.world
        segments = [segment for bundle in self.bundles for segment in world.store.history(bundle)]
        claims = [segment for segment in segments if segment.valid and segment.index.kind == fmt.CLAIM]
        world.coverage.saw("a void segment", sum(not segment.valid for segment in segments))
        world.coverage.saw("a term was opened", len(claims))
        world.coverage.saw("an object was created again after it was deleted", len(world.store.created_again))
        acknowledged = sum(1 for event in world.history if getattr(event, "outcome", None) is Outcome.OK)
        world.coverage.saw("a batch was acknowledged", acknowledged)


def _removed(draft: fmt.Checkpoint) -> bool:
    draft.metadata_offset = 100
    return True


def _catalog() -> Catalog:
    catalog = Catalog()
    catalog.offset = 100
    return catalog
