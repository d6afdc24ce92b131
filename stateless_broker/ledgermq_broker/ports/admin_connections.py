"""Bound the connections of the admin port, in number and in time.

    open at once        `CONNECTIONS_MAX`; of one host `HOST_CONNECTIONS_MAX`. Above that the oldest
                        connection of the host that has the most is closed, so a newcomer is served
    until a request     `REQUEST_S` from the connection, its TLS handshake included
    after a request     `KEPT_S`, for its answer and for the next request

A connection counts from its first moment, before TLS. So none can hold a file of the process for
longer, and a host that floods the port closes its own connections first.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from contextlib import suppress
from typing import cast

from aiohttp.web_protocol import RequestHandler

CONNECTIONS_MAX = 64
HOST_CONNECTIONS_MAX = 32
REQUEST_S = 10.0
KEPT_S = 75.0
"""Longer than Prometheus waits between two scrapes by default (60 s)."""


class AdminConnections:
    def __init__(self) -> None:
        self._open: dict[_Connection, str] = {}
        """Each with its host, the oldest first."""
        self._of_transport: dict[asyncio.BaseTransport, _Connection] = {}

    def protocol(self, http: RequestHandler, tls: ssl.SSLContext | None) -> asyncio.Protocol:
        """Return the protocol of a connection that is served by `http`."""
        return _Connection(self, http, tls)

    def served(self, transport: asyncio.BaseTransport) -> None:
        """Note that a connection has sent a whole request."""
        found = self._of_transport.get(transport)
        if found is not None:
            found.close_after(KEPT_S)

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()

    def opened(self, connection: _Connection, host: str) -> None:
        self._open[connection] = host
        hosts = Counter(self._open.values())
        most, count = hosts.most_common(1)[0]
        if count > HOST_CONNECTIONS_MAX or len(self._open) > CONNECTIONS_MAX:
            next(one for one, its_host in self._open.items() if its_host == most).abort()

    def serves(self, connection: _Connection, transport: asyncio.BaseTransport) -> None:
        self._of_transport[transport] = connection

    def closed(self, connection: _Connection, transport: asyncio.BaseTransport | None) -> None:
        self._open.pop(connection, None)
        if transport is not None:
            self._of_transport.pop(transport, None)


def _feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Hand bytes over that were received before the protocol was there."""
    while data:
        room = memoryview(protocol.get_buffer(len(data)))
        taken = min(len(room), len(data))
        room[:taken] = data[:taken]
        protocol.buffer_updated(taken)
        data = data[taken:]


class _Connection(asyncio.Protocol):
    """One connection: it is counted and timed here, and served by `http`."""

    def __init__(self, connections: AdminConnections, http: RequestHandler, tls: ssl.SSLContext | None) -> None:
        self._connections = connections
        self._http = http
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._raw: asyncio.Transport | None = None
        self._served: asyncio.BaseTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early: list[bytes] = []

    def close_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.abort)

    def abort(self) -> None:
        """Close the connection now; what is in line for it is dropped."""
        self._forget()
        if self._raw is not None:
            self._raw.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one without inheriting from it
        self._raw = transport
        self.close_after(REQUEST_S)
        self._connections.opened(self, str((transport.get_extra_info("peername") or ("",))[0]))
        if transport.is_closing():
            return
        if self._tls is None:
            self._serve(transport)
        else:
            transport.pause_reading()
            self._handshake = self._loop.create_task(self._shake_hands(transport, self._tls))

    def data_received(self, data: bytes) -> None:
        if self._served is None:  # the end of a handshake brings the first bytes with it
            self._early.append(data)
        else:
            self._http.data_received(data)

    def eof_received(self) -> None:
        if self._served is not None:
            self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def connection_lost(self, error: BaseException | None) -> None:
        self._forget()
        if self._served is not None:
            self._http.connection_lost(error)

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        with suppress(OSError, asyncio.TimeoutError):  # the other side is no client, or went away
            securing = self._loop.create_task(
                self._loop.start_tls(transport, self, tls, server_side=True, ssl_handshake_timeout=REQUEST_S)
            )
            await asyncio.sleep(0)  # its protocol is in place
            await asyncio.sleep(0)  # and has the transport
            hello, self._early = b"".join(self._early), []
            if hello and transport.get_protocol() is not self:  # uvloop reads before a connection can be paused
                _feed(cast(asyncio.BufferedProtocol, transport.get_protocol()), hello)
            secured = await securing
            if secured is not None:
                self._serve(secured)
            return
        self.abort()

    def _serve(self, transport: asyncio.Transport) -> None:
        self._served = transport
        self._connections.serves(self, transport)
        self._http.connection_made(transport)
        for data in self._early:
            self._http.data_received(data)
        self._early.clear()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._connections.closed(self, self._served)
