"""Bound the connections of an HTTP port, in number and in time.

    open at once        `Bounds.most`; of one host as many as are free (`is_above_share`). Above that the connection
                        that is idle for longest is closed, of the host that has the most idle ones among those that
                        have no fewer than the newcomer's: so a newcomer is served
    until a request     `Bounds.request_s` from the connection, its TLS handshake included
    after a request     `Bounds.kept_s`, for its answer and for the next request

A connection counts from its first moment, before TLS. So none can hold a file of the process for
longer, and a host that floods the port closes its own connections first. A connection that has a request under way
(`busy`) is never closed; if all of a host have one, its newcomer is closed.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Protocol, cast

from ledgermq.runtime.ports.shares import is_above_share


class Served(Protocol):
    """A protocol of asyncio that serves requests, such as aiohttp's RequestHandler."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> object: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: BaseException | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one port. Times are in seconds."""

    most: int
    request_s: float
    kept_s: float


ADMIN_PORT = Bounds(most=64, request_s=10.0, kept_s=75.0)
"""Of every admin port. A connection is kept for longer than Prometheus waits between two scrapes by default (60 s)."""


def at_most_half_of_files(count: int) -> int:
    """Return `count`, or half of the files that the process may open if that is less: a flood of connections leaves
    the process the files that it needs itself.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return count if soft == resource.RLIM_INFINITY else max(1, min(count, soft // 2))


def host_of(peername: tuple[str, int] | None) -> str:
    """Return whose connection it is: an address of IPv4, or a network of IPv6 (/64), of which one machine has all."""
    text = str((peername or ("",))[0]).partition("%")[0]
    if ":" not in text:
        return text
    address = IPv6Address(text)
    return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))


class BoundedConnections:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._open: dict[_Connection, str] = {}
        """Each with its host; the one that was used longest ago is the first."""
        self._of_transport: dict[asyncio.BaseTransport, _Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self, http: Served, tls: ssl.SSLContext | None) -> asyncio.Protocol:
        """Return the protocol of a connection that is served by `http`."""
        return _Connection(self, http, tls)

    def busy(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a request of a connection begins: until `served` it has all the time it needs."""
        found = None if transport is None else self._of_transport.get(transport)
        if found is not None:
            found.is_busy = True
            found.close_after(None)

    def served(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a connection has sent a whole request, which is answered, or will be within `Bounds.kept_s`."""
        found = None if transport is None else self._of_transport.get(transport)
        if found is not None:
            found.is_busy = False
            found.close_after(self.bounds.kept_s)
            if found in self._open:
                self._open[found] = self._open.pop(found)

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()

    def opened(self, connection: _Connection, host: str) -> None:
        hosts = Counter(self._open.values())
        self._open[connection] = host
        if not is_above_share(hosts[host], 1, self.bounds.most - hosts.total()):
            return
        idle = Counter(
            its_host for one, its_host in self._open.items() if not one.is_busy and hosts[its_host] >= hosts[host]
        )
        most, _ = idle.most_common(1)[0]
        next(one for one, its_host in self._open.items() if its_host == most and not one.is_busy).abort()

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

    def __init__(self, connections: BoundedConnections, http: Served, tls: ssl.SSLContext | None) -> None:
        self._connections = connections
        self._http = http
        self._tls = tls
        self.is_busy = False
        self._loop = asyncio.get_running_loop()
        self._raw: asyncio.Transport | None = None
        self._served: asyncio.BaseTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._early: list[bytes] = []

    def close_after(self, seconds: float | None) -> None:
        """Close the connection after that time; None: it may stay."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self.abort)

    def abort(self) -> None:
        """Close the connection now; what is in line for it is dropped."""
        self._forget()
        if self._raw is not None:
            self._raw.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one without inheriting from it
        self._raw = transport
        self.close_after(self._connections.bounds.request_s)
        self._connections.opened(self, host_of(transport.get_extra_info("peername")))
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
                self._loop.start_tls(
                    transport,
                    self,
                    tls,
                    server_side=True,
                    ssl_handshake_timeout=self._connections.bounds.request_s,
                )
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
