"""A line to each other broker: to pass requests on, and to see at once that one has died.

A process that was killed breaks its connections and refuses new ones within milliseconds, long before its heartbeat is missed.
Must not know: what follows from a lost broker (`ownership`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from ledgermq.errors import LedgerMQError
from ledgermq.protocol.api import Connection, Connector

WATCH_PAUSE_S_MAX = 30.0

OnLost = Callable[[str, bool], None]
"""(broker id, whether its address refuses connections)"""


class Peers:
    """`interval_s`: of heartbeats; a lost line is tried again after as long, doubling up to 30 s while it stays lost."""

    def __init__(self, connector: Connector, interval_s: float, on_lost: OnLost) -> None:
        self._connector = connector
        self._interval_s = interval_s
        self._on_lost = on_lost
        self._connections: dict[str, Connection] = {}
        self._watches: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def connection(self, address: str) -> Connection:
        """The one line to this address, opened now if there is none."""
        if address not in self._connections:
            self._connections[address] = self._connector.connect(address)
        return self._connections[address]

    def watch(self, addresses: Mapping[str, str]) -> None:
        """Watch exactly these brokers (address by id); lines that are not needed any more are closed."""
        wanted = set(addresses.items())
        for peer in self._watches.keys() - wanted:
            self._watches.pop(peer).cancel()
        for peer in wanted - self._watches.keys():
            self._watches[peer] = asyncio.create_task(self._watch(*peer), name=f"watch broker {peer[0]}")
        self._drop(self._connections.keys() - addresses.values())

    async def close(self) -> None:
        self.watch({})
        if self._closing:
            await asyncio.wait(self._closing)

    async def _watch(self, broker: str, address: str) -> None:
        pause_s = self._interval_s
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                refused = await self.connection(address).wait_lost()
            except LedgerMQError:
                refused = False
            self._on_lost(broker, refused)
            held = loop.time() - begun > WATCH_PAUSE_S_MAX
            pause_s = self._interval_s if held else min(WATCH_PAUSE_S_MAX, 2 * pause_s)
            await asyncio.sleep(pause_s)

    def _drop(self, addresses: Collection[str]) -> None:
        for address in list(addresses):
            task = asyncio.create_task(self._connections.pop(address).close(), name=f"close line to {address}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
