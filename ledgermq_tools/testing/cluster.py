"""A cluster of brokers in this process and in virtual time, on a store in memory.

Clients connect by direct calls. Nothing listens on a port, nothing is written to a disk, and brokers
start no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar

import ledgermq
from ledgermq.client.settings.values import ClientSettings, settings_from
from ledgermq.protocol.api import Connector
from ledgermq_broker.broker import Broker
from ledgermq_broker.ports.in_process import InProcessConnector, Network
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_tools.testing.virtual_time import EPOCH_US, VirtualLoop, virtual_sources

SETTLED_S_MAX = 600.0
FIRST_SEED = 77
CALM = {"bundles": 3, "background_compaction": False, "heartbeat_interval_ms": 10_000}
"""Settings of the fixture's brokers. Few heartbeats: they are nearly all that happens in an hour."""
T = TypeVar("T")


class VirtualCluster:
    """`brokers` by address, all on `store`. Use it within one virtual event loop."""

    def __init__(self, store: ObjectStore, settings: BrokerSettings, constants: BrokerConstants | None = None) -> None:
        self.store = store
        self.settings = settings
        self.constants = constants
        self.network = Network()
        self.brokers: dict[str, Broker] = {}
        self._started = 0
        self.client_seeds = count(FIRST_SEED)
        """Each client draws its own ids."""

    async def start(self, address: str, skew_s: float = 0) -> Broker:
        """Start a broker. `skew_s`: how far its machine's clock is ahead of the store's."""
        self._started += 1
        broker = await Broker.start(
            self.view_of_store(address),
            virtual_sources(self._started, round(skew_s * 1e6)),
            self.settings,
            address,
            self.connector(address),
            run_inline,
            constants=self.constants,
            **self.observers(address),
        )
        self.network.listen(address, broker.service, broker.door)
        self.brokers[address] = broker
        return broker

    def view_of_store(self, address: str) -> ObjectStore:
        """Return the store as the broker at this address reaches it."""
        return self.store

    def observers(self, address: str) -> dict[str, Any]:
        """Return arguments of `Broker.start` that observe the broker."""
        return {}

    def connector(self, address: str) -> Connector:
        """Return how the broker at this address reaches the others."""
        return InProcessConnector(self.network)

    async def stop(self, address: str, *, graceful: bool = True) -> None:
        """Stop a broker. Not graceful: as a killed process, which closes its port at once."""
        if not graceful:
            self.network.stop_listening(address)
        await self.brokers.pop(address).stop(graceful)
        self.network.stop_listening(address)

    async def close(self) -> None:
        for address in list(self.brokers):
            await self.stop(address, graceful=False)

    async def settled(self) -> None:
        """Wait until every bundle is open at a broker that answers."""
        async with asyncio.timeout(SETTLED_S_MAX):
            while len(self._opened()) < self.settings.bundles:  # noqa: ASYNC110  in virtual time this costs nothing
                await asyncio.sleep(0.01)

    def _opened(self) -> set[int]:
        listening = [broker for address, broker in self.brokers.items() if address in self.network.addresses()]
        return {bundle for broker in listening for bundle in broker.ownership.terms.opened}


class Clock:
    """The clock of a cluster and its clients: the one of the virtual event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def now(self) -> datetime:
        """Return the time in UTC. It begins at 2025-12-01."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=EPOCH_US, seconds=self._loop.time())

    async def advance(self, time: float | timedelta) -> None:
        """Let this much time pass, in seconds or as a timedelta. Everything that is due until then happens,
        in its order.
        """
        await asyncio.sleep(time.total_seconds() if isinstance(time, timedelta) else time)


class LedgermqCluster:
    """The value of the fixture `ledgermq_cluster`: a running cluster, and the virtual event loop of the
    test.

    Time stands still while code runs. It moves when every task waits: to the next moment at which one of
    them is due, at once. `clock` shows and moves it.
    """

    def __init__(self, brokers: int = 1, **settings: object) -> None:
        """`settings`: of the brokers. Raises InvalidConfig."""
        chosen = load_settings(None, **(CALM | settings))
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        self.clock = Clock(self._runner.get_loop())
        self._cluster = VirtualCluster(MemoryStore("", virtual_sources(0)), chosen)
        self._numbers = count(1)
        self._clients: set[ledgermq.Client] = set()
        try:
            self.run(self._begin(brokers))
        except BaseException:
            self.close()
            raise

    async def _begin(self, brokers: int) -> None:
        for _ in range(brokers):
            await self._cluster.start(f"broker-{next(self._numbers)}:9650")
        await self._cluster.settled()

    @property
    def addresses(self) -> list[str]:
        """Return the addresses of the brokers that run."""
        return list(self._cluster.brokers)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end in the virtual event loop. For tests that are no coroutines, and for
        fixtures. Raises what it raises, and AllTasksWait if it would wait forever.
        """
        return self._runner.run(work)

    @asynccontextmanager
    async def connect(self, **settings: Any) -> AsyncIterator[ledgermq.Client]:
        """Open a client of the cluster. `settings`: as in `ledgermq.connect`."""
        sources = virtual_sources(next(self._cluster.client_seeds))
        given = settings_from(ClientSettings, settings)
        connector = InProcessConnector(self._cluster.network)
        async with ledgermq.Client(connector, self.addresses, given, sources) as client:
            self._clients.add(client)
            try:
                yield client
            finally:
                self._clients.discard(client)

    async def start_broker(self, address: str = "") -> str:
        """Start one more broker, and return its address. `address`: of a broker that was stopped, which starts
        again. Clients find it, also if it is the only one.
        """
        address = address or f"broker-{next(self._numbers)}:9650"
        await self._cluster.start(address)
        for client in self._clients:
            client._connections.learn(address)
        return address

    async def stop_broker(self, address: str) -> None:
        """Stop a broker as an operator does: it hands its partitions over."""
        await self._cluster.stop(address)

    async def kill_broker(self, address: str) -> None:
        """End a broker as `kill -9` does."""
        await self._cluster.stop(address, graceful=False)

    def close(self) -> None:
        """Stop everything, and close the event loop."""
        try:
            self.run(self._cluster.close())
        finally:
            self._runner.close()
