"""A gateway on a free port, and brokers in the same process and event loop, for tests over real HTTP."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.protocol.naming.tokens import bearer
from ledgermq.sources import Sources
from ledgermq_broker.ports.in_process import InProcessConnector
from ledgermq_broker.settings.processes import load_settings
from ledgermq_gateway.cluster.clock import ClusterClock
from ledgermq_gateway.gateway import Gateway
from ledgermq_gateway.settings import GatewaySettings
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_tools.testing.cluster import VirtualCluster
from tests.broker.access import token
from tests.stores.backends import seeded_sources

CLUSTER = {"bundles": 2, "background_compaction": False, "heartbeat_interval_ms": 1_000}
RULES = {"security": "rules", "super_principals": "user:root"}
QUICK = {"drain_ms": 0, "streams_end_ms": 200, "shutdown_ms": 5_000}


@dataclass
class World:
    """`tokens`: by user, as `user` has made them."""

    cluster: VirtualCluster
    gateway: Gateway
    http: httpx.AsyncClient

    @property
    def port(self) -> int:
        return self.gateway.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, secret: str = "") -> ledgermq.Client:
        """A client of the SDK beside the gateway."""
        connector = InProcessConnector(self.cluster.network, lambda _: bearer(secret or "anonymous"))
        return ledgermq.Client(connector, list(self.cluster.brokers), ClientSettings(timeout_s=20), Sources())

    async def user(self, name: str, *rules: str) -> dict[str, str]:
        """Make a token, and give its user these rights; return the header that proves it. A rule: `produce orders`."""
        drawn = await token(self.cluster, name)  # type: ignore[arg-type]  # it uses brokers only
        async with self.client((await token(self.cluster, "root")).text) as root:  # type: ignore[arg-type]  # as above
            for rule in rules:
                operations, _, place = rule.partition(" ")
                await root.access.grant(f"user:{name}", operations, place)
        return {"Authorization": f"Bearer {drawn.text}"}


@asynccontextmanager
async def world(
    *,
    rules: bool = False,
    brokers: int = 1,
    cluster: Any = None,
    tls: ssl.SSLContext | None = None,
    client_tracing: bool = False,
    machine: Sources | None = None,
    kind: type[VirtualCluster] = VirtualCluster,
    **settings: Any,
) -> AsyncIterator[World]:
    """`rules`: brokers want tokens. `tls`: of the HTTP port. `client_tracing`: of the gateway's client. `machine`:
    clock of the gateway's machine. `settings`: of the gateway.
    """
    made = kind(
        MemoryStore("", seeded_sources()), load_settings(None, **CLUSTER, **(RULES if rules else {}), **(cluster or {}))
    )
    for number in range(brokers):
        await made.start(f"broker-{number}:1")
    await made.settled()
    chosen = ClientSettings(timeout_s=20, tracing=client_tracing)
    clock = ClusterClock(machine)
    base = ledgermq.Client(InProcessConnector(made.network), list(made.brokers), chosen, clock.sources)
    gateway = Gateway(GatewaySettings(**({"port": 0} | QUICK | settings)), clock, base.as_caller, base.as_caller)
    try:
        async with (
            gateway.running(tls),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", timeout=60) as http,
        ):
            yield World(made, gateway, http)
    finally:
        await base.close()
        await made.close()


async def raw(port: int, request: bytes, *, timeout_s: float = 20.0) -> bytes:
    """Send bytes to the port, and return what comes until the connection ends or is silent for a moment after a whole
    answer.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        async with asyncio.timeout(timeout_s):
            head = await reader.readuntil(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            return head + (await reader.readexactly(int(length[0].split(b":")[1])) if length else await reader.read())
    except asyncio.IncompleteReadError as error:
        return error.partial
    finally:
        writer.close()


def get(path: str, *lines: str, host: str = "localhost") -> bytes:
    """A GET request as bytes."""
    return "\r\n".join([f"GET {path} HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])
