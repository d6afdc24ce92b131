"""The admin port: /metrics, /livez, and /readyz with its reason. It is for the network of operators. A flood of
connections takes no files from the rest of the process (`BoundedConnections`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web

from ledgermq.errors import InvalidConfig
from ledgermq.runtime.ports.bounded_connections import ADMIN_PORT, BoundedConnections
from ledgermq_gateway.http.metrics import Metrics
from ledgermq_gateway.settings import GatewaySettings

GRACE_S = 1.0
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Watched(Protocol):
    settings: GatewaySettings
    metrics: Metrics

    @property
    def why_not_ready(self) -> str: ...
    def notes(self) -> list[str]: ...


@asynccontextmanager
async def admin_port(gateway: Watched) -> AsyncIterator[int | None]:
    """Open the port for the block, if the settings name one; yield its number. Raises InvalidConfig."""
    settings = gateway.settings
    if settings.admin_port is None:
        yield None
        return

    bounded = BoundedConnections(ADMIN_PORT)

    async def handle(request: web.BaseRequest) -> web.Response:
        bounded.served(request.transport)
        if request.path == "/livez":
            return web.Response(text="ok\n")
        if request.path == "/readyz":
            why = gateway.why_not_ready
            text = json.dumps({"ready": not why, "why": why, "notes": gateway.notes()}) + "\n"
            return web.Response(status=503 if why else 200, text=text, content_type="application/json")
        if request.path == "/metrics":
            return web.Response(body=gateway.metrics.render(), headers={"Content-Type": METRICS_TYPE})
        return web.Response(status=404)

    server = web.Server(handle, access_log=None)
    try:
        listening = await asyncio.get_running_loop().create_server(
            lambda: bounded.protocol(server(), None), settings.admin_host, settings.admin_port, reuse_address=True
        )
    except OSError as error:
        raise InvalidConfig(
            f"cannot listen on {settings.admin_host}:{settings.admin_port} (admin port): {error.strerror or error}"
        ) from error
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await server.shutdown(GRACE_S)
        bounded.close()
