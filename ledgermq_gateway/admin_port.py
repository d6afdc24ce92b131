"""The admin port: /metrics, /livez, and /readyz with its reason. It is for the network of operators."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web

from ledgermq.errors import InvalidConfig
from ledgermq_gateway.http.metrics import Metrics
from ledgermq_gateway.settings import GatewaySettings

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Watched(Protocol):
    settings: GatewaySettings
    metrics: Metrics

    @property
    def why_not_ready(self) -> str: ...


@asynccontextmanager
async def admin_port(gateway: Watched) -> AsyncIterator[int | None]:
    """Open the port for the block, if the settings name one; yield its number. Raises InvalidConfig."""
    settings = gateway.settings
    if settings.admin_port is None:
        yield None
        return

    async def handle(request: web.BaseRequest) -> web.Response:
        if request.path == "/livez":
            return web.Response(text="ok\n")
        if request.path == "/readyz":
            why = gateway.why_not_ready
            text = json.dumps({"ready": not why, "why": why}) + "\n"
            return web.Response(status=503 if why else 200, text=text, content_type="application/json")
        if request.path == "/metrics":
            return web.Response(body=gateway.metrics.render(), headers={"Content-Type": METRICS_TYPE})
        return web.Response(status=404)

    runner = web.ServerRunner(web.Server(handle, access_log=None), handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, settings.admin_host, settings.admin_port)
    try:
        await site.start()
    except OSError as error:
        raise InvalidConfig(
            f"cannot listen on {settings.admin_host}:{settings.admin_port} (admin port): {error.strerror or error}"
        ) from error
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
