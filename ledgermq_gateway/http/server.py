"""Serve HTTP by aiohttp: refusals, bodies, answers and streams, and the end. The only module that knows aiohttp.

    connection  bounded in number; its first header must come in time (`Connection`)
    request     checked by its line and headers, admitted, its body read, handled, logged (`HttpServer`)
    end         ready no longer ── drain ──> streams end one by one ──> calls end ──> producers are flushed

A call that reads is cancelled when its caller leaves. A call that changes something goes on to its own end: cut
between two steps it would leave half of the change.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import http_parser, web
from aiohttp.http_exceptions import LineTooLong

from ledgermq.errors import InvalidConfig, LedgerMQError
from ledgermq.runtime.log import get_log
from ledgermq_gateway.api.route import Route, Routes, check_query, check_type
from ledgermq_gateway.callers import Callers
from ledgermq_gateway.http import problems
from ledgermq_gateway.http.bodies import read_body, too_large
from ledgermq_gateway.http.call import JSON, NDJSON, Answer, Call, Stream
from ledgermq_gateway.http.metrics import Metrics
from ledgermq_gateway.http.problems import Problem, problem_of
from ledgermq_gateway.http.requests import (
    Headers,
    check_host,
    check_origin,
    checked_headers,
    media_type,
    path_of,
    query_of,
    request_id_of,
    token_of,
)
from ledgermq_gateway.http.service import Service
from ledgermq_gateway.settings import words

FIELD_BYTES_MAX = 16 * 1024
STREAM_BUFFER_BYTES = 256 * 1024
PARSED_TIMES = 4
"""A body of JSON takes so many times its bytes while it is decoded."""
_log = get_log("ledgermq.gateway")
_requests = get_log("ledgermq.gateway.requests")
_MALFORMED = "the request cannot be read as HTTP/1.1"
_SAFE = (("Server", "ledgermq"), ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"))


def check_parser() -> None:
    """Raise InvalidConfig where aiohttp has only its parser in Python, which lets requests be smuggled through."""
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise InvalidConfig(
            "aiohttp has no C parser here, and the one in Python takes requests that proxies read differently:"
            " install a wheel of aiohttp, and do not set AIOHTTP_NO_EXTENSIONS"
        )


class Connection(web.RequestHandler):
    """A connection. Errors that aiohttp finds are answered by our texts: its own repeat what the caller sent, which
    may be a token.
    """

    limits: HttpServer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if isinstance(transport, asyncio.Transport):
            transport.set_write_buffer_limits(STREAM_BUFFER_BYTES)
        if self.limits.is_full:
            self.limits.note_malformed("too many connections")
            self.force_close()
            return
        timeout_s = self.limits.service.settings.header_timeout_ms / 1000
        asyncio.get_running_loop().call_later(timeout_s, self._check_begun)

    def _check_begun(self) -> None:
        if not self._request_count:
            self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        problem = Problem("MALFORMED", _MALFORMED)
        if status >= 500:
            problem = Problem("INTERNAL", "the gateway has failed at this request")
            _log.error("a request has failed: %s", type(exc).__name__)
        elif isinstance(exc, LineTooLong):
            problem = Problem("HEADER_TOO_LARGE", f"a line of the header is longer than {FIELD_BYTES_MAX} bytes")
        self.limits.note_malformed(problem.code)
        answer = _response(problem.status, problem.document(), problems.CONTENT_TYPE, _SAFE)
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **kw: Any) -> None:
        error = kw.get("exc_info")
        _log.error("a connection has failed: %s", type(error).__name__)


class _Connections(web.Server):
    """Makes connections that know the server's limits."""

    def __init__(self, http: HttpServer, **settings: Any) -> None:
        super().__init__(http.handle, handler_cancellation=True, **settings)
        self._settings = settings
        self._kind = type("LimitedConnection", (Connection,), {"limits": http})

    def __call__(self) -> web.RequestHandler:
        made: web.RequestHandler = self._kind(self, loop=asyncio.get_running_loop(), **self._settings)
        return made


@dataclass(slots=True)
class _Seen:
    """What is known of a request while it is handled; for its log line, and for its answer."""

    request_id: str
    route: Route | None = None
    principal: str = ""
    cors_origin: str = ""


class HttpServer:
    """`routes`: what it serves. It refuses requests for hosts other than `hosts`; empty: none."""

    def __init__(
        self, routes: Routes, callers: Callers, service: Service, metrics: Metrics, hosts: tuple[str, ...]
    ) -> None:
        check_parser()
        self.service = service
        self._routes = routes
        self._callers = callers
        self._metrics = metrics
        self._hosts = tuple(host.lower() for host in hosts)
        self._origins = words(service.settings.cors_origins)
        self._connections: _Connections | None = None
        self._listening: asyncio.Server | None = None
        self._changes: set[asyncio.Task[Any]] = set()
        self._malformed_s = float("-inf")

    @property
    def is_full(self) -> bool:
        return (
            self._connections is not None and len(self._connections.connections) > self.service.settings.connections_max
        )

    def note_malformed(self, what: str) -> None:
        """Count a request that could not be read; log one line a second at most."""
        self._metrics.malformed.inc()
        now_s = asyncio.get_running_loop().time()
        if now_s - self._malformed_s >= 1:
            self._malformed_s = now_s
            _log.warning("a request was refused unread: %s (at most one such line a second)", what)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open the port, and return its number. Raises InvalidConfig."""
        settings = self.service.settings
        self._connections = _Connections(
            self,
            keepalive_timeout=settings.keepalive_ms / 1000,
            max_line_size=FIELD_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
            auto_decompress=False,
            access_log=None,
            lingering_time=2.0,
        )
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                self._connections, host, port, ssl=tls, reuse_address=True, backlog=1024
            )
        except OSError as error:
            raise InvalidConfig(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        found: int = self._listening.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        """Serve on while load balancers notice, then end streams, calls and connections."""
        settings = self.service.settings
        self.service.stopping.set()
        await asyncio.sleep(settings.drain_ms / 1000)
        if self._listening is not None:
            self._listening.close()
        if self._connections is not None:
            self._connections.pre_shutdown()
            await self._connections.shutdown((settings.streams_end_ms + settings.shutdown_ms) / 1000)
        if self._changes:
            await asyncio.wait(self._changes, timeout=settings.shutdown_ms / 1000)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        began_s = asyncio.get_running_loop().time()
        seen = _Seen(self.service.sources.new_id().hex())
        status = 499  # the caller has left
        try:
            response = await self._answered(request, seen)
            status = response.status
            return response
        finally:
            spent_s = asyncio.get_running_loop().time() - began_s
            route = "" if seen.route is None else seen.route.path
            self._metrics.handled(request.method, route, status, spent_s)
            _requests.info(
                "request",
                extra={
                    "id": seen.request_id,
                    "client": request.remote,
                    "principal": seen.principal,
                    "method": request.method if seen.route is not None else "",
                    "route": route,
                    "status": status,
                    "ms": round(1000 * spent_s, 1),
                },
            )

    async def _answered(self, request: web.BaseRequest, seen: _Seen) -> web.StreamResponse:
        try:
            return await self._served(request, seen)
        except LedgerMQError as error:
            problem = problem_of(error)
        except Problem as error:
            problem = error
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            _log.exception("request %s has failed", seen.request_id, exc_info=error)
            problem = Problem("INTERNAL", "the gateway has failed at this request: its log says why")
        return self._whole(
            seen,
            Answer(problem.document(seen.request_id), problems.CONTENT_TYPE, problem.status, problem.headers),
        )

    async def _served(self, request: web.BaseRequest, seen: _Seen) -> web.StreamResponse:
        headers = checked_headers(request.headers.items())
        seen.request_id = request_id_of(headers, seen.request_id)
        path, query_text = path_of(request.path_qs if request.raw_path.startswith("/") else request.raw_path)
        check_host(headers, self._hosts)
        seen.cors_origin = check_origin(headers, self._hosts, self._origins)
        if request.method == "OPTIONS" and seen.cors_origin:
            return self._whole(seen, Answer(b"", "text/plain", 204, _preflight(self._routes, path)))
        seen.route, names = self._routes.find(request.method, path)
        query = query_of(query_text)
        check_query(seen.route, query)
        content_type = media_type(headers.get("content-type", ""))
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        check_type(seen.route, content_type, has_body)
        async with AsyncExitStack() as stack:
            caller = None
            if not seen.route.public:
                caller = await stack.enter_async_context(self._callers.of(token_of(headers)))
                seen.principal = caller.principal
            share = stack.enter_context(self.service.memory.share())
            body = b""
            if has_body:
                body = await self._body(request, headers, share)
                if content_type in (JSON, NDJSON):
                    share.take((PARSED_TIMES - 1) * len(body))
            call = Call(
                self.service,
                caller,  # type: ignore[arg-type]  # public routes need none
                share,
                seen.request_id,
                names,
                query,
                headers,
                content_type,
                body,
            )
            if seen.route.changes:
                task = asyncio.create_task(self._changed(stack.pop_all(), seen.route, call), name="a change")
                self._changes.add(task)
                task.add_done_callback(self._changes.discard)
                return self._whole(seen, await asyncio.shield(task))
            answer = await seen.route.handler(call)
            if isinstance(answer, Answer):
                return self._whole(seen, answer)
            return await self._streamed(request, seen, answer)

    async def _changed(self, held: AsyncExitStack, route: Route, call: Call) -> Answer:
        async with held:
            answer = await route.handler(call)
            assert isinstance(answer, Answer), "only reads stream"
            return answer

    async def _body(self, request: web.BaseRequest, headers: Headers, share: Any) -> bytes:
        settings = self.service.settings
        if int(headers.get("content-length", 0)) > settings.body_bytes_max:
            raise too_large(settings.body_bytes_max)
        if headers.get("expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            return await read_body(
                request.content.readany,
                headers.get("content-encoding", "").lower(),
                settings.body_bytes_max,
                settings.body_timeout_ms / 1000,
                share,
            )
        except web.RequestPayloadError:
            raise Problem("MALFORMED", "the body ends early, or cannot be read") from None

    def _whole(self, seen: _Seen, answer: Answer) -> web.Response:
        response = _response(answer.status, answer.body, answer.content_type, (*_SAFE, *answer.headers))
        self._common(response, seen)
        return response

    def _common(self, response: web.StreamResponse, seen: _Seen) -> None:
        response.headers["LedgerMQ-Request-Id"] = seen.request_id
        if seen.cors_origin:
            response.headers["Access-Control-Allow-Origin"] = seen.cors_origin
            response.headers["Vary"] = "Origin"
        if self.service.stopping.is_set() or response.headers.get("Connection") == "close":
            response.force_close()

    async def _streamed(self, request: web.BaseRequest, seen: _Seen, stream: Stream) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": stream.content_type, "X-Accel-Buffering": "no"})
        for name, value in (*_SAFE, *stream.headers):
            response.headers[name] = value
        self._common(response, seen)
        response.force_close()
        timeout_s = self.service.settings.write_timeout_ms / 1000
        async with stream.held, aclosing(stream.chunks) as chunks:
            await response.prepare(request)
            async for chunk in chunks:
                try:
                    async with asyncio.timeout(timeout_s):
                        await response.write(chunk)
                except TimeoutError:
                    raise ConnectionResetError("the reader takes nothing") from None
        return response


def _preflight(routes: Routes, path: str) -> tuple[tuple[str, str], ...]:
    methods = []
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        try:
            routes.find(method, path)
        except Problem:
            continue
        methods.append(method)
    return (
        ("Access-Control-Allow-Methods", ", ".join(methods)),
        ("Access-Control-Allow-Headers", "authorization, content-type, idempotency-key, last-event-id"),
        ("Access-Control-Max-Age", "600"),
    )


def _response(status: int, body: bytes, content_type: str, headers: tuple[tuple[str, str], ...]) -> web.Response:
    made: Mapping[str, str] = {"Content-Type": content_type, **dict(headers)}
    return web.Response(status=status, body=body or None, headers=made)


@asynccontextmanager
async def serving(server: HttpServer, host: str, port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve for the block, and stop gracefully at its end; yield the port."""
    found = await server.listen(host, port, tls)
    try:
        yield found
    finally:
        await server.stop()
