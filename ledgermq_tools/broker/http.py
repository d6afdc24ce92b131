"""The HTTP gateway within `ledgermq dev`: in the broker's process, on this machine only.

Requests that a web page of another site makes through a browser are refused: the broker is open, and a developer's
browser visits any page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import typer

import ledgermq
from ledgermq.client.connection.grpc_connection import GrpcConnector
from ledgermq.client.settings.values import ClientSettings
from ledgermq_broker.embedded import OwnFirst
from ledgermq_broker.node import Node
from ledgermq_broker.ports.in_process import Network
from ledgermq_gateway.cluster.clock import ClusterClock
from ledgermq_gateway.gateway import Gateway
from ledgermq_gateway.settings import LOOPBACK, GatewaySettings

STREAMS_END_MS, SHUTDOWN_MS = 500, 5_000


def http_beside(port: int) -> Callable[[Node], AbstractAsyncContextManager[None]]:
    """Return what runs a gateway on this port beside a node."""

    @asynccontextmanager
    async def running(node: Node) -> AsyncIterator[None]:
        network = Network()
        network.listen(node.address, node.broker.service, node.broker.door)
        settings = GatewaySettings(
            port=port,
            hosts=",".join(LOOPBACK),
            console="write",
            drain_ms=0,
            streams_end_ms=STREAMS_END_MS,
            shutdown_ms=SHUTDOWN_MS,
        )
        connector = OwnFirst(network, GrpcConnector())
        clock = ClusterClock()
        async with ledgermq.Client(connector, [node.address], ClientSettings(), clock.sources) as client:
            gateway = Gateway(settings, clock, client.as_caller, client.as_caller)
            async with gateway.running():
                typer.echo(_text(gateway.port))
                yield

    return running


def _text(port: int) -> str:
    return f"""\
Over HTTP, from this machine:
  open http://localhost:{port}/console
  curl -s localhost:{port}/v1/topics
  open http://localhost:{port}/docs
"""
