"""Connect brokers and clients of one process: direct calls, no bytes copied, no gRPC. Used for
``memory://`` and the simulator.

A `Network` is the set of addresses that answer. A broker that leaves it refuses connections, and
every line to it is lost at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ledgermq.errors import InvalidConfig, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi, Connection, Connector
from ledgermq.protocol.frames import FetchFrame, ProduceFrame, StageFrame
from ledgermq.protocol.methods import Method, UnaryCalls


class Network:
    def __init__(self) -> None:
        self._services: dict[str, tuple[BrokerApi, asyncio.Event]] = {}

    def listen(self, address: str, service: BrokerApi) -> None:
        """Register the service. Raises InvalidConfig if the address is taken."""
        if address in self._services:
            raise InvalidConfig(f"address {address} is in use")
        self._services[address] = (service, asyncio.Event())

    def stop_listening(self, address: str) -> None:
        found = self._services.pop(address, None)
        if found is not None:
            found[1].set()

    def addresses(self) -> list[str]:
        return list(self._services)

    def at(self, address: str) -> tuple[BrokerApi, asyncio.Event]:
        """Return the service, and the event that is set when it has gone. Raises Unavailable."""
        if address not in self._services:
            raise Unavailable(f"{address} refuses the connection: no broker listens there")
        return self._services[address]


class InProcessConnector(Connector):
    def __init__(self, network: Network) -> None:
        self.network = network

    def connect(self, address: str) -> Connection:
        return InProcessConnection(self.network, address)


class InProcessConnection(UnaryCalls, Connection):
    """Look up the address for each call, so the connection survives a restart of the broker as a
    gRPC channel does.
    """

    def __init__(self, network: Network, address: str) -> None:
        self.address = address
        self._network = network

    @property
    def _service(self) -> BrokerApi:
        return self._network.at(self.address)[0]

    async def ask(self, method: Method, request: Any, wait_s: float = 0.0) -> Any:
        return await getattr(self._service, method.attribute)(request)

    async def wait_lost(self) -> bool:
        try:
            _, gone = self._network.at(self.address)
        except Unavailable:
            return True
        await gone.wait()
        return True

    async def close(self) -> None:
        return None

    def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        return self._service.produce(requests)

    def stage(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        return self._service.stage(requests)

    def stage_delayed(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        return self._service.stage_delayed(requests)

    def produce_delayed(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        return self._service.produce_delayed(requests)

    def fetch(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        return self._service.fetch(request)
