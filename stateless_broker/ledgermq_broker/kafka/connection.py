"""One connection of a Kafka client: requests come in as frames, answers go out in the same order.

    Produce             begun one after the other, and answered while the next ones are begun
    everything else     waits for the answers before it
    every request       is decoded in a turn of its caller (`Parts.turns`); the connection is not read on meanwhile
    a malformed frame, an API or a version that is not served: the connection ends
    before the caller is known: ApiVersions and SASL only, where rules count (`identity`)
    bytes behind a message: ignored, as by Kafka; librdkafka sends three with Metadata of all topics
    ApiVersions of an unknown version: answered in version 0, with what is served

Transport and clock are given, so that a simulation drives a connection by bytes alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ledgermq.buffers import KIB, MIB, Buffer
from ledgermq.errors import (
    CorruptFrame,
    LedgerMQError,
    ResourceExhausted,
    Unauthenticated,
    Unauthorized,
    Unavailable,
)
from ledgermq.runtime.ports.bounded_connections import host_of
from ledgermq.runtime.ports.turns import work_in_turns
from ledgermq.runtime.tasks import end
from ledgermq_broker.access.door import Admitted
from ledgermq_broker.access.state.usage import Account
from ledgermq_broker.bundle.shared.budgets import CALLER, Caller
from ledgermq_broker.kafka.handlers.asked import Asked
from ledgermq_broker.kafka.handlers.fetch import FetchHandler
from ledgermq_broker.kafka.handlers.produce import Begun, EndConnection, ProduceHandler
from ledgermq_broker.kafka.handlers.serving import handlers
from ledgermq_broker.kafka.handlers.shares.fetching import ShareHandler
from ledgermq_broker.kafka.identity import Identity, ListedClient, client_id_of
from ledgermq_broker.kafka.parts import Parts
from ledgermq_broker.kafka.table import Served, api_versions, served
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.frames import FRAME_BYTES_MAX, RequestHead, read_head, response_frame
from ledgermq_broker.kafka.wire.messages import (
    API_VERSIONS,
    FETCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Api,
    Message,
    written,
)
from ledgermq_broker.kafka.wire.primitives import ELEMENTS_MAX, Reader
from ledgermq_broker.ports.call_meter import OK

QUEUED_FRAMES_MAX = 16
QUEUED_BYTES_MAX = MIB
HELD_BYTES_MAX = 8 * MIB
"""Of requests without an answer. Above any of these, nothing more is read from the connection until it has less."""
UNPROVEN_FRAME_BYTES_MAX = 64 * KIB
"""Largest request while it is not known who calls; one of them is queued."""
BEGUN_MAX = 16
"""Produce requests that wait for their answers."""
HELD_S_MAX = 10.0

Send = Callable[[Sequence[Buffer]], Awaitable[None]]


@dataclass(slots=True)
class Request:
    """`elements`: that it holds of the share of `sharer`, once it is decoded."""

    head: RequestHead
    reader: Reader
    size: int
    arrived_s: float
    sharer: str = ""
    elements: int = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer that comes: of a Produce request that was begun."""

    request: Request
    begun: Begun
    begun_s: float


@dataclass(slots=True)
class _Caller:
    """Who was admitted, with the handlers that keep something for the connection."""

    admitted: Admitted
    client_id: str
    produce: ProduceHandler
    fetch: FetchHandler


class Connection:
    """`peer`: names it in logs and quotas. `send` returns when what it got has left. `cut` breaks the connection at
    once. `on_room`: called when it may have room again. `on_caller`: called when it is known who calls. `identity`: the
    caller's.
    """

    def __init__(
        self,
        parts: Parts,
        peer: str,
        send: Send,
        cut: Callable[[], None],
        on_room: Callable[[], None] = lambda: None,
        on_caller: Callable[[], None] = lambda: None,
        identity: Identity | None = None,
    ) -> None:
        self._parts = parts
        self._identity = identity or Identity(parts.door, parts.sources)
        self._peer = peer
        self._send = send
        self._cut = cut
        self._on_room = on_room
        self._on_caller = on_caller
        self._requests: asyncio.Queue[Request] = asyncio.Queue()
        self._queued_bytes = 0
        self._answers: asyncio.Queue[_Answer] = asyncio.Queue(BEGUN_MAX)
        self._caller: _Caller | None = None
        self._account: Account | None = None
        self._shares = ShareHandler(parts.brokers, parts.run_blocking, parts.settings, parts.share_room, parts.sources)
        self._handlers = handlers(parts.brokers, parts.sources, parts.settings, self._shares, parts.members)
        self._host = host = peer.removeprefix("kafka:").rpartition(":")[0]
        self._shares_as = f"host {host_of((host, 0))}"
        self._listed = ListedClient(parts.connections, peer)
        self.has_asked = False
        """Whether it has sent a request that could be read."""
        self.at_work = 0
        """Requests that have no answer yet."""
        self.held_bytes = 0
        """Of these requests."""
        self._held_elements: Counter[str] = Counter()
        """Of these requests, by the sharer for whom they count."""

    @property
    def is_unproven(self) -> bool:
        """Whether its caller still has to say who it is."""
        return self._caller is None and self._parts.door.closed

    @property
    def frame_bytes_max(self) -> int:
        """Return how large its next request may be."""
        is_new = self.is_unproven or not self.has_asked
        return UNPROVEN_FRAME_BYTES_MAX if is_new else FRAME_BYTES_MAX

    @property
    def is_full(self) -> bool:
        if self.is_unproven:
            return not self._requests.empty()
        return (
            self._requests.qsize() >= QUEUED_FRAMES_MAX
            or self._queued_bytes > QUEUED_BYTES_MAX
            or self.held_bytes > HELD_BYTES_MAX
        )

    @property
    def principal(self) -> str:
        """Return who calls; "" while that is not known, or rules do not count."""
        return self._caller.admitted.principal.name if self._caller is not None and self._parts.door.closed else ""

    @property
    def takes_turns_as(self) -> str:
        """Return with which connections it shares turns and elements."""
        return self.principal or self._shares_as

    def received(self, frame: memoryview) -> None:
        """Take a frame. Raises CorruptFrame."""
        head, reader = read_head(frame)
        self.has_asked = True
        self.at_work += 1
        self.held_bytes += len(frame)
        self._queued_bytes += len(frame)
        self._requests.put_nowait(Request(head, reader, len(frame), asyncio.get_running_loop().time()))

    async def run(self) -> None:
        """Serve until the connection has to end; what ends it is logged. The caller cancels it when the other side is
        gone.
        """
        work_in_turns(self._parts.turns, self)
        writer = asyncio.create_task(self._write_answers(), name="Kafka answers")
        try:
            await self._serve(writer)
        except CorruptFrame as error:
            self._log("malformed request", error)
        except EndConnection as error:
            self._log("the connection ends, because the client expects no answers", error)
        except LedgerMQError as error:
            self._log("a request was not served", error)
        finally:
            await end(writer)
            await self._close()

    async def _serve(self, writer: asyncio.Task[None]) -> None:
        while True:
            request = await self._next(writer)
            self._queued_bytes -= request.size
            self._on_room()
            served_ = served(request.head.api_key, request.head.version)
            if served_ is None:
                await self._answered(writer)
                if request.head.api_key != API_VERSIONS.key:
                    raise CorruptFrame(f"API {request.head.api_key} in version {request.head.version} is not served")
                await self._write(
                    API_VERSIONS, 0, request, api_versions(Code.UNSUPPORTED_VERSION, offers=self._parts.brokers.offers)
                )
            elif served_.api is PRODUCE:
                await self._begin(request, served_)
            else:
                await self._answered(writer)
                await self._serve_one(request, served_)

    async def _next(self, writer: asyncio.Task[None]) -> Request:
        """Return the next request. Raises what writing answers raised."""
        if not self._requests.empty() and not writer.done():
            return self._requests.get_nowait()
        coming = asyncio.create_task(self._requests.get())
        try:
            await asyncio.wait([coming, writer], return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                await writer
            return coming.result()
        finally:
            coming.cancel()

    async def _answered(self, writer: asyncio.Task[None]) -> None:
        """Wait until everything before is answered."""
        joined = asyncio.create_task(self._answers.join())
        try:
            await asyncio.wait([joined, writer], return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                await writer
        finally:
            joined.cancel()

    async def _begin(self, request: Request, served_: Served) -> None:
        started_s = asyncio.get_running_loop().time()
        caller = await self._admitted(request)
        self._parts.meter.begun(_name(PRODUCE))
        message = await self._in_turn(request, PRODUCE)
        self._listed.note(caller.admitted.principal.name, caller.client_id, PRODUCE, message)
        begun = await caller.produce.begin(message, request.head.version, request.arrived_s)
        await self._answers.put(_Answer(request, begun, started_s))

    async def _write_answers(self) -> None:
        while True:
            coming = await self._answers.get()
            caller = self._caller
            assert caller is not None
            code = OK
            try:
                response = await caller.produce.answer(coming.begun)
                if response is None:
                    self._answered_one(coming.request)
                else:
                    await self._write(PRODUCE, coming.request.head.version, coming.request, response)
            except EndConnection:
                code = "END"
                raise
            finally:
                self._answers.task_done()
                self._ended(PRODUCE, code, coming.begun_s)

    async def _serve_one(self, request: Request, served_: Served) -> None:
        started_s = asyncio.get_running_loop().time()
        self._parts.meter.begun(_name(served_.api))
        code = LedgerMQError.code
        books = Caller(self._peer, self._cut)
        CALLER.set(books)
        try:
            message = await self._in_turn(request, served_.api)
            response = await self._held(lambda: self._answer(request, served_.api, message))
            await self._write(served_.api, request.head.version, request, response)
            if self._identity.failure is not None:
                raise self._identity.failure
            code = OK
        except LedgerMQError as error:
            code = error.code
            raise
        finally:
            books.ended()
            self._ended(served_.api, code, started_s)

    async def _in_turn(self, request: Request, api: Api) -> Any:
        """Decode a request in a turn of its caller, which takes its share of elements. Raises CorruptFrame."""
        turns, sharer, most = self._parts.turns, self.takes_turns_as, min(request.size, ELEMENTS_MAX)
        await turns.begin(sharer, most)
        try:
            return api.request.read(request.reader, request.head.version)
        finally:
            request.sharer, request.elements = sharer, min(most, request.reader.elements)
            self._held_elements[sharer] += request.elements
            turns.ended(sharer, most - request.elements)

    async def _held(self, answer: Callable[[], Awaitable[Message]]) -> Message:
        """Return the answer, when the caller's quota allows it. Raises ResourceExhausted if that takes too long."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + HELD_S_MAX
        while True:
            try:
                return await answer()
            except ResourceExhausted as error:
                pause_s = max(0.01, (error.retry_after_ms or 0) / 1000)
                if loop.time() + pause_s > until_s:
                    raise
                await asyncio.sleep(pause_s)

    async def _answer(self, request: Request, api: Api, message: Any) -> Message:
        version = request.head.version
        if api is API_VERSIONS:
            self._listed.introduce(message)
            return cast(Message, api_versions(offers=self._parts.brokers.offers))
        if api is SASL_HANDSHAKE:
            return cast(Message, self._identity.handshake(message.mechanism))
        if api is SASL_AUTHENTICATE:
            answer = await self._identity.authenticate(bytes(message.auth_bytes), client_id_of(request.head.client_id))
            if not answer.error_code and not self._identity.is_between:
                await self._become(request)
            return cast(Message, answer)
        caller = await self._admitted(request)
        self._listed.note(caller.admitted.principal.name, caller.client_id, api, message)
        if api is FETCH:
            return cast(Message, await caller.fetch.answer(message, version))
        asked = Asked(caller.admitted.api, message, version, request.head.client_id, "/" + self._host)
        return cast(Message, await self._handlers[api](asked))

    async def _admitted(self, request: Request) -> _Caller:
        """Return the caller, whose credential still counts. Raises Unauthenticated, Unavailable, ResourceExhausted."""
        caller = self._caller
        if caller is None:
            return await self._become(request)
        try:
            admitted = await self._identity.admitted(caller.client_id)
        except Unavailable:
            return caller  # its calls say so, each in its own way
        if admitted.principal.name != caller.admitted.principal.name:
            raise Unauthenticated("rules count since the connection began: connect again")
        return caller

    async def _become(self, request: Request) -> _Caller:
        """Admit the caller by the credential that it has given last. What a connection keeps stays with it."""
        parts, before = self._parts, self._caller
        client_id = client_id_of(request.head.client_id) if before is None else before.client_id
        admitted = await self._identity.admitted(client_id)
        if before is None and admitted.account is not None:
            now_s = asyncio.get_running_loop().time()
            if admitted.account.full(self._peer, now_s) is not None:
                raise ResourceExhausted(f"{admitted.principal.name} has as many connections as its quota allows")
            admitted.account.begin_call(self._peer)
            self._account = admitted.account
        no_offset = self._listed.no_offset
        produce = ProduceHandler(admitted.api, parts.run_blocking, parts.batch_memory_max(), no_offset)
        if before is not None:
            produce.follow(before.produce)
            await before.produce.close()
        caller = self._caller = _Caller(admitted, client_id, produce, FetchHandler(admitted.api, parts.run_blocking))
        self._on_caller()
        return caller

    async def _write(self, api: Api, version: int, request: Request, response: Any) -> None:
        await self._send(response_frame(api, version, request.head.correlation_id, written(response, version)))
        self._answered_one(request)

    def _answered_one(self, request: Request) -> None:
        self.at_work -= 1
        self.held_bytes -= request.size
        self._held_elements[request.sharer] -= request.elements
        self._parts.turns.ended(request.sharer, request.elements)
        self._on_room()

    def _ended(self, api: Api, code: str, started_s: float) -> None:
        self._parts.meter.ended(_name(api), code, asyncio.get_running_loop().time() - started_s)

    async def _close(self) -> None:
        for sharer, elements in self._held_elements.items():
            self._parts.turns.ended(sharer, elements)
        if self._caller is not None:
            await self._caller.produce.close()
        if self._account is not None:
            self._account.end_call(self._peer)
        await self._shares.close()

    def _log(self, what: str, error: Exception) -> None:
        is_warning = isinstance(error, Unauthorized)
        self._parts.endings.note(what, peer=self._peer, why=str(error), is_warning=is_warning)


def _name(api: Api) -> str:
    return f"Kafka{api.name}"
