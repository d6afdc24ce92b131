"""Two brokers on a store in memory, each behind a front; they reach one another within the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.sources import Sources
from ledgermq_broker.broker import Broker
from ledgermq_broker.ports.in_process import InProcessConnector, Network
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_tools.conformance.brokers.front import Front, Watch

BROKERS = 2
PARTITIONS = 8
SETTLED_S_MAX = 120.0
SETTINGS = {
    "bundles": 4,
    "heartbeat_interval_ms": 200,
    "holding_ms": 200,
    "background_compaction": False,
    "log_level": "error",
}


class Cluster:
    """`fronts` by the address by which clients and brokers know the broker behind it."""

    def __init__(self, watch: Watch) -> None:
        self.fronts: dict[str, Front] = {}
        self._watch = watch
        self._addresses: list[str] = []
        self._store = MemoryStore()
        self._sources = Sources()
        self._settings = load_settings(None, **SETTINGS)
        self._network = Network()
        self._brokers: dict[str, Broker] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ledgermq.Client]:
        """Start the brokers, and give a client that reaches them past the fronts."""
        try:
            while len(self._brokers) < BROKERS:
                await self.start()
            connector = InProcessConnector(self._network)
            async with ledgermq.Client(connector, self._addresses, ClientSettings(), self._sources) as client:
                await self.settle(client)
                yield client
        finally:
            for address in list(self._brokers):
                await self.kill(address)

    async def start(self) -> None:
        """Start one more broker."""
        front = Front(self._addresses, self._watch)
        await front.listen()
        connector = InProcessConnector(self._network)
        broker = await Broker.start(self._store, self._sources, self._settings, front.address, connector)
        self._network.listen(front.address, broker.service, broker.door)
        front.serve(broker.service)
        self.fronts[front.address], self._brokers[front.address] = front, broker

    async def kill(self, address: str) -> None:
        """End a broker as `kill -9` does: its port closes, and it hands nothing over."""
        await self.fronts.pop(address).stop()
        self._addresses.remove(address)
        self._network.stop_listening(address)
        await self._brokers.pop(address).stop(graceful=False)

    def watch(self, watch: Watch) -> None:
        """Let all fronts play and judge this from now on."""
        self._watch = watch
        for front in self.fronts.values():
            front.watch = watch

    async def settle(self, client: ledgermq.Client) -> None:
        """Wait until every bundle of user topics has an owner, and each broker owns some."""
        async with asyncio.timeout(SETTLED_S_MAX):
            while True:
                owners = {bundle.owner for bundle in (await client.describe_cluster()).bundles if bundle.bundle}
                if owners == set(self._brokers):
                    return
                await asyncio.sleep(0.05)
