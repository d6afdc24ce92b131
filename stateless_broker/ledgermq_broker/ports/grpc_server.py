"""Serve a broker by gRPC: generic handlers from the method table, the standard health service,
reflection.

A call is admitted at its headers: gRPC would receive the whole request of a unary method before it
calls the handler, so all methods are handled as streams of requests, and the handler reads the one
request itself. On the wire there is no difference. It goes on in the turn of its principal, or of its host
where rules do not count, and so does each request of a stream; brokers and health do not wait.

gRPC carries bytes; this module decodes them and turns `ledgermq.errors` into statuses. The server
starts before the broker, so that the port is known when the broker announces it. Until `serve` is
called, every method answers UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import grpc
import grpc.aio

from ledgermq.errors import (
    CorruptFrame,
    DeadlineExceeded,
    InvalidConfig,
    InvalidRequest,
    LedgerMQError,
    TlsFailed,
    Unavailable,
)
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.limits import GRPC_OPTIONS, MESSAGE_BYTES_MAX, REQUEST_BYTES_MAX
from ledgermq.protocol.methods import (
    METHODS,
    SERVICE,
    Kind,
    Method,
)
from ledgermq.protocol.status import abort
from ledgermq.runtime.ports.bounded_connections import at_most_half_of_files
from ledgermq.runtime.ports.turns import Turns, work_in_turns
from ledgermq.runtime.tasks import end
from ledgermq_broker.access.door import Door
from ledgermq_broker.admission.arriving_requests import ArrivingRequests
from ledgermq_broker.admission.calls import CallShares, Floods, host_of
from ledgermq_broker.admission.connection_cut import ConnectionCut
from ledgermq_broker.admission.connections import Connections
from ledgermq_broker.bundle.loads import set_rack
from ledgermq_broker.costs.racks import RackTraffic
from ledgermq_broker.logs import get_logger
from ledgermq_broker.ports.call_metadata import call_metadata, certified_names
from ledgermq_broker.ports.call_meter import CallMeter
from ledgermq_broker.ports.metered_call import Context, MeteredCall
from ledgermq_broker.ports.standard_services import HealthCalls, reflection_handler

CONNECTION_STREAMS_MAX = 1000
"""Calls and streams of one connection; a client lets further ones wait. gRPC refuses more than that, and also
holds back those that were reset but are not finished.
"""
REQUEST_S = 30.0
"""How long the request of a unary call may take from its headers on."""
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
    ("grpc.max_concurrent_streams", CONNECTION_STREAMS_MAX),
)

CONNECTIONS_MAX = 10_000

CALLS_MAX = 2000
"""Calls and streams in service; `admission` divides them."""

TURN_S_MAX = 10.0
"""How long a call waits for its turn. Requests of a stream wait as long as it takes: it is not read on meanwhile."""
AT_ONCE_MAX = 4
FREE_PER_S = 50
"""So many calls of one principal, or host, in a second do not wait."""
QUIET_TURNS = 5
"""gRPC hands over one call in some four turns of the event loop, in order: all leave its line, then one begins."""

log = get_logger(__name__)
_ending: set[asyncio.Task[None]] = set()


class GrpcServer:
    def __init__(
        self,
        calls_max: int,
        meter: CallMeter,
        connections: Connections | None = None,
        racks: RackTraffic | None = None,
    ) -> None:
        self._meter = meter
        self._racks = RackTraffic() if racks is None else racks
        self._connections = Connections() if connections is None else connections
        # Each name once: of two values gRPC takes the first one.
        options = {**dict(GRPC_OPTIONS), **dict(_OPTIONS), "grpc.max_allowed_incoming_connections": connections_max()}
        self._server = grpc.aio.server(options=tuple(options.items()))
        self._shares = CallShares(calls_max)
        self._turns = Turns(at_once_max=AT_ONCE_MAX, free_per_s=FREE_PER_S, quiet_turns=QUIET_TURNS)
        self._floods = Floods()
        self._arriving = ArrivingRequests(
            ConnectionCut("connections were broken: too many bytes of requests on their way").cut
        )
        self._watching: asyncio.Task[None] | None = None
        self._service: BrokerApi | None = None
        self._door: Door | None = None
        self._health = HealthCalls()

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
        self._server.add_generic_rpc_handlers((self._health.handler(), reflection_handler(self._admit_reflection)))
        await self._server.start()
        self._watching = asyncio.create_task(self._arriving.watch(), name="bytes of requests on their way")
        return bound

    async def serve(self, service: BrokerApi, door: Door | None = None) -> None:
        """Serve calls. With a door, each caller gets what it returns for the caller's credentials."""
        self._service, self._door = service, door
        self._health.set(serving=True)

    async def drain(self) -> None:
        """Report "not serving" to load balancers; calls are still answered."""
        self._health.set(serving=False)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls; give those under way `grace_s` seconds."""
        await self._server.stop(grace_s)
        if self._watching is not None:
            await end(self._watching)

    def _handler(self, method: Method) -> grpc.RpcMethodHandler[bytes, bytes]:
        if method.kind is Kind.UNARY:
            return grpc.stream_unary_rpc_method_handler(self._unary(method))
        handle = self._server_stream(method) if method.kind is Kind.SERVER_STREAM else self._bidi_stream(method)
        return grpc.stream_stream_rpc_method_handler(handle)

    async def _call(self, method: Method, context: Context, metered: MeteredCall) -> Callable[[Any], Any]:
        """Admit a call, and return what serves it."""
        service = await self._admit(context, metered)
        call: Callable[[Any], Any] = getattr(service, method.attribute)
        return call

    async def _admit(self, context: Context, metered: MeteredCall) -> BrokerApi:
        """Count a call and return the API for its caller. Raises Unauthenticated, ResourceExhausted, Unavailable."""
        service = self._service
        if service is None:
            raise Unavailable("the broker is starting", retry_after_ms=200)
        if self._door is None:
            metered.begin_share(metered.connection)
            await self._turn(metered)
            return service
        said, certified = call_metadata(context), certified_names(context)
        if said.address and (delegate := await self._door.delegate(said.delegate, certified)):
            metered.follow(client=said.address, client_request=said.request_id, delegate=delegate)
        admitted = await self._door.admit(said.credential, certified, said.client_id)
        principal = admitted.principal
        if self._door.closed:
            metered.follow(principal=principal.name)
            metered.source = principal.name
        is_own = self._door.closed or principal.is_broker
        metered.begin_share(principal.name if is_own else metered.connection, is_broker=principal.is_broker)
        if not principal.is_broker:
            metered.traffic = self._racks.of(said.rack)
            set_rack(said.rack)
            metered.list_in(self._connections, principal.name, said.client_id, said.library)
        if admitted.account is not None:
            metered.count_for(admitted.account)
        if not principal.is_broker:
            await self._turn(metered)
        return admitted.api

    async def _turn(self, metered: MeteredCall) -> None:
        """Wait for the first turn of a call. Raises ResourceExhausted."""
        caller = metered.source or host_of(metered.connection)
        self._turns.came(caller)
        if not self._turns.at_once(caller, is_new=True):
            await self._turns.begin(caller, wait_s=TURN_S_MAX, is_new=True)
        metered.takes_turns_as = caller
        work_in_turns(self._turns, metered)

    async def _admit_reflection(self, context: Context) -> Callable[[], None]:
        metered = self._metered("ServerReflectionInfo", context)
        metered.__enter__()
        try:
            await self._admit(context, metered)
        except Exception as error:
            metered.code = error.code if isinstance(error, LedgerMQError) else LedgerMQError.code
            metered.__exit__(None, None, None)
            await abort(context, error if isinstance(error, LedgerMQError) else LedgerMQError(str(error)))
        return lambda: metered.__exit__(None, None, None)

    def _metered(self, method: str, context: Context) -> MeteredCall:
        return MeteredCall(self._meter, self._shares, self._floods, method, context)

    def _unary(self, method: Method) -> Callable[[AsyncIterator[bytes], Context], Awaitable[bytes]]:
        async def handle(requests: AsyncIterator[bytes], context: Context) -> bytes:
            with self._metered(method.name, context) as metered:
                try:
                    call = await self._call(method, context, metered)
                    data = method.encode_response(await call(await self._request(method, context, metered)))
                    metered.traffic.bytes_out += len(data)
                    return data
                except Exception as error:
                    return await _refuse(method, context, error, metered)

        return handle

    def _server_stream(self, method: Method) -> Callable[[AsyncIterator[bytes], Context], Awaitable[None]]:
        async def handle(requests: AsyncIterator[bytes], context: Context) -> None:
            with self._metered(method.name, context) as metered:
                try:
                    call = await self._call(method, context, metered)
                    await _answer(method, call(await self._request(method, context, metered)), context, metered)
                except Exception as error:
                    await _refuse(method, context, error, metered)

        return handle

    def _bidi_stream(self, method: Method) -> Callable[[AsyncIterator[bytes], Context], Awaitable[None]]:
        async def handle(requests: AsyncIterator[bytes], context: Context) -> None:
            with self._metered(method.name, context) as metered:
                try:
                    call = await self._call(method, context, metered)
                    await _answer(method, call(self._decoded(method, requests, metered)), context, metered)
                except Exception as error:
                    await _refuse(method, context, error, metered)

        return handle

    async def _decoded(
        self, method: Method, requests: AsyncIterator[bytes], metered: MeteredCall
    ) -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        with self._arriving.reading(metered.connection, metered.sharer) as arriving:
            async for data in requests:
                arriving.message(len(data), loop.time())
                metered.traffic.bytes_in += len(data)
                caller = metered.takes_turns_as
                if caller and not self._turns.at_once(caller):
                    await self._turns.begin(caller)
                request = method.decode_request(data)
                metered.note(method, request)
                yield request

    async def _request(self, method: Method, context: Context, metered: MeteredCall) -> Any:
        """Receive the one request of a call, and decode it. Raises CorruptFrame, InvalidRequest.

        If the request does not come in time, the call is ended from outside: a read of gRPC must not be
        cancelled while gRPC may still write into its buffer.
        """
        loop = asyncio.get_running_loop()
        timer = loop.call_later(REQUEST_S, _end_slow_call, method, context)
        try:
            with self._arriving.reading(metered.connection, metered.sharer) as arriving:
                data = await context.read()
                if not isinstance(data, bytes):
                    raise CorruptFrame(f"{method.name}: the call ended without a request")
                arriving.message(len(data), loop.time())
                metered.traffic.bytes_in += len(data)
        finally:
            timer.cancel()
        bound = request_bytes_max(method)
        if len(data) > bound:
            raise InvalidRequest(f"a request of {method.name} has {bound} bytes at most, not {len(data)}: send several")
        request = method.decode_request(data)
        metered.note(method, request)
        return request


def connections_max() -> int:
    """Return how many connections are accepted, those with an unfinished handshake included."""
    return at_most_half_of_files(CONNECTIONS_MAX)


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
    """Ignore the failed write to a client that went away, because it has cancelled its call; or whose call was ended at
    the moment at which its request came. gRPC would log the write as an error of this program.
    """
    try:
        yield
    except (grpc.aio.InternalError, grpc.aio.UsageError) as error:
        raise asyncio.CancelledError("the client went away") from error


async def _answer(method: Method, answers: Any, context: Context, metered: MeteredCall) -> None:
    """Write the answers of a stream."""
    async with aclosing(answers):
        async for answer in answers:
            data = method.encode_response(answer)
            del answer  # the objects behind an answer are freed while its encoding is in line
            with _client_may_leave():
                await context.write(data)
            metered.traffic.bytes_out += len(data)
            del data


def _end_slow_call(method: Method, context: Context) -> None:
    async def end_call() -> None:
        with suppress(grpc.aio.BaseError):
            await abort(
                context, DeadlineExceeded(f"the request of {method.name} did not come within {REQUEST_S:.0f} s")
            )

    task = asyncio.create_task(end_call(), name="end of a call without a request")
    _ending.add(task)
    task.add_done_callback(_ending.discard)


def request_bytes_max(method: Method) -> int:
    """Return the largest request of a unary method or of a server stream."""
    return MESSAGE_BYTES_MAX if method.sends_records else REQUEST_BYTES_MAX


def _forget_frames(error: BaseException) -> None:
    """Drop the frames of an error, which hold the request: gRPC keeps the error in a cycle with its call, and so
    requests that were refused would stay in memory until the garbage collector comes by.
    """
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


async def _refuse(method: Method, context: Context, error: Exception, metered: MeteredCall) -> bytes:
    """End the call with the error. Any error outside `ledgermq.errors` is a bug, which the client
    sees without internal details.
    """
    # gRPC's own error: it ends the call already, or the server has stopped under it
    if isinstance(error, grpc.aio.BaseError):
        raise error
    metered.code = error.code if isinstance(error, LedgerMQError) else LedgerMQError.code
    if not isinstance(error, LedgerMQError):
        log.error("call failed", method=method.name, exc_info=error)
    _forget_frames(error)
    if not isinstance(error, LedgerMQError):
        error = LedgerMQError(
            f"{method.name} failed inside the broker ({type(error).__name__}); see the log of the broker"
        )
    if isinstance(error, TlsFailed):  # between two brokers: the caller's own connection is sound
        error = Unavailable(error.message)
    with _client_may_leave():
        await abort(context, error)
