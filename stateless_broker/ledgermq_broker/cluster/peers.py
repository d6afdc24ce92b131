"""Keep a connection to each other broker, to forward requests and to detect at once that a broker
has died.

A process that was killed breaks its connections and refuses new ones within milliseconds, long
before its heartbeat is missed; a stopped one keeps them, so each broker also gets a small request
from time to time. Must not know: the consequences of a lost broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from ledgermq.errors import LedgerMQError, Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection, Connector

WATCH_PAUSE_S_MAX = 30.0
"""No jitter: each pair of brokers has one line, which each of them loses at its own time."""
PING_PAUSE_S = 1.0
PING_TIMEOUT_S = 2.5
"""A process on an overloaded machine may stand still for a second or two, and still be alive."""

OnLost = Callable[[str, bool], None]
"""(broker id, whether its address refuses connections)"""


class Peers:
    """`interval_s`: interval of heartbeats. A lost connection is retried after as long; the pause
    doubles up to 30 s while it stays lost.
    """

    def __init__(self, connector: Connector, interval_s: float, on_lost: OnLost) -> None:
        self._connector = connector
        self._interval_s = interval_s
        self._on_lost = on_lost
        self._connections: dict[str, Connection] = {}
        self._reached_at: dict[str, str] = {}
        self._watches: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def connection(self, address: str) -> Connection:
        """Return the one connection to this address; open it if there is none."""
        if address not in self._connections:
            self._connections[address] = self._connector.connect(self._reached_at.get(address, address))
        return self._connections[address]

    def watch(self, addresses: Mapping[str, str], reached_at: Mapping[str, str]) -> None:
        """Watch exactly these brokers (address by id); connections that are no longer needed are
        closed.

        `reached_at`: where an address is reached from here, if the address itself is not reachable.
        """
        moved = {address for address in self._connections if reached_at.get(address) != self._reached_at.get(address)}
        self._reached_at = dict(reached_at)
        wanted = set(addresses.items())
        for peer in sorted(self._watches.keys() - {peer for peer in wanted if peer[1] not in moved}):
            self._watches.pop(peer).cancel()
        self._drop(moved)
        for peer in sorted(wanted - self._watches.keys()):
            self._watches[peer] = asyncio.create_task(self._watch(*peer), name=f"watch broker {peer[0]}")
        self._drop(self._connections.keys() - addresses.values())

    async def close(self) -> None:
        self.watch({}, {})
        if self._closing:
            await asyncio.wait(self._closing)

    async def _watch(self, broker: str, address: str) -> None:
        pause_s = self._interval_s
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            refused = await self._wait_lost(broker, address)
            self._on_lost(broker, refused)
            held = loop.time() - begun > WATCH_PAUSE_S_MAX
            pause_s = self._interval_s if held else min(WATCH_PAUSE_S_MAX, 2 * pause_s)
            await asyncio.sleep(pause_s)

    async def _wait_lost(self, broker: str, address: str) -> bool:
        """Wait until the connection is lost; return whether the address refuses connections. Pings
        meanwhile, and reports pings without an answer.
        """
        lost = asyncio.create_task(self.connection(address).wait_lost(), name=f"line to broker {broker}")
        try:
            while not (await asyncio.wait([lost], timeout=PING_PAUSE_S))[0]:
                if not await self._answers(address):
                    self._on_lost(broker, False)
            return lost.result()
        except LedgerMQError:
            return False
        finally:
            lost.cancel()

    async def _answers(self, address: str) -> bool:
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                await self.connection(address).describe_cluster(pb.DescribeClusterRequest())
        except Unauthorized:  # it lives, even if it does not know this broker yet
            return True
        except (LedgerMQError, TimeoutError):
            return False
        return True

    def _drop(self, addresses: Collection[str]) -> None:
        for address in sorted(addresses):
            task = asyncio.create_task(self._connections.pop(address).close(), name=f"close line to {address}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
