"""Serve a broker by gRPC: generic handlers from the method table, the standard health service,
reflection.

gRPC carries bytes; this module decodes them and turns `ledgermq.errors` into statuses. The server
starts before the broker, so that the port is known when the broker announces it. Until `serve` is
called, every method answers UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ledgermq.errors import InvalidConfig, LedgerMQError, TlsFailed, Unauthenticated, Unavailable
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.client_ids import CLIENT_ID
from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq.protocol.methods import FETCH, FETCH_ONCE, METHODS, SERVICE, Kind, Method
from ledgermq.protocol.status import abort
from ledgermq.protocol.tokens import AUTHORIZATION
from security.usage import Account
from stateless_broker.bundle.budgets import CALLER, Caller
from stateless_broker.call_meter import CANCELLED, OK, CallMeter
from stateless_broker.connection_cut import ConnectionCut
from stateless_broker.logs import follow_call, get_logger
from stateless_broker.security.door import Door
from stateless_broker.security.throttled import refusal_of

KEEPALIVE_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # a second broker on the port is an error, not a twin
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),  # a connection that does not get that far is closed
)

CONNECTIONS_MAX = 10_000

CALLS_MAX = 2000
"""Concurrent calls and streams; gRPC refuses more."""

SUBJECT_ALTERNATIVE_NAME = "x509_subject_alternative_name"
"""What gRPC calls the kind of identity by which a caller is known."""

Context = grpc.aio.ServicerContext[bytes, bytes]

log = get_logger(__name__)
_connection_cut = ConnectionCut()


class GrpcServer:
    def __init__(self, calls_max: int, meter: CallMeter) -> None:
        self._meter = meter
        # Each name once: of two values gRPC takes the first one.
        options = {**dict(GRPC_OPTIONS), **dict(_OPTIONS), "grpc.max_allowed_incoming_connections": connections_max()}
        self._server = grpc.aio.server(options=tuple(options.items()), maximum_concurrent_rpcs=calls_max)
        self._service: BrokerApi | None = None
        self._door: Door | None = None
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # missing in the stubs

    async def listen(self, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> int:
        """Open the port and return its number; `port` 0 takes a free one. `credentials`: of TLS; None:
        plain. Raises InvalidConfig if the port cannot be opened.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            _check_free(host, port)
            if credentials is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, credentials)
        except (OSError, RuntimeError) as error:
            raise InvalidConfig(
                f"cannot listen on {host}:{port}: the port is in use, or the address is not one of this machine's"
            ) from error
        handlers = {method.name: self._handler(method) for method in METHODS}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        await self._set_health(serving=False)
        await self._server.start()
        return bound

    async def serve(self, service: BrokerApi, door: Door | None = None) -> None:
        """Serve calls. With a door, each caller gets what it returns for the caller's credentials."""
        self._service, self._door = service, door
        await self._set_health(serving=True)

    async def drain(self) -> None:
        """Report "not serving" to load balancers; calls are still answered."""
        await self._set_health(serving=False)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls; give those under way `grace_s` seconds."""
        await self._server.stop(grace_s)

    async def _set_health(self, *, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in (health.OVERALL_HEALTH, SERVICE):
            await self._health.set(name, status)

    def _handler(self, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        if method.kind is Kind.UNARY:
            return grpc.unary_unary_rpc_method_handler(self._unary(method))
        if method.kind is Kind.SERVER_STREAM:
            return grpc.unary_stream_rpc_method_handler(self._server_stream(method))
        return grpc.stream_stream_rpc_method_handler(self._bidi_stream(method))

    async def _call(self, method: Method, context: Context, metered: _Metered) -> Callable[[Any], Any]:
        service = self._service
        if service is None:
            raise Unavailable("the broker is starting", retry_after_ms=200)
        if self._door is not None:
            credential, client_id = _metadata_of(context)
            admitted = await self._door.admit(credential, _certified(context), client_id)
            service = admitted.api
            if self._door.closed:
                metered.follow(principal=admitted.principal.name)
            if admitted.account is not None:
                metered.count_connection(admitted.account)
        call: Callable[[Any], Any] = getattr(service, method.attribute)
        return call

    def _unary(self, method: Method) -> Callable[[bytes, Context], Awaitable[bytes]]:
        async def handle(data: bytes, context: Context) -> bytes:
            with _Metered(self._meter, method, context) as metered:
                try:
                    call = await self._call(method, context, metered)
                    return method.encode_response(await call(method.decode_request(data)))
                except Exception as error:
                    return await _refuse(method, context, error, metered)

        return handle

    def _server_stream(self, method: Method) -> Callable[[bytes, Context], Awaitable[None]]:
        async def handle(data: bytes, context: Context) -> None:
            with _Metered(self._meter, method, context) as metered:
                try:
                    call = await self._call(method, context, metered)
                    await _answer(method, call(method.decode_request(data)), context)
                except Exception as error:
                    await _refuse(method, context, error, metered)

        return handle

    def _bidi_stream(self, method: Method) -> Callable[[AsyncIterator[bytes], Context], Awaitable[None]]:
        async def handle(requests: AsyncIterator[bytes], context: Context) -> None:
            with _Metered(self._meter, method, context) as metered:
                try:
                    call = await self._call(method, context, metered)
                    await _answer(method, call(_decoded(method, requests)), context)
                except Exception as error:
                    await _refuse(method, context, error, metered)

        return handle


def connections_max() -> int:
    """Return how many connections are accepted, those with an unfinished handshake included: half of
    the files that the process may open, so that a flood leaves it those that it needs itself.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else max(1, min(CONNECTIONS_MAX, soft // 2))


def _check_free(host: str, port: int) -> None:
    """Raise OSError if gRPC could not listen, because gRPC's core would also print a line about it."""
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()


@contextmanager
def _client_may_leave() -> Iterator[None]:
    """Ignore the failed write to a client that went away, because it has cancelled its call. gRPC
    would log the write as an error of this program.
    """
    try:
        yield
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError("the client went away") from error


async def _answer(method: Method, answers: Any, context: Context) -> None:
    """Write the answers of a stream."""
    async with aclosing(answers):
        async for answer in answers:
            data = method.encode_response(answer)
            del answer  # the objects behind an answer are freed while its encoding is in line
            with _client_may_leave():
                await context.write(data)
            del data


async def _decoded(method: Method, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for data in requests:
        yield method.decode_request(data)


class _Metered:
    """Meter one call from begin to end, whatever the outcome. Lines logged meanwhile carry its ids."""

    _numbers = itertools.count(1)

    def __init__(self, meter: CallMeter, method: Method, context: Context) -> None:
        self._meter = meter
        self._method = method.name
        self._loop = asyncio.get_running_loop()
        self._begun_s = self._loop.time()
        self.code: str | None = None
        self._connection = context.peer()
        self._account: Account | None = None
        self._ids = follow_call(connection=self._connection, request=next(self._numbers), method=method.name)
        if method in (FETCH, FETCH_ONCE):
            _follow_answers(context)

    def follow(self, **ids: object) -> None:
        self._ids.update(ids)

    def count_connection(self, account: Account) -> None:
        """Count the connection of the call while it lasts. Raises ResourceExhausted if the account may not
        have another one.
        """
        excess = account.full(self._connection, self._loop.time())
        if excess is not None:
            raise refusal_of(excess)
        account.begin_call(self._connection)
        self._account = account

    def __enter__(self) -> Self:
        self._meter.begun(self._method)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = self.code or (OK if error is None else CANCELLED)
        self._meter.ended(self._method, code, self._loop.time() - self._begun_s)
        self._ids.clear()
        if self._account is not None:
            self._account.end_call(self._connection)


def _metadata_of(context: Context) -> tuple[str, str]:
    """Return the credential and the client id of a call; "" for what it does not have. Raises Unauthenticated
    for more than one credential.
    """
    credentials: list[str | bytes] = []
    client_id: str | bytes = ""
    for key, value in context.invocation_metadata() or ():
        if key == AUTHORIZATION:
            credentials.append(value)
        elif key == CLIENT_ID:
            client_id = value
    if len(credentials) > 1 or not all(isinstance(value, str) for value in credentials):
        raise Unauthenticated("a call carries one credential at most")
    return str(credentials[0]) if credentials else "", str(client_id)


def _certified(context: Context) -> list[str]:
    """Return the subject alternative names in the certificate that the transport has verified; none without
    one. gRPC would take the common name instead of missing names, but authorities do not verify it.
    """
    if context.peer_identity_key() != SUBJECT_ALTERNATIVE_NAME:
        return []
    return [name.decode(errors="replace") for name in context.peer_identities() or ()]


def _follow_answers(context: Context) -> None:
    """Keep what the call holds of the broker's budget for answers until gRPC is done with the call."""
    peer = context.peer()
    caller = Caller(peer, lambda: _connection_cut.cut(peer))
    context.add_done_callback(lambda _: caller.ended())  # type: ignore[arg-type]  # the stubs forget that it gets the context
    CALLER.set(caller)


async def _refuse(method: Method, context: Context, error: Exception, metered: _Metered) -> bytes:
    """End the call with the error. Any error outside `ledgermq.errors` is a bug, which the client
    sees without internal details.
    """
    if isinstance(
        error, grpc.aio.BaseError
    ):  # gRPC's own error: it ends the call already, or the server has stopped under it
        raise error
    metered.code = error.code if isinstance(error, LedgerMQError) else LedgerMQError.code
    if not isinstance(error, LedgerMQError):
        log.error("call failed", method=method.name, exc_info=error)
        error = LedgerMQError(
            f"{method.name} failed inside the broker ({type(error).__name__}); see the log of the broker"
        )
    if isinstance(error, TlsFailed):  # between two brokers: the caller's own connection is sound
        error = Unavailable(error.message)
    with _client_may_leave():
        await abort(context, error)
