"""A broker of the product in a simulated process: start it, serve it over the simulated network,
stop it, start it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq.errors import LedgerMQError
from ledgermq_broker.broker import Broker
from ledgermq_broker.bundle.shared.context import BundleMetrics
from ledgermq_ledger.blocking import run_inline
from tests.broker.inline_functions import InlineFunctions
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.filter_watch import FUNCTIONS
from tests.simulation.loop import Process
from tests.simulation.network import Network
from tests.simulation.world import World, failed_assertions

PEER_TIMEOUT_S = 10.0


class MovesForLoad(BundleMetrics):
    def __init__(self, world: World) -> None:
        self._world = world

    def moved_for_load(self, bundle: int) -> None:
        self._world.coverage.saw("a bundle moved for load")

    def moved_to_rack(self, bundle: int) -> None:
        self._world.coverage.saw("a bundle moved to the rack of its bytes")


class ClusterBroker:
    """One incarnation. Its address stays the same through all of them."""

    def __init__(self, world: World, network: Network, plan: ClusterPlan, name: str, incarnation: int) -> None:
        self.name = name
        self.process: Process = world.start(name)
        self.broker: Broker | None = None
        self.on_failed: Callable[[], None] = lambda: None
        """As a supervisor would, the run ends the process and starts it again."""
        self._world = world
        self._network = network
        own = {"broker_id": name if plan.named_brokers else None, "rack": network.rack_of(name)}
        self._settings = plan.settings.model_copy(update=own)
        self._constants = plan.constants
        self._meters = network.meters(name)
        self._store = world.line(name, self._meters)
        self._sources = world.sources(f"{name} {incarnation}", clock=name)
        self.process.spawn(self._live())

    async def _live(self) -> None:
        connector = self._network.connector(self.name, PEER_TIMEOUT_S)
        while self.broker is None:
            try:
                self.broker = await Broker.start(
                    self._store,
                    self._sources,
                    self._settings,
                    self.name,
                    connector,
                    run_inline,
                    metrics=MovesForLoad(self._world),
                    constants=self._constants,
                    counts=self._meters,
                    functions=InlineFunctions(FUNCTIONS),
                    kafka_address=self._network.kafka_address(self.name),
                )
            except LedgerMQError as error:
                self._world.note(self.name, f"did not start: {error.message[:80]}")
                await asyncio.sleep(1.0)
        self._network.on_start(self.broker)
        self._network.listen(self.name, self.process, self.broker.service, self.broker.door)
        self._world.note(self.name, "listens")
        error = await self.broker.failed
        self._world.note(self.name, f"failed: {error!r}"[:120])
        self._world.violations += failed_assertions(error)
        self.on_failed()

    async def stop(self) -> None:
        """As on SIGTERM."""
        if self.broker is not None:
            self._world.coverage.saw("disturbance: graceful stop")
            await self.broker.stop()
            self._world.note(self.name, "stopped gracefully")
