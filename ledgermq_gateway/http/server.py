"""Serve HTTP by aiohttp: refusals, bodies, answers and streams, and the end. Only it, `connections` and
`admin_port` know aiohttp.

    connection  bounded in number; its first header must come in time (`BoundedConnections`)
    request     waits for its caller's turn (`Turns`), before anything is done for it; then checked by its line and
                headers, admitted, its body read, handled, answered, logged (`HttpServer`).
                Its memory is given back only when its reader has taken the answer; one that takes nothing loses it
    end         ready no longer ── drain ──> streams end one by one ──> calls end ──> producers are flushed

A call that reads is cancelled when its caller leaves. A call that changes something goes on to its own end: cut
between two steps it would leave half of the change. A lease of messages is cancelled, because it returns them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import HttpVersion11, http_parser, web

from ledgermq.errors import InvalidConfig, LedgerMQError
from ledgermq.protocol.naming.tokens import BEARER
from ledgermq.runtime.ports.bounded_connections import BoundedConnections, host_of
from ledgermq.runtime.ports.turns import Place
from ledgermq.runtime.process.log import get_log
from ledgermq_gateway.api.route import Route, Routes, check_query, check_type, preflight
from ledgermq_gateway.callers import Callers
from ledgermq_gateway.cluster.origins import calls_for
from ledgermq_gateway.connections import SAFE, STREAM_BUFFER_BYTES, Connections, Pieces, bounds_of, breaking, whole
from ledgermq_gateway.http import problems
from ledgermq_gateway.http.bodies import read_body, too_large
from ledgermq_gateway.http.call import JSON, NDJSON, SCHEMA_JSON, Answer, BrokenAnswer, Call, Stream
from ledgermq_gateway.http.limits import Held
from ledgermq_gateway.http.metrics import Metrics
from ledgermq_gateway.http.problems import Problem, problem_of
from ledgermq_gateway.http.requests import (
    Headers,
    Proof,
    check_host,
    check_origin,
    checked_headers,
    is_followed_link,
    media_type,
    path_of,
    query_of,
    request_id_of,
    token_of,
)
from ledgermq_gateway.http.service import Service
from ledgermq_gateway.settings import words

TURN_S_MAX = 10.0
"""A request that has waited so long for its turn is refused."""
PARSED_TIMES = 4
"""A body of JSON takes so many times its bytes while it is decoded."""
_log = get_log("ledgermq.gateway")
_requests = get_log("ledgermq.gateway.requests")
_NEEDS_1_1 = (
    "a file needs HTTP/1.1, for over HTTP/1.0 a part of it looks like the whole: if a proxy has sent this request, let"
    " it speak 1.1 to the gateway (nginx: proxy_http_version 1.1)"
)


def check_parser() -> None:
    """Raise InvalidConfig where aiohttp has only its parser in Python, which lets requests be smuggled through."""
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise InvalidConfig(
            "aiohttp has no C parser here, and the one in Python takes requests that proxies read differently:"
            " install a wheel of aiohttp, and do not set AIOHTTP_NO_EXTENSIONS"
        )


@dataclass(slots=True)
class _Seen:
    """What is known of a request while it is handled; for its log line, and for its answer. `client`: its address, also
    behind trusted proxies.
    """

    request_id: str
    client: str
    route: Route | None = None
    principal: str = ""
    cors_origin: str = ""

    @property
    def host(self) -> str:
        """Return in whose turns the request waits before its principal is known."""
        return host_of((self.client, 0))


class HttpServer:
    """`routes`: what it serves. It refuses requests for hosts other than `hosts`; empty: none. `proof`: by what a
    request proves itself. `sealed_token`: the token in a Cookie header, "" for none that counts.
    """

    def __init__(
        self,
        routes: Routes,
        callers: Callers,
        service: Service,
        metrics: Metrics,
        hosts: tuple[str, ...],
        proof: Callable[[Headers, Route], Proof] = lambda headers, route: Proof(token_of(headers)),
        sealed_token: Callable[[str], str] = lambda cookie: "",
    ) -> None:
        check_parser()
        self.service = service
        self._routes = routes
        self._public = {route.path for route in routes.table if route.public}
        self._pages = {route.path for route in routes.table if route.public and route.method == "GET"}
        self._callers = callers
        self._metrics = metrics
        self._hosts = tuple(host.lower() for host in hosts)
        self._origins = words(service.settings.cors_origins)
        self._own_origins = words(service.settings.public_urls)
        self._proof = proof
        self._sealed_token = sealed_token
        self._made: Connections | None = None
        self.connections = BoundedConnections(bounds_of(service.settings))
        self._listening: asyncio.Server | None = None
        self._changes: set[asyncio.Task[Any]] = set()
        self._malformed_s = float("-inf")
        self._write_s = service.settings.write_timeout_ms / 1000

    def note_malformed(self, what: str) -> None:
        """Count a request that could not be read; log one line a second at most."""
        self._metrics.malformed.inc()
        now_s = asyncio.get_running_loop().time()
        if now_s - self._malformed_s >= 1:
            self._malformed_s = now_s
            _log.warning("a request was refused unread: %s (at most one such line a second)", what)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open the port, and return its number. Raises InvalidConfig."""
        self._made = made = Connections(
            self,
            keepalive_timeout=self.service.settings.keepalive_ms / 1000,
            auto_decompress=False,
            access_log=None,
            lingering_time=2.0,
        )
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                lambda: self.connections.protocol(made(), tls), host, port, reuse_address=True, backlog=1024
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
        if self._made is not None:
            self._made.pre_shutdown()
            await self._made.shutdown((settings.streams_end_ms + settings.shutdown_ms) / 1000)
        if self._changes:
            await asyncio.wait(self._changes, timeout=settings.shutdown_ms / 1000)
        self.connections.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        began_s = asyncio.get_running_loop().time()
        seen = _Seen(self.service.sources.new_id().hex(), self._client(request))
        status = 499  # the caller has left
        self.connections.busy(request.transport)
        span = self.service.spans.begin(request.method, request.headers, _host(request))
        try:
            with span:
                response = await self._answered(request, seen)
                await self._sent(request, response)
            status = response.status
            return response
        finally:
            self.connections.served(request.transport)
            spent_s = asyncio.get_running_loop().time() - began_s
            route = "" if seen.route is None else seen.route.path
            span.end(route, status, seen.request_id)
            self._metrics.handled(request.method, route, status, spent_s)
            line = {
                "id": seen.request_id,
                "client": seen.client,
                "principal": seen.principal,
                "method": request.method if seen.route is not None else "",
                "route": route,
                "status": status,
                "ms": round(1000 * spent_s, 1),
            }
            _requests.info("request", extra=line)

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
        turns, taking = self.service.turns, self._takes_turns_as(request, seen)
        with Held() as held:
            await turns.begin(taking, 1, TURN_S_MAX)
            place = Place(turns, taking)
            held.add(lambda error: place.leave())
            return await self._in_turn(request, seen, held, place)

    def _takes_turns_as(self, request: web.BaseRequest, seen: _Seen) -> str:
        """Return the principal of a credential that was admitted before, else the host. What is public has
        separate turns, so that load balancers learn how the gateway is.
        """
        if request.raw_path.partition("?")[0] in self._public:
            return f"public {seen.host}"
        given = request.headers.get("Authorization", "")
        token = given[len(BEARER) :].strip() if given else self._sealed_token(request.headers.get("Cookie", ""))
        return self._callers.principal_of(token) or f"host {seen.host}"

    async def _in_turn(self, request: web.BaseRequest, seen: _Seen, held: Held, place: Place) -> web.StreamResponse:
        headers = checked_headers(request.headers.items())
        seen.request_id = request_id_of(headers, seen.request_id)
        path, query_text = path_of(request.path_qs if request.raw_path.startswith("/") else request.raw_path)
        check_host(headers, self._hosts)
        if not (request.method == "GET" and path in self._pages and is_followed_link(headers)):
            seen.cors_origin = check_origin(headers, self._hosts, self._origins, self._own_origins)
        if request.method == "OPTIONS" and seen.cors_origin:
            return self._whole(seen, Answer(status=204, headers=preflight(self._routes, path)))
        seen.route, names = self._routes.find(request.method, path)
        query = query_of(query_text)
        check_query(seen.route, query)
        content_type = media_type(headers.get("content-type", ""))
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        check_type(seen.route, content_type, has_body)
        caller = None
        if not seen.route.public:
            said = calls_for(seen.client, seen.request_id)
            held.add(lambda error: said())
            proof = self._proof(headers, seen.route)
            caller = await self._callers.of(proof.token, seen.host, held)
            proof.check(self.service.sources.now_ms())
            seen.principal = caller.principal
        sharer = "" if caller is None or caller.is_shared else caller.principal
        share = self.service.memory.share(sharer)
        held.add(lambda error: share.give_back())
        body = b""
        if has_body:
            body = await self._body(request, headers, share)
            if content_type in (JSON, NDJSON, SCHEMA_JSON):
                share.take((PARSED_TIMES - 1) * len(body))
        call = Call(
            self.service,
            caller,  # type: ignore[arg-type]  # public routes need none
            share,
            place,
            seen.request_id,
            names,
            query,
            headers,
            content_type,
            body,
        )
        if seen.route.goes_on:
            task = asyncio.create_task(self._changed(held.handed_on(), seen.route, call), name="a change")
            self._changes.add(task)
            task.add_done_callback(self._changes.discard)
            return self._whole(seen, await asyncio.shield(task))
        answer = await seen.route.handler(call)
        if isinstance(answer, Answer):
            response = self._whole(seen, answer)
            await self._sent(request, response)
            return response
        return await self._streamed(request, seen, answer)

    def _client(self, request: web.BaseRequest) -> str:
        """Return the address of the request's client."""
        return self.service.proxies.client_of(request.remote or "", request.headers.getall("X-Forwarded-For", ()))

    async def _changed(self, held: Held, route: Route, call: Call) -> Answer:
        with held:
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
                None if request.content.is_eof() else settings.body_timeout_ms / 1000,
                share,
            )
        except web.RequestPayloadError:
            raise Problem("MALFORMED", "the body ends early, or cannot be read") from None

    def _whole(self, seen: _Seen, answer: Answer) -> web.StreamResponse:
        kind = {} if answer.status == 204 else {"Content-Type": answer.content_type}
        response = whole(answer.status, answer.body, {**kind, **dict(SAFE), **dict(answer.headers)})
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
        for name, value in (*SAFE, *stream.headers):
            response.headers[name] = value
        self._common(response, seen)
        response.force_close()
        async with stream.held, aclosing(stream.chunks) as chunks:
            if stream.is_file and request.version < HttpVersion11:
                raise Problem("INVALID_REQUEST", _NEEDS_1_1)
            if stream.buffer_bytes and request.transport is not None:
                request.transport.set_write_buffer_limits(stream.buffer_bytes)
            await response.prepare(request)
            piece = stream.buffer_bytes or STREAM_BUFFER_BYTES
            try:
                async for chunk in chunks:
                    for at in range(0, len(chunk), piece):
                        await self._taken(request, response.write(chunk[at : at + piece]))
            except BrokenAnswer as broken:
                if request.transport is not None:
                    request.transport.abort()
                raise ConnectionResetError("the answer was broken off") from broken
        return response

    async def _sent(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Send what is not sent yet, in pieces, each of which its reader takes in time. Raises ConnectionResetError."""
        if isinstance(response, Pieces):
            await self._taken(request, response.prepare(request))
            while piece := response.next_piece():
                await self._taken(request, response.write(piece))
        elif not isinstance(response, web.Response):
            return
        with breaking(request.transport, self._write_s):  # also a small answer may wait, behind others
            await response.prepare(request)
            await response.write_eof()
            await request.writer.drain()

    async def _taken(self, request: web.BaseRequest, sending: Awaitable[Any]) -> None:
        """Send something. If its reader takes nothing for too long, break its connection, and raise
        ConnectionResetError.
        """
        try:
            async with asyncio.timeout(self._write_s):
                await sending
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the reader takes nothing") from None


def _host(request: web.BaseRequest) -> str:
    return "" if request.transport is None else host_of(request.transport.get_extra_info("peername"))


@asynccontextmanager
async def serving(server: HttpServer, host: str, port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve for the block, and stop gracefully at its end; yield the port."""
    found = await server.listen(host, port, tls)
    try:
        yield found
    finally:
        await server.stop()
