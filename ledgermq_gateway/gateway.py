"""A gateway: its parts put together, from start to stop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from ledgermq.runtime.tasks import end
from ledgermq.sources import Sources
from ledgermq_gateway.api.route import Routes
from ledgermq_gateway.api.table import table
from ledgermq_gateway.callers import Callers, Connect
from ledgermq_gateway.cluster.clock import ClusterClock
from ledgermq_gateway.console.cookies import Cookies, key_of
from ledgermq_gateway.console.door import ConsoleDoor
from ledgermq_gateway.console.pages import Console
from ledgermq_gateway.http.metrics import Metrics
from ledgermq_gateway.http.server import HttpServer, serving
from ledgermq_gateway.http.service import Service, make_service
from ledgermq_gateway.settings import GatewaySettings, hosts_of

READY_S = 30.0
"""A gateway that no broker has answered for so long is not ready."""
WATCH_S = 10.0


def _console_of(settings: GatewaySettings, sources: Sources) -> Console:
    """Return the console; without cookies where it is off. Raises InvalidConfig."""
    cookies = None
    if settings.console != "off":
        cookies = Cookies(key_of(settings.console_key_file, sources.random.randbytes), sources.random.randbytes)
    return Console(ConsoleDoor(cookies, may_write=settings.console == "write"))


class Gateway:
    """`clock`: its `sources` are those of the clients, too. `connect`, `examine`: return views of the cluster, on
    different connections; see `Callers`. `service`, `metrics`, `routes`, `callers`, `server`: its parts.
    """

    def __init__(self, settings: GatewaySettings, clock: ClusterClock, connect: Connect, examine: Connect) -> None:
        self.settings = settings
        self.clock = clock
        self.service: Service = make_service(settings, clock.sources)
        self.metrics = Metrics()
        self.callers = Callers(connect, examine, settings, clock)
        self.console = _console_of(settings, self.service.sources)
        pages = () if self.console.door.cookies is None else self.console.routes()
        self.routes = Routes((*table(lambda: self.is_ready, version("ledgermq")), *pages))
        door = self.console.door
        self.server = HttpServer(
            self.routes, self.callers, self.service, self.metrics, hosts_of(settings), door.proof, door.sealed_token
        )
        self.port = 0
        service, callers = self.service, self.callers
        self.metrics.gauge("ledgermq_gateway_memory_bytes", "Memory that calls hold", lambda: service.memory.held_bytes)
        self.metrics.gauge("ledgermq_gateway_calls", "Requests under way", lambda: service.turns.under_way)
        self.metrics.gauge(
            "ledgermq_gateway_waiting_calls", "Requests that wait for their turn", lambda: service.turns.waiting
        )
        self.metrics.gauge("ledgermq_gateway_streams", "Event streams and waiting reads", lambda: service.streams.count)
        self.metrics.gauge(
            "ledgermq_gateway_clock_ahead_seconds",
            "By how much this machine's clock is ahead of the brokers' time",
            lambda: clock.ahead_s,
        )
        self.metrics.gauge("ledgermq_gateway_callers", "Credentials that are served", lambda: len(callers))

    @property
    def is_ready(self) -> bool:
        """Return whether the gateway may be given requests."""
        return not self.why_not_ready

    @property
    def why_not_ready(self) -> str:
        if self.service.stopping.is_set():
            return "the gateway is stopping"
        if asyncio.get_running_loop().time() - self.callers.answered_s > READY_S:
            return f"no broker has answered for {READY_S:g} s"
        return ""

    def notes(self) -> list[str]:
        """Return problems of a gateway that is ready all the same."""
        return self.clock.notes()

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
        """Serve for the block, and stop gracefully at its end. Raises InvalidConfig."""
        background = [
            asyncio.create_task(self.callers.run(), name="closes idle callers"),
            asyncio.create_task(self.callers.watch(WATCH_S), name="watches brokers"),
        ]
        try:
            async with serving(self.server, self.settings.host, self.settings.port, tls) as self.port:
                yield
        finally:
            await end(*background)
            await self.callers.close()
