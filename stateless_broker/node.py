"""A node: a broker behind its gRPC server, on a root URL. What `ledgermq broker`, `ledgermq dev` and an embedded cluster start."""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType
from typing import Self

import pyarrow as pa

from ledger.object_store.contract import ObjectStore
from ledger.object_store.open import open_store
from ledger.object_store.probe import probe_store
from ledgermq.client.grpc_connection import GrpcConnector
from ledgermq.sources import Sources
from stateless_broker.broker import Broker
from stateless_broker.grpc_server import GrpcServer
from stateless_broker.settings import BrokerSettings

PEER_TIMEOUT_S = 10.0
GRACE_S = 1.0


class Node:
    """`address`: by which clients and other brokers reach it."""

    def __init__(self, store: ObjectStore, server: GrpcServer, broker: Broker, settings: BrokerSettings) -> None:
        self.store = store
        self.broker = broker
        self.address = broker.address
        self._server = server
        self._settings = settings

    @classmethod
    async def start(cls, url: str, settings: BrokerSettings, sources: Sources) -> Node:
        """Raises InvalidConfig, Unauthorized, StoreUnusable, FormatNotSupported, DataDamaged, Unavailable."""
        store = await open_store(url, sources=sources)
        server = GrpcServer(settings.calls_max)
        try:
            await probe_store(store, sources)
            await asyncio.to_thread(pa.scalar, 0)  # imports pandas, where it is installed: now, not in the first request
            port = await server.listen(settings.host, settings.port)
            connector = GrpcConnector(request_timeout_s=PEER_TIMEOUT_S)
            broker = await Broker.start(store, sources, settings, advertised_address(settings, port), connector)
        except BaseException:
            await server.stop(0)
            await store.close()
            raise
        await server.serve(broker.service)
        return cls(store, server, broker, settings)

    async def stop(self) -> None:
        """Hand over within the time set for it, then end all calls."""
        await self._server.drain()
        try:
            async with asyncio.timeout(self._settings.shutdown_ms / 1000):
                await self.broker.stop()
        except TimeoutError:
            await self.broker.stop(graceful=False)
        await self._server.stop(GRACE_S)
        await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()


def advertised_address(settings: BrokerSettings, port: int) -> str:
    if settings.advertised_address:
        return settings.advertised_address
    everywhere = settings.host in ("0.0.0.0", "::", "")
    host = socket.gethostname() if everywhere else settings.host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
