"""Brokers of the product in virtual time, before a store at the distance of S3, and clients of
them. Processors cost nothing here.
"""

from __future__ import annotations

import random

from bench.distant import Distance
from bench.sizing.distant_store import DistantStore
from ledgermq.client.client import Client
from ledgermq.client.settings.values import ClientSettings
from ledgermq.sources import Sources
from ledgermq_broker.broker import Broker
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.by_store import HEARTBEAT_MS, SPACING_MS
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.prices import S3_PRICES
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore
from ledgermq_ledger.object_store.wrappers.resilient import ResilientStore
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.world import World
from tests.stores.counting import CountingMeter

NAME = "broker"
TIMEOUT_S = 10.0
NETWORK_S_MAX = 0.001
SEED = 7


class DistantBrokers:
    """`meter` counts their requests, every attempt, and `costs` what these cost, and who pays.

    Settings are those for S3; compaction is left to others.
    """

    def __init__(
        self, loop: SimulatedLoop, bundles: int, distance: Distance, heartbeat_ms: int = HEARTBEAT_MS["s3"]
    ) -> None:
        self.meter = CountingMeter()
        self.costs = StoreCosts(S3_PRICES)
        self.brokers: dict[str, Broker] = {}
        self._distance = distance
        self._world = World(loop, SEED, 0)
        self._world.net_delay_s_max = NETWORK_S_MAX
        self._network = Network(self._world)
        self._objects = MemoryStore(sources=self._world.sources("store"))
        self._settings = BrokerSettings(
            bundles=bundles + 1,  # the one for metadata is included
            flush_spacing_ms=SPACING_MS["s3"],
            heartbeat_interval_ms=heartbeat_ms,
            background_compaction=False,
        )
        self._processes: dict[str, Process] = {}

    async def start(self, name: str = NAME) -> None:
        process = self._processes[name] = self.process(name)
        await process.spawn(self._start(process))

    async def _start(self, process: Process) -> None:
        name = process.name
        sources = self._world.sources(name)
        distant = DistantStore(self._objects, random.Random(f"{SEED} {name}"), self._distance)
        store = ResilientStore(MeteredStore(MeteredStore(distant, self.meter), self.costs), sources)
        connector = self._network.connector(name, TIMEOUT_S)
        broker = await Broker.start(store, sources, self._settings, name, connector, run_inline, counts=(self.costs,))
        self.brokers[name] = broker
        self._network.listen(name, process, broker.service, broker.door)

    def kill(self, name: str) -> None:
        """End a broker as SIGKILL does."""
        self._processes[name].kill()

    def process(self, name: str) -> Process:
        return self._world.start(name)

    def sources(self, name: str) -> Sources:
        """Return clock and randomness of one more program; all clocks show the same time."""
        return self._world.sources(name)

    def client(self, name: str) -> Client:
        """Create and use it within a process of that name."""
        return Client(
            self._network.connector(name, TIMEOUT_S), [*self.brokers], ClientSettings(), self._world.sources(name)
        )

    async def create_topic(self, name: str, partitions: int) -> None:
        client = self.client("admin")
        await client.create_topic(name, partitions)
        await client.close()
