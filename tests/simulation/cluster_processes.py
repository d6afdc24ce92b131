"""The processes of a simulated cluster: started, asked to stop, killed, cut off from one another, standing still."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ledgermq.client.client import Client
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import LedgerMQError, TopicExists
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.cluster_clients import (
    PARTITIONS,
    SimulatedClient,
)
from tests.simulation.cluster_plan import ClusterPlan, cluster_plan_of
from tests.simulation.disturbances import Disturbances
from tests.simulation.growth_watch import metadata_batches, numbers_of_bundles
from tests.simulation.loop import Process, SimulatedLoop, State
from tests.simulation.network import Network
from tests.simulation.plan import RunPlan, plan_of
from tests.simulation.world import World

T = TypeVar("T")
OUTLIVED_EVERY_S, STANDS_STILL_S_MAX = 2.0, 10.0


class ClusterProcesses:
    _disturbances: Disturbances
    """Of the present run; they start again what has ended."""

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        self.world = World(loop, seed, lines_kept)
        self.plan: RunPlan = plan_of(seed)
        self.cluster: ClusterPlan = cluster_plan_of(seed)
        self.brokers: dict[str, ClusterBroker] = {}
        self.network = Network(self.world)
        self._compactors: dict[str, Process] = {}
        self._clients: list[SimulatedClient] = []
        self._incarnation = 0

    def bundles(self) -> int:
        """Return the number of bundles in force."""
        return numbers_of_bundles(metadata_batches(self.world.store), self.cluster.settings.bundles)[-1]

    def _victims(self) -> list[Process]:
        return [broker.process for broker in self.brokers.values()] + list(self._compactors.values())

    def _start(self, name: str) -> None:
        self._incarnation += 1
        if name.startswith("b"):
            broker = self.brokers[name] = ClusterBroker(self.world, self.network, self.cluster, name, self._incarnation)
            broker.on_failed = lambda: self._disturbances.restart_later(broker.process)
        else:
            self._compactors[name] = self.world.start(name)
            self._compactors[name].spawn(self._compact(name, self._incarnation))

    def _stop(self, victim: Process) -> None:
        broker = self.brokers.get(victim.name)
        if broker is None:
            return
        self.world.note(victim.name, "is asked to stop")

        async def stop() -> None:
            task = victim.spawn(broker.stop())
            await asyncio.wait({task}, timeout=20.0)
            if victim.alive:  # not killed meanwhile: else it is started again for that
                victim.kill()
                await asyncio.sleep(1.0)
                self._start(victim.name)

        self._disturbances.later(0.0, stop)

    def _cut(self, victim: Process) -> None:
        other = self.world.random.choice(
            [name for name in sorted(self.brokers) if name != victim.name] + [c.name for c in self._clients]
        )
        self.world.note(victim.name, f"is cut off from {other}")
        self.world.coverage.saw("disturbance: network cut")
        self.network.cut(victim.name, other)
        self._disturbances.later(
            self.world.random.uniform(0, self.plan.pause_s_max), lambda: self.network.mend(victim.name, other)
        )

    async def _outlive_terms(self) -> None:
        """Now and then a broker stands still until another has claimed a bundle of it, and a moment more: it
        wakes with the questions that came meanwhile.
        """
        world = self.world
        while not world.healed:
            await asyncio.sleep(world.random.expovariate(1 / OUTLIVED_EVERY_S))
            victim = self.brokers[world.random.choice(sorted(self.brokers))].process
            if world.healed or victim.state is not State.RUNNING:
                continue
            claims, end_s = world.store.claims, world.loop.time() + STANDS_STILL_S_MAX
            world.note(victim.name, "stands still until another has claimed what it has")
            victim.pause()
            while not world.healed and world.store.claims == claims and world.loop.time() < end_s:
                await asyncio.sleep(0.1)
            await asyncio.sleep(world.random.uniform(0.2, 4.0))
            if world.store.claims > claims:
                world.coverage.saw("a broker stood still until another had claimed")
            if victim.state is State.PAUSED:
                victim.resume()

    async def _create_topics(self) -> None:
        client = self._plain_client("setup")
        for name, settings in self.cluster.topic_settings.items():
            while name not in self.world.topic_ids:
                try:
                    made = await client.create_topic(name, PARTITIONS, settings)
                except TopicExists:
                    made = await client.describe_topic(name)
                self.world.topic_ids[name] = made.topic_id
        await client.close()

    def _plain_client(self, name: str) -> Client:
        brokers = [f"b{i}" for i in range(self.cluster.brokers)]
        return Client(
            self.network.connector(name, 10.0), brokers, ClientSettings(timeout_s=60.0), self.world.sources(name)
        )

    async def _compact(self, name: str, incarnation: int) -> None:
        store, sources = self.world.line(name), self.world.sources(f"{name} {incarnation}", clock=name)
        engine = LocalEngine(sources, run_inline)
        while not self.world.healed:
            await asyncio.sleep(sources.random.uniform(0, 4 * self.plan.compact_every_s))
            try:
                report = await compact_root(store, sources, engine)
            except LedgerMQError as error:
                self.world.note(name, f"compaction: {type(error).__name__} {error.message[:80]}")
                continue
            self.world.coverage.saw("a round was finished by a compactor", len(report.rounds))
            for bundle, error in report.failures.items():
                self.world.note(name, f"compaction of {bundle}: {type(error).__name__} {error.message[:80]}")

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except LedgerMQError as error:
                self.world.note("drain", f"{type(error).__name__}: {error.message[:100]}")
                await asyncio.sleep(0.5)
