"""Connections of the HTTP port by aiohttp, with errors in our words, and answers that are sent in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from ledgermq.runtime.ports.bounded_connections import Bounds, at_most_half_of_files
from ledgermq.runtime.process.log import get_log
from ledgermq_gateway.http import problems
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.settings import GatewaySettings

FIELD_BYTES_MAX = 16 * 1024
STREAM_BUFFER_BYTES = 256 * 1024
SAFE = (("Server", "ledgermq"), ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))
_MALFORMED = "the request cannot be read as HTTP/1.1"
_log = get_log("ledgermq.gateway")


class Handles(Protocol):
    """The server of a connection."""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse: ...
    def note_malformed(self, what: str) -> None: ...


class Connection(web.RequestHandler):
    """A connection. Errors that aiohttp finds are answered by our texts: its own repeat what the caller sent, which
    may be a token.
    """

    http: Handles

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if isinstance(transport, asyncio.Transport):
            transport.set_write_buffer_limits(STREAM_BUFFER_BYTES)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        problem = Problem("MALFORMED", _MALFORMED)
        if status >= 500:
            problem = Problem("INTERNAL", "the gateway has failed at this request")
            # A connection that has ended is no failure, unless an answer was broken off, which is the cause.
            if not isinstance(exc, ConnectionError) or exc.__cause__ is not None:
                _log.error("a request has failed: %s", type(exc).__name__)
        elif isinstance(exc, LineTooLong):
            problem = Problem("HEADER_TOO_LARGE", f"a line of the header is longer than {FIELD_BYTES_MAX} bytes")
        if status < 500:
            self.http.note_malformed(problem.code)
        answer = web.Response(
            status=problem.status,
            body=problem.document(),
            headers={"Content-Type": problems.CONTENT_TYPE, **dict(SAFE)},
        )
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **kw: Any) -> None:
        error = kw.get("exc_info")
        _log.error("a connection has failed: %s", type(error).__name__)


class Connections(web.Server):
    """Makes connections that know their server."""

    def __init__(self, http: Handles, **settings: Any) -> None:
        self._settings = settings | {"max_line_size": FIELD_BYTES_MAX, "max_field_size": FIELD_BYTES_MAX}
        super().__init__(http.handle, handler_cancellation=True, **self._settings)
        self._kind = type("ServedConnection", (Connection,), {"http": http})

    def __call__(self) -> web.RequestHandler:
        made: web.RequestHandler = self._kind(self, loop=asyncio.get_running_loop(), **self._settings)
        return made


def whole(status: int, body: bytes | memoryview, headers: Mapping[str, str]) -> web.StreamResponse:
    """Return a whole answer. A small one goes out together with its header."""
    if len(body) > STREAM_BUFFER_BYTES:
        return Pieces(status, body, headers)
    return web.Response(status=status, body=bytes(body), headers=headers)


@contextmanager
def breaking(transport: asyncio.Transport | None, after_s: float) -> Iterator[None]:
    """Break a connection if the block takes longer: what waits for its reader ends then, as if that had left. A timer
    of asyncio's costs as much as a small answer.
    """
    timer = None if transport is None else asyncio.get_running_loop().call_later(after_s, transport.abort)
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


class Pieces(web.StreamResponse):
    """A large answer, of which only so much is in the buffers of its connection as its reader may be behind."""

    def __init__(self, status: int, body: bytes | memoryview, headers: Mapping[str, str]) -> None:
        super().__init__(status=status, headers=headers)
        self.content_length = len(body)
        self._left = memoryview(body)

    def next_piece(self) -> memoryview:
        piece, self._left = self._left[:STREAM_BUFFER_BYTES], self._left[STREAM_BUFFER_BYTES:]
        return piece


def bounds_of(settings: GatewaySettings) -> Bounds:
    most = at_most_half_of_files(settings.connections_max)
    return Bounds(most, settings.header_timeout_ms / 1000, settings.keepalive_ms / 1000)
