"""Listen for clients of the Kafka protocol.

open at once        `kafka_connections_max`; of one principal, or host while the principal is not known or rules do
                    not count, as many as are free (`is_above_share`): above that its idlest one is closed
new ones            `NEW_MAX` that have sent no request, or have not proved who they are where they have to: the oldest
                    of the host that has most of them goes first
TLS, SASL and the   within `FIRST_REQUEST_S` together, each request of `UNPROVEN_FRAME_BYTES_MAX` at most
first request
a request           whole within `FRAME_S` from its first byte
an answer           some of it taken every `WRITE_S`
idle                closed after `IDLE_S`
requests without     above `ARRIVING_BYTES_MAX` and what records may take, in all: of the principal or host that
an answer            has most, the connection that has most is closed
log                  a line a second (`Endings`)
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

from ledgermq.buffers import MIB, Buffer
from ledgermq.errors import CorruptFrame, InvalidConfig
from ledgermq.runtime.ports.bounded_connections import at_most_half_of_files, host_of
from ledgermq.runtime.ports.shares import is_above_share
from ledgermq.runtime.tasks import end
from ledgermq_broker.kafka.connection import UNPROVEN_FRAME_BYTES_MAX, Connection
from ledgermq_broker.kafka.identity import Identity
from ledgermq_broker.kafka.parts import Parts
from ledgermq_broker.kafka.wire.frames import FrameBuffer
from ledgermq_broker.logs import get_logger
from ledgermq_broker.settings.processes import is_local

NEW_MAX = 1000
FIRST_REQUEST_S = 10.0
FRAME_S = 30.0
WRITE_S = 30.0
CLOSE_S = 5.0
LOOK_S = 0.01
IDLE_S = 600.0
ARRIVING_BYTES_MAX = 256 * MIB
SWEEP_S = 1.0
CHECK_S = 0.02
KEEPALIVE_S = 60
BACKLOG = 1024
HELLO_BYTES = 16 * 1024

log = get_logger(__name__)


class KafkaListener:
    """`connections_max`: at most half of the files that the process may open. `tls`: None for plain connections."""

    def __init__(self, connections_max: int, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self._connections_max = at_most_half_of_files(connections_max)
        self._open: dict[KafkaProtocol, None] = {}
        """The oldest first."""
        self._server: asyncio.Server | None = None
        self._parts: Parts | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._checked_s = 0.0

    async def listen(self, host: str, port: int) -> int:
        """Bind the port and return its number; 0 takes a free one. Raises InvalidConfig."""
        try:  # it listens at once, so that a second broker on the port fails here; nothing is accepted before `serve`
            line = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=BACKLOG,
                dualstack_ipv6=host == "::",
            )
        except OSError as error:
            raise InvalidConfig(
                f"cannot listen on {host}:{port} (kafka_host, kafka_port): the port is in use, or the address is not"
                " one of this machine's"
            ) from error
        self._server = await asyncio.get_running_loop().create_server(
            lambda: KafkaProtocol(self, self._parts), sock=line, start_serving=False, backlog=BACKLOG
        )
        found: int = line.getsockname()[1]
        return found

    async def serve(self, parts: Parts) -> None:
        """Accept connections from now on."""
        assert self._server is not None
        self._parts = parts
        self._sweeping = asyncio.create_task(self._sweep(), name="Kafka connections")
        await self._server.start_serving()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._sweeping is not None:
            await end(self._sweeping)
        await asyncio.gather(*(one.stop() for one in list(self._open)))
        await asyncio.sleep(0)  # transports close their sockets in the next turn of the loop

    def opened(self, one: KafkaProtocol) -> None:
        self._open[one] = None
        if not self.make_room(one):
            return
        new = [other for other in self._open if other.is_new]
        if len(new) > NEW_MAX:
            most = Counter(other.host for other in new).most_common(1)[0][0]
            next(other for other in new if other.host == most).cut("too many connections have sent no request")

    def closed(self, one: KafkaProtocol) -> None:
        self._open.pop(one, None)

    def make_room(self, one: KafkaProtocol) -> bool:
        """Close a connection if there are too many; return whether this one stays."""
        counts = Counter(other.sharer for other in self._open)
        own = counts[one.sharer]
        if not is_above_share(own - 1, 1, self._connections_max - (len(self._open) - 1)):
            return True
        idle = [other for other in self._open if counts[other.sharer] >= own and not other.at_work and other is not one]
        most = Counter(other.sharer for other in idle).most_common(1)
        idlest = min((other for other in idle if other.sharer == most[0][0]), key=lambda it: it.active_s, default=one)
        idlest.cut("more connections than kafka_connections_max allows: one caller may have as many as are free")
        return idlest is not one

    def check_held(self) -> None:
        """Close the connection that holds most, of the caller that does, while all together hold too much."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._checked_s + CHECK_S:
            return
        self._checked_s = now_s
        assert self._parts is not None
        held: Counter[str] = Counter()
        for one in self._open:
            held[one.sharer] += one.held_bytes
        if held.total() > ARRIVING_BYTES_MAX + self._parts.batch_memory_max():
            [(most, _)] = held.most_common(1)
            found = max((one for one in self._open if one.sharer == most), key=lambda one: one.held_bytes)
            found.cut("too many bytes of requests without an answer")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = asyncio.get_running_loop().time()
            for one in list(self._open):
                one.check_time(now_s)


class KafkaProtocol(asyncio.BufferedProtocol):
    """The transport of one connection: bytes into frames, flow control, times."""

    def __init__(self, listener: KafkaListener, parts: Parts | None) -> None:
        assert parts is not None
        self._listener = listener
        self._parts = parts
        self._frames = FrameBuffer(UNPROVEN_FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._below: asyncio.Transport | None = None
        """What carries the TLS of `_transport`."""
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._hello: bytearray | None = None
        """Takes what comes before TLS does; None: TLS is there, or not wanted."""
        self._early = bytearray()
        self._is_paused = False
        self._opened_s = self.active_s = self._frame_s = asyncio.get_running_loop().time()
        self.host = ""

    @property
    def is_new(self) -> bool:
        return self._connection is None or not self._connection.has_asked or self._connection.is_unproven

    @property
    def held_bytes(self) -> int:
        return self._frames.unread_bytes + (0 if self._connection is None else self._connection.held_bytes)

    @property
    def at_work(self) -> int:
        return 0 if self._connection is None else self._connection.at_work

    @property
    def sharer(self) -> str:
        """Return with whom it shares what one caller may have."""
        principal = "" if self._connection is None else self._connection.principal
        return principal or f"host {self.host}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.host = host_of(peer)
        transport.set_write_buffer_limits(high=0)
        _keep_alive(transport.get_extra_info("socket"))
        tls, parts = self._listener.tls, self._parts
        identity = Identity(parts.door, parts.sources, is_private=tls is not None or is_local(str(peer[0])))
        self._connection = connection = Connection(
            parts, f"kafka:{peer[0]}:{peer[1]}", self._send, self._abort, self._has_room, self._has_caller, identity
        )
        self._hello = None if tls is None else bytearray(HELLO_BYTES)
        run = self._run(connection) if tls is None else self._secure(transport, tls, connection, identity)
        self._task = asyncio.get_running_loop().create_task(run, name="Kafka connection")
        self._listener.opened(self)

    async def _secure(
        self, plain: asyncio.Transport, tls: ssl.SSLContext, connection: Connection, identity: Identity
    ) -> None:
        """Agree on TLS, then serve. The connection counts meanwhile, as it would not if the server did this."""
        secured, loop = None, asyncio.get_running_loop()
        securing = loop.create_task(
            loop.start_tls(
                plain, self, tls, server_side=True, ssl_handshake_timeout=FIRST_REQUEST_S, ssl_shutdown_timeout=CLOSE_S
            ),
            name="TLS of a Kafka connection",
        )
        try:
            await asyncio.sleep(0)  # TLS has taken the place of this protocol, and reads from the next turn on
            loop.call_soon(self._hand_on, plain)
            secured = await securing
        except (OSError, TimeoutError) as error:
            self.cut(f"no TLS: {error}")
        finally:
            if secured is None:  # asyncio does not say that the connection is lost
                securing.cancel()
                plain.abort()
                self._transport = None
                self._listener.closed(self)
        if secured is None:
            return
        secured.set_write_buffer_limits(high=1)  # with 0, asyncio's TLS says after each write that it is full
        self._transport, self._below = secured, plain
        certificate = secured.get_extra_info("peercert") or {}
        identity.certified = [str(name) for _, name in certificate.get("subjectAltName", ())]
        await self._run(connection)

    def _hand_on(self, plain: asyncio.Transport) -> None:
        """Hand to TLS what came before it: uvloop reads as soon as it has accepted, whatever `connection_made` asks."""
        self._hello, early = None, self._early
        below = cast(asyncio.BufferedProtocol, plain.get_protocol())  # of both loops, it reads into its own buffer
        if early and below is not self:
            memoryview(below.get_buffer(len(early)))[: len(early)] = early
            below.buffer_updated(len(early))
            early.clear()

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run()
        except Exception as error:
            log.error("a Kafka connection failed", peer=self.host, exc_info=error)
        finally:
            if self._transport is not None:
                self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.room() if self._hello is None else memoryview(self._hello)

    def buffer_updated(self, nbytes: int) -> None:
        assert self._connection is not None
        if self._hello is not None:
            self._early += self._hello[:nbytes]
            return
        self._frames.bytes_max = self._connection.frame_bytes_max
        self.active_s = asyncio.get_running_loop().time()
        was_empty = self._frames.unread_bytes == 0
        try:
            frames = self._frames.filled(nbytes)
            for frame in frames:
                self._connection.received(frame)
        except CorruptFrame as error:
            self.cut(error.message)
            return
        if frames or was_empty:
            self._frame_s = self.active_s
        is_secured = self._listener.tls is None or self._below is not None
        if self._connection.is_full and not self._is_paused and self._transport is not None and is_secured:
            self._is_paused = True
            self._transport.pause_reading()
        if self.held_bytes > UNPROVEN_FRAME_BYTES_MAX:
            self._listener.check_held()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: BaseException | None) -> None:
        self._transport = None
        self._writable.set()
        self._listener.closed(self)
        if self._task is not None:
            self._task.cancel()

    def check_time(self, now_s: float) -> None:
        """Close the connection if it keeps the broker waiting."""
        if self.is_new and now_s - self._opened_s > FIRST_REQUEST_S:
            self.cut(f"no request within {FIRST_REQUEST_S:.0f} s")
        elif self._frames.unread_bytes and not self._is_paused and now_s - self._frame_s > FRAME_S:
            self.cut(f"a request was not whole within {FRAME_S:.0f} s")
        elif now_s - self.active_s > IDLE_S and self._connection is not None and not self._connection.at_work:
            self.cut(f"idle for {IDLE_S:.0f} s", quiet=True)

    def cut(self, why: str, *, quiet: bool = False) -> None:
        if not quiet:
            self._parts.endings.note("a Kafka connection was closed", peer=self.host, why=why)
        self._abort()

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)
        self._abort()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _has_caller(self) -> None:
        self._listener.make_room(self)

    def _has_room(self) -> None:
        if self._is_paused and self._connection is not None and not self._connection.is_full:
            self._is_paused = False
            self._frame_s = asyncio.get_running_loop().time()
            if self._transport is not None:
                self._transport.resume_reading()

    async def _send(self, pieces: Sequence[Buffer]) -> None:
        """Write, and return when everything has left this process."""
        if self._transport is None:
            return
        self._transport.writelines(pieces)
        loop = asyncio.get_running_loop()
        unsent, moved_s = self._unsent_bytes(), loop.time()
        while unsent:
            await self._some_sent()
            left = self._unsent_bytes()
            if left < unsent:
                moved_s = loop.time()
            elif loop.time() - moved_s >= WRITE_S:
                self.cut(f"none of an answer was taken within {WRITE_S:.0f} s")
                return
            unsent = left
        self.active_s = loop.time()

    async def _some_sent(self) -> None:
        """Wait until everything is sent, or for a while."""
        if self._below is not None:  # no call comes when the bytes of TLS have left
            await asyncio.sleep(LOOK_S)
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._writable.wait(), WRITE_S)

    def _unsent_bytes(self) -> int:
        lines = (line for line in (self._transport, self._below) if line is not None)
        return 0 if self._transport is None else sum(line.get_write_buffer_size() for line in lines)


def _keep_alive(line: socket.socket | None) -> None:
    """Let the kernel find out that the other machine is gone."""
    if line is None:
        return
    with suppress(OSError):
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S // 6)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
