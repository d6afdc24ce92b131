"""Serve the admin port: /livez, /readyz and /metrics over HTTP or HTTPS, for people, load balancers
and Prometheus. No endpoint returns a secret or changes anything.

/livez     200 while the event loop runs: if it does not, restart the process
/readyz    200 once the process may be given work, else 503; JSON says why
/metrics   Prometheus' text format
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable

from aiohttp import web

from ledgermq.errors import InvalidConfig
from stateless_broker.health import Health

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
        app = web.Application(client_max_size=1024)
        app.add_routes(
            [web.get("/livez", self._livez), web.get("/readyz", self._readyz), web.get("/metrics", self._metrics)]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=GRACE_S)
        self.port = 0

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open the port and return its number; `port` 0 takes a free one. `tls`: None for plain HTTP.
        Raises InvalidConfig if the port cannot be opened.
        """
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, ssl_context=tls).start()
        except OSError as error:
            await self._runner.cleanup()
            raise InvalidConfig(
                f"cannot listen on {host}:{port} for the admin port: {error.strerror or error}"
            ) from error
        self.port = self._runner.addresses[0][1]
        return self.port

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        found = {"ready": self._health.is_ready, "why": self._health.why_not, "notes": self._health.notes()}
        return web.Response(
            status=200 if self._health.is_ready else 503, text=json.dumps(found) + "\n", content_type="application/json"
        )

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._render(), headers={"Content-Type": METRICS_TYPE})
