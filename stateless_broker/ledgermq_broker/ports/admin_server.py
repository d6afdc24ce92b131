"""Serve the admin port: /livez, /readyz and /metrics over HTTP or HTTPS, for people, load balancers
and Prometheus. No endpoint returns a secret or changes anything.

/livez     200 while the event loop runs: if it does not, restart the process
/readyz    200 once the process may be given work, else 503; JSON says why
/metrics   Prometheus' text format

Connections are bounded (`BoundedConnections`), so that a flood of them takes no files from the rest of
the process.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from ledgermq.errors import InvalidConfig
from ledgermq.runtime.ports.bounded_connections import ADMIN_PORT, BoundedConnections
from ledgermq_broker.health.readiness import Health

Render = Callable[[], bytes]
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GRACE_S = 1.0


class AdminServer:
    """Server of the admin port; `render()` returns the metrics as text.

    It starts before everything else, so that a process that waits for its store can report that.
    """

    def __init__(self, health: Health, render: Render) -> None:
        self._health = health
        self._render = render
        self._connections = BoundedConnections(ADMIN_PORT)
        app = web.Application(client_max_size=1024, middlewares=[self._note_request])
        app.add_routes(
            [web.get("/livez", self._livez), web.get("/readyz", self._readyz), web.get("/metrics", self._metrics)]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=GRACE_S)
        self._listening: asyncio.Server | None = None
        self.port = 0

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open the port and return its number; `port` 0 takes a free one. `tls`: None for plain HTTP.
        Raises InvalidConfig if the port cannot be opened.
        """
        await self._runner.setup()
        http = self._runner.server
        assert http is not None, "set up"
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                lambda: self._connections.protocol(http(), tls), host, port, reuse_address=True
            )
        except OSError as error:
            await self._runner.cleanup()
            raise InvalidConfig(
                f"cannot listen on {host}:{port} for the admin port: {error.strerror or error}"
            ) from error
        self.port = self._listening.sockets[0].getsockname()[1]
        return self.port

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()
        self._connections.close()

    @web.middleware
    async def _note_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._connections.served(request.transport)
        return await handler(request)

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        found = {"ready": self._health.is_ready, "why": self._health.why_not, "notes": self._health.notes()}
        return web.Response(
            status=200 if self._health.is_ready else 503, text=json.dumps(found) + "\n", content_type="application/json"
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._render(), headers={"Content-Type": METRICS_TYPE})
