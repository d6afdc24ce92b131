"""Connections over gRPC: `BrokerApi` at an address, built from the method table.

Every unary call has a deadline. Streams have none; their readers bound the time without an answer.
Errors are those of `ledgermq.errors`. A connection connects itself, lazily and again after a loss;
only `close` ends it. When the files of its TLS change, it opens a channel with the new ones; calls
under way finish on the former channel.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import cache
from importlib.metadata import version
from typing import Any, cast

import grpc
import grpc.aio

from ledgermq.client.connection.credentials import Credential
from ledgermq.client.connection.home import Home
from ledgermq.client.connection.tls_probe import why_refused
from ledgermq.client.settings.tls import Credentials, Tls
from ledgermq.errors import TlsFailed, Unavailable, UsedElsewhere
from ledgermq.protocol.limits import GRPC_OPTIONS
from ledgermq.protocol.methods import METHODS, Calls, Kind, Method
from ledgermq.protocol.naming.client_ids import metadata_of
from ledgermq.protocol.naming.tokens import AUTHORIZATION
from ledgermq.protocol.status import NOT_CONNECTED, error_from_rpc
from ledgermq.runtime.tasks import shared

REQUEST_TIMEOUT_S = 30.0
_PROBE_TIMEOUT_S = 2.0
_REFUSAL_PAUSES_S = (0.0, 0.03, 0.2)
"""A dying process loses its connections a moment before it stops listening, so a line that was
just lost is probed more than once.
"""
_CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
_RETIRED_S_MAX = 3600.0
"""How long calls may go on over a channel whose certificate files were replaced."""

Metadata = tuple[tuple[str, str], ...]
MoreMetadata = Callable[[str], Metadata]
"""Returns metadata of a call to an address."""

_first_use: list[Home] = []
"""Home of the first connection of this process; empty before it."""
_guarded: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


@cache
def _user_agent() -> tuple[str, str]:
    """Return the option by which brokers see the name and version of this client."""
    return "grpc.primary_user_agent", f"ledgermq-python/{version('ledgermq')}"


class GrpcConnector:
    """`request_timeout_s`: deadline of each unary call; a long poll gets its waiting time in addition. `tls`: None for
    plain connections. `credential(address)`: what calls to this address carry as `authorization`, "" for nothing; asked
    for each call, so that it may change. `client_id`: names the program in quotas; `rack`: where it runs; "" for none.
    `more(address)`: further metadata of a call, asked for when it is made; streams of requests, which may serve
    several callers, carry none. Raises InvalidConfig if files of `tls` cannot be used.
    """

    def __init__(
        self,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        tls: Tls | None = None,
        credential: Credential | None = None,
        client_id: str = "",
        rack: str = "",
        more: MoreMetadata | None = None,
    ) -> None:
        self._request_timeout_s = request_timeout_s
        self._credentials = None if tls is None else Credentials(tls)
        self._credential = credential
        self._named = metadata_of(client_id, rack)
        self._more = more

    def connect(self, address: str) -> GrpcConnection:
        passed = self._credentials, self._credential, self._named, self._more
        return GrpcConnection(address, self._request_timeout_s, *passed)

    def proving(self, credential: Credential) -> GrpcConnector:
        """See `Connector.proving`."""
        other = GrpcConnector(request_timeout_s=self._request_timeout_s, credential=credential)
        other._credentials = self._credentials
        return other


class GrpcConnection(Calls):
    """A connection to one broker. Use it within one event loop.

    It opens no socket before its first use. Raises UsedElsewhere in a forked process.
    """

    def __init__(
        self,
        address: str,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        credentials: Credentials | None = None,
        credential: Credential | None = None,
        named: tuple[tuple[str, str], ...] = (),
        more: MoreMetadata | None = None,
    ) -> None:
        refuse_after_fork()
        if not _first_use:
            _first_use.append(Home())
        _drop_late_events(asyncio.get_running_loop())
        self.address = address
        self._timeout_s = request_timeout_s
        self._credential = credential
        self._named = named
        self._more = more
        self._credentials = credentials
        self._version = 0 if credentials is None else credentials.version
        self._retired: dict[grpc.aio.Channel, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._open()

    def _open(self) -> None:
        options: tuple[tuple[str, int | str], ...] = (*GRPC_OPTIONS, *_CLIENT_OPTIONS, _user_agent())
        if self._credentials is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=options)
        else:
            if name := self._credentials.tls.server_name:
                options += (("grpc.ssl_target_name_override", name),)
            self._channel = grpc.aio.secure_channel(self.address, self._credentials.current(), options=options)
        self._calls: dict[str, Any] = {method.name: self._multi_callable(method) for method in METHODS}

    def _call(self, method: Method) -> Any:
        """Return the gRPC callable, on a new channel if the files of TLS have changed."""
        if self._credentials is not None and self._credentials.look() != self._version:
            self._version = self._credentials.version
            former = self._channel
            self._open()
            self._retired[former] = asyncio.create_task(former.close(_RETIRED_S_MAX), name="close the former channel")
            self._retired[former].add_done_callback(lambda _: self._retired.pop(former, None))
        return self._calls[method.name]

    def _multi_callable(self, method: Method) -> Any:
        """Return the gRPC callable. `bytes` of bytes is the same object, so gRPC serializes
        nothing.
        """
        if method.kind is Kind.UNARY:
            return self._channel.unary_unary(method.path, bytes, bytes)
        if method.kind is Kind.SERVER_STREAM:
            return self._channel.unary_stream(method.path, bytes, bytes)
        return self._channel.stream_stream(method.path, bytes, bytes)

    async def ask(self, method: Method, request: Any) -> Any:
        return await self.ask_as(self.credential(), method, request)

    async def ask_as(self, credential: str, method: Method, request: Any) -> Any:
        """Make a unary call that carries this credential."""
        timeout_s = self._timeout_s + method.wait_s(request)
        try:
            with self._typed_errors():
                call = self._call(method)
                answer = await call(
                    method.encode_request(request), timeout=timeout_s, metadata=self._metadata(credential, method)
                )
        except Unavailable as error:
            raise await self._explained(error) from error.__cause__
        return method.decode_response(answer)

    def credential(self) -> str:
        """See `Connection.credential`."""
        return self._credential(self.address) if self._credential is not None else ""

    def as_caller(self, credential: str) -> GrpcCaller:
        """See `Connection.as_caller`."""
        return GrpcCaller(self, credential)

    def apart(self, credential: str) -> GrpcConnection:
        """Return a separate connection to the same broker, whose calls carry this credential. Close it at the end."""
        made = GrpcConnection(self.address, self._timeout_s, self._credentials, lambda address: credential)
        made._named, made._more = self._named, self._more
        return made

    def _metadata(self, credential: str, method: Method) -> Metadata | None:
        found = ((AUTHORIZATION, credential), *self._named) if credential else self._named
        if self._more is not None and method.kind is not Kind.BIDI_STREAM:
            found += tuple(self._more(self.address))
        return found or None

    async def _explained(self, error: Unavailable) -> Unavailable:
        """Return TlsFailed if TLS is why no connection was made, otherwise the error itself."""
        cause = error.__cause__
        details = (cause.details() or "") if isinstance(cause, grpc.aio.AioRpcError) else ""
        if not details.startswith(NOT_CONNECTED) or "Connection refused" in details:
            return error
        why = await why_refused(self.address, None if self._credentials is None else self._credentials.tls)
        if why is None:
            return error
        failed = TlsFailed(why)
        failed.not_stored = error.not_stored
        return failed

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """Raise what gRPC raises as an error of `ledgermq.errors`. When a channel is closed, its calls
        end as if their tasks were cancelled; only a task that really is may end by that.
        """
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, self.address) from error.with_traceback(None)
        except (grpc.aio.UsageError, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            raise Unavailable(f"the connection to {self.address} is closed") from error.with_traceback(None)

    async def _stream(self, credential: str, method: Method, request: Any) -> AsyncIterator[Any]:
        with self._typed_errors():
            call = self._call(method)(request, metadata=self._metadata(credential, method))
        try:
            with self._typed_errors():
                async for data in call:
                    yield method.decode_response(data)
        except Unavailable as error:
            raise await self._explained(error) from error.__cause__
        except BaseException as error:
            error.__traceback__ = None  # who keeps the error would keep gRPC's frames, and the call with them
            raise
        finally:
            call.cancel()
            _end_requests(call)
            del call  # as long as one is left, gRPC does not close its connection

    def stream(self, method: Method, requests: Any) -> AsyncIterator[Any]:
        return self.stream_as(self.credential(), method, requests)

    def stream_as(self, credential: str, method: Method, requests: Any) -> AsyncIterator[Any]:
        """Begin a stream that carries this credential to its end."""
        if method.kind is Kind.SERVER_STREAM:
            return self._stream(credential, method, method.encode_request(requests))
        return self._stream(credential, method, _encoded(method, requests))

    async def wait_lost(self) -> bool:
        """See `Connection.wait_lost`.

        A plain TCP connect distinguishes a lost line, whose peer still listens, from a refusal.
        """
        channel = None
        while channel is not self._channel:  # a new one has taken its place
            channel = self._channel
            await self._until_lost(channel)
        for pause_s in _REFUSAL_PAUSES_S:
            await asyncio.sleep(pause_s)
            if await _refuses(self.address):
                return True
        return False

    async def _until_lost(self, channel: grpc.aio.Channel) -> None:
        """Wait until the channel loses its connection, fails to make one, or is replaced."""
        state = channel.get_state(try_to_connect=True)
        while state in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
            await self._changed_from(state)
            if channel is not self._channel:
                return
            state = channel.get_state(try_to_connect=True)
        while state is grpc.ChannelConnectivity.READY and channel is self._channel:
            await self._changed_from(state)
            state = channel.get_state()

    async def _changed_from(self, state: grpc.ChannelConnectivity) -> None:
        """Wait until the channel is in another state. All waits share one watch, which gRPC cannot cancel: it ends when
        the state changes or the channel closes.
        """
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._channel.wait_for_state_change(state))
        await shared(self._watch, "the connection")

    async def close(self) -> None:
        """Close the channel, and wait for the watch: an event of a closed loop makes gRPC raise in
        another loop of this process.
        """
        retired = list(self._retired.items())
        for former, closing in retired:
            closing.cancel()
            await asyncio.wait([closing])
            await former.close(None)
        await self._channel.close(None)
        if self._watch is not None:
            await asyncio.wait([self._watch], timeout=_PROBE_TIMEOUT_S)


class GrpcCaller(Calls):
    """A connection with another credential. Its unary calls, and streams of requests, go over the connection's channel.
    A stream of answers has its own channel, because a broker cuts the line of a reader that takes nothing: other
    callers' calls would end with it.
    """

    def __init__(self, line: GrpcConnection, credential: str) -> None:
        self.address = line.address
        self._line = line
        self._credential = credential

    async def ask(self, method: Method, request: Any) -> Any:
        return await self._line.ask_as(self._credential, method, request)

    def stream(self, method: Method, requests: Any) -> AsyncIterator[Any]:
        if method.kind is Kind.SERVER_STREAM:
            return self._apart(method, requests)
        return self._line.stream_as(self._credential, method, requests)

    async def _apart(self, method: Method, requests: Any) -> AsyncIterator[Any]:
        own = self._line.apart(self._credential)
        try:
            async with aclosing(cast(Any, own.stream(method, requests))) as answers:
                async for answer in answers:
                    yield answer
        finally:
            await own.close()

    def as_caller(self, credential: str) -> GrpcCaller:
        """See `Connection.as_caller`."""
        return GrpcCaller(self._line, credential)

    def credential(self) -> str:
        """See `Connection.credential`."""
        return self._credential

    async def wait_lost(self) -> bool:
        """See `Connection.wait_lost`."""
        return await self._line.wait_lost()

    async def close(self) -> None:
        """Close nothing: the channel is the connection's."""


def refuse_after_fork() -> None:
    """Raise UsedElsewhere in a process that was forked from one that had used gRPC.

    gRPC's threads do not survive a fork, not even those of closed connections: code that uses them
    hangs or crashes.
    """
    if _first_use and _first_use[0].left:
        raise UsedElsewhere(
            "this process was forked after its parent had connected to brokers, and gRPC does not work then: "
            "connect only after the fork, or start processes by multiprocessing's 'spawn'"
        )


def _drop_late_events(loop: asyncio.AbstractEventLoop) -> None:
    """Let gRPC drop an event whose loop was closed in the meantime.

    gRPC has one queue of events for all loops of a process. The event of a cancelled call may
    arrive after its loop was closed. Another loop then takes it from the queue, cannot deliver it,
    and prints a traceback. gRPC offers no end of a call or channel to wait for.
    """
    if loop in _guarded:
        return
    _guarded.add(loop)
    hand_on = loop.call_soon_threadsafe

    def hand_on_unless_closed(callback: Callable[..., object], *args: Any, **context: Any) -> asyncio.Handle | None:
        if loop.is_closed() and getattr(callback, "__module__", "") == "grpc._cython.cygrpc":
            return None
        return hand_on(callback, *args, **context)

    loop.call_soon_threadsafe = hand_on_unless_closed  # type: ignore[method-assign, assignment]


async def _encoded(method: Method, requests: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for request in requests:
        yield method.encode_request(request)


async def _refuses(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return False


def _end_requests(call: Any) -> None:
    """End gRPC's task that reads requests. If a call fails before it is connected, that task keeps
    waiting where `cancel` does not reach it.
    """
    poller = getattr(call, "_async_request_poller", None)
    if poller is not None:
        poller.cancel()
