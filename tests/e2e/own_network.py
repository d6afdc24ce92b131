"""A client with a network to brokers that only it uses: cutting a broker off concerns no other broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq_broker.ports.in_process import InProcessConnector, Network
from tests.broker.cluster import Cluster
from tests.virtual_time import virtual_sources


class OwnNetwork:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.network = Network()
        for address in cluster.brokers:
            self.join(address)

    def join(self, address: str) -> None:
        self.network.listen(address, self.cluster.brokers[address].service)

    def cut(self, *addresses: str) -> None:
        """Without addresses: all."""
        for address in addresses or self.network.addresses():
            self.network.stop_listening(address)

    def heal(self) -> None:
        for address in self.cluster.brokers:
            if address not in self.network.addresses():
                self.join(address)

    @asynccontextmanager
    async def client(self, **settings: Any) -> AsyncIterator[ledgermq.Client]:
        sources = virtual_sources(next(self.cluster.client_seeds))
        known = tuple(self.cluster.brokers)
        async with ledgermq.Client(
            InProcessConnector(self.network), known, ClientSettings(**settings), sources
        ) as client:
            yield client
