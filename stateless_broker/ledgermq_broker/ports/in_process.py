"""Connect brokers and clients of one process: direct calls, no bytes copied, no gRPC. Used for
``memory://`` and the simulator.

A `Network` is the set of addresses that answer. A broker that leaves it refuses connections, and
every line to it is lost at once. One that listens with a door admits callers as a gRPC server does;
without a door, every caller in the process may do everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from ledgermq.errors import InvalidConfig, Unavailable
from ledgermq.protocol.api import BrokerApi, Connection, Connector
from ledgermq.protocol.methods import Calls, Method
from ledgermq_broker.access.door import Door
from ledgermq_broker.bundle.loads import set_rack


class Network:
    def __init__(self) -> None:
        self._services: dict[str, tuple[BrokerApi, asyncio.Event]] = {}
        self._doors: dict[str, Door] = {}

    def listen(self, address: str, service: BrokerApi, door: Door | None = None) -> None:
        """Register the service. Raises InvalidConfig if the address is taken."""
        if address in self._services:
            raise InvalidConfig(f"address {address} is in use")
        self._services[address] = (service, asyncio.Event())
        if door is not None:
            self._doors[address] = door

    def stop_listening(self, address: str) -> None:
        found = self._services.pop(address, None)
        self._doors.pop(address, None)
        if found is not None:
            found[1].set()

    def addresses(self) -> list[str]:
        return list(self._services)

    def at(self, address: str) -> tuple[BrokerApi, asyncio.Event]:
        """Return the service, and the event that is set when it has gone. Raises Unavailable."""
        if address not in self._services:
            raise Unavailable(f"{address} refuses the connection: no broker listens there")
        return self._services[address]

    async def admitted(self, address: str, credential: str, client_id: str = "") -> BrokerApi:
        """Return the service for a caller. Raises Unavailable, Unauthorized."""
        service, _ = self.at(address)
        door = self._doors.get(address)
        return service if door is None else (await door.admit(credential, client_id=client_id)).api


class InProcessConnector(Connector):
    def __init__(
        self,
        network: Network,
        credential: Callable[[str], str] = lambda address: "",
        client_id: str = "",
        rack: str = "",
    ) -> None:
        self.network = network
        self._credential = credential
        self._client_id = client_id
        self._rack = rack

    def connect(self, address: str) -> Connection:
        return InProcessConnection(self.network, address, self._credential, self._client_id, self._rack)

    def proving(self, credential: Callable[[str], str]) -> Connector:
        return InProcessConnector(self.network, credential)


class InProcessConnection(Calls, Connection):
    """Look up the address for each call, so the connection survives a restart of the broker as a
    gRPC channel does.
    """

    def __init__(
        self, network: Network, address: str, credential: Callable[[str], str], client_id: str = "", rack: str = ""
    ) -> None:
        self.address = address
        self._network = network
        self._credential = credential
        self._client_id = client_id
        self._rack = rack

    async def _service(self) -> BrokerApi:
        set_rack(self._rack)
        return await self._network.admitted(self.address, self._credential(self.address), self._client_id)

    async def ask(self, method: Method, request: Any) -> Any:
        return await getattr(await self._service(), method.attribute)(request)

    async def stream(self, method: Method, requests: Any) -> AsyncIterator[Any]:
        service = await self._service()
        async with aclosing(getattr(service, method.attribute)(requests)) as answers:
            async for answer in answers:
                yield answer

    def credential(self) -> str:
        return self._credential(self.address)

    def as_caller(self, credential: str) -> Connection:
        return InProcessConnection(self._network, self.address, lambda address: credential, self._client_id, self._rack)

    async def wait_lost(self) -> bool:
        try:
            _, gone = self._network.at(self.address)
        except Unavailable:
            return True
        await gone.wait()
        return True

    async def close(self) -> None:
        return None
