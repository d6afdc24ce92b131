"""Brokers that are stopped and continue (SIGSTOP, SIGCONT), again and again: their bundles are
taken soon, and those of other brokers are not.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from ledgermq_broker.bundle.shared.context import BundleMetrics
from ledgermq_broker.settings.brokers import BrokerSettings
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.cluster_plan import cluster_plan_of
from tests.simulation.loop import SimulatedLoop, run_simulated
from tests.simulation.network import Network
from tests.simulation.world import World

STOPS = 30
EVERY_S = 10.0
OWNED_S_MAX = 6.0
BUNDLES = 5


class Ends(BundleMetrics):
    """Why terms ended, of all brokers."""

    def __init__(self) -> None:
        self.why: Counter[str] = Counter()

    def term_ended(self, bundle: int, why: str) -> None:
        self.why[why] += 1


class Brokers:
    """Three, with a file store's times, in good weather; each has its share when `start` returns."""

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.world = World(loop, seed)
        self.ends = Ends()
        network = Network(self.world)
        settings = BrokerSettings(heartbeat_interval_ms=500, bundles=BUNDLES, background_compaction=False)
        plan = replace(cluster_plan_of(seed), settings=settings, is_s3=False, named_brokers=True)
        self.all = [ClusterBroker(self.world, network, plan, f"b{number}", number) for number in range(3)]

    async def settle(self) -> None:
        await asyncio.sleep(70.0)
        assert sum(len(self.owned(broker)) for broker in self.all) == BUNDLES
        for broker in self.all:
            assert broker.broker is not None
            broker.broker.context.metrics = self.ends

    def owned(self, broker: ClusterBroker) -> set[int]:
        assert broker.broker is not None
        return set(broker.broker.ownership.terms.opened)

    def busiest(self) -> ClusterBroker:
        return max(self.all, key=lambda broker: len(self.owned(broker)))

    async def stop_until_replaced(self, victim: ClusterBroker) -> float:
        """How long its bundles had no owner that runs."""
        loop = self.world.loop
        bundles, begun_s = self.owned(victim), loop.time()
        victim.process.pause()
        while bundles - set().union(*(self.owned(broker) for broker in self.all if broker is not victim)):
            assert loop.time() - begun_s < 60
            await asyncio.sleep(0.05)
        taken_s = loop.time() - begun_s
        await asyncio.sleep(1.0)
        victim.process.resume()
        return taken_s


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_a_stopped_broker_owns_is_taken_within_seconds_however_often_brokers_are_stopped(seed: int) -> None:
    async def main(loop: SimulatedLoop) -> None:
        brokers = Brokers(loop, seed)
        await brokers.settle()
        taken_s, stopped_bundles = [], 0
        for _ in range(STOPS):
            next_s, victim = loop.time() + EVERY_S, brokers.busiest()
            stopped_bundles += len(brokers.owned(victim))
            taken_s.append(await brokers.stop_until_replaced(victim))
            await asyncio.sleep(max(1.0, next_s - loop.time()))
        await asyncio.sleep(EVERY_S)
        assert max(taken_s) < OWNED_S_MAX, [round(taken, 1) for taken in taken_s]
        assert brokers.ends.why["fenced"] == stopped_bundles, (
            "who goes on takes nothing from brokers that never stood still"
        )

    run_simulated(main)


@pytest.mark.parametrize("seed", range(3))
def test_brokers_that_stand_still_for_a_moment_keep_what_they_own(seed: int) -> None:
    """As on a machine that has too much to do."""

    async def main(loop: SimulatedLoop) -> None:
        brokers = Brokers(loop, seed)
        await brokers.settle()
        owned = [brokers.owned(broker) for broker in brokers.all]
        for number in range(150):
            victim = brokers.all[number % 3].process
            victim.pause()
            await asyncio.sleep(brokers.world.random.uniform(0.5, 2.0))
            victim.resume()
            await asyncio.sleep(brokers.world.random.uniform(0.0, 0.5))
        assert [brokers.owned(broker) for broker in brokers.all] == owned
        assert not brokers.ends.why

    run_simulated(main)
