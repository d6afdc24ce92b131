"""Server-sent events: GET /v1/topics/{topic}/events.

    id: c1.AQIqBw              the cursor behind what was sent; `Last-Event-ID` resumes there
    data: {"topic":"orders","partition":0,"offset":41,…}

An `id` without data comes while nothing passes the filter, so that a reader that comes back does not read all again.
A stream that cannot go on ends with `event: problem`; a place that is gone is 416 at the next connect, which stops a
browser's EventSource.

Streams of one credential that want the same of a topic, and stand at one place, share a `Tail`: one read of brokers and
one buffer of encoded events, so their number costs neither calls of brokers nor much memory. A reader that is further
behind than the buffer reaches is ended: it comes back by its id, and then reads alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import msgspec

from ledgermq.client.consuming.consumer import Consumer
from ledgermq.client.consuming.message import Message
from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.errors import InvalidConfig, LedgerMQError, OffsetOutOfRange
from ledgermq.runtime.tasks import end, shared
from ledgermq_gateway.callers import Caller
from ledgermq_gateway.http.call import Call, Stream
from ledgermq_gateway.http.limits import Room
from ledgermq_gateway.http.problems import Problem, problem_of
from ledgermq_gateway.records.cursors import PARTITIONS_MAX, cursor_of, offsets_at
from ledgermq_gateway.records.forms import FORMS, record_json
from ledgermq_gateway.records.reading import (
    bounds_of,
    filter_of,
    gone,
    out_of_range,
    partitions_of,
    streaming,
)
from ledgermq_gateway.resources.parameters import choice, position

PREFETCH_BYTES = 256 * 1024
KEEP_ALIVE_S = 15.0
POLL_S = 1.0
RECORDS_AT_ONCE = 200
RETRY_MS_MIN, RETRY_MS_MAX = 1_000, 10_000
TAIL_BYTES = 1024 * 1024
PATIENCE_S = 1.0
"""How long a tail waits for readers that are further behind than its buffer. Then they are ended."""
LISTENER_S, PACE_S_MAX = 100e-6, 0.25
"""A piece costs each reader some processor time, so with many readers pieces are larger and fewer."""
WRITE_BUFFER_BYTES = 64 * 1024
"""What the connection of such a reader may hold."""


async def get_events(call: Call) -> Stream:
    topic = await call.caller.topic(call.names["topic"])
    partitions = partitions_of(call, topic)
    form, skips = choice(call.query, "values", FORMS), choice(call.query, "gap", ("fail", "skip")) == "skip"
    async with AsyncExitStack() as held:
        held.enter_context(call.waiting())
        start = _start(call, topic, partitions)
        named = None if partitions is None else tuple(partitions)
        wanted = _Wanted(topic.name, topic.topic_id, named, form, filter_of(call))
        source: Source | None = None
        if not skips:
            source = await held.enter_async_context(_following(call, topic, wanted, start))
        if source is None:
            source = await held.enter_async_context(_reading(call, topic, wanted, start, skips=skips))
        return Stream(_events(call, source, topic), held.pop_all(), buffer_bytes=source.buffer_bytes)


class _Wanted(NamedTuple):
    """What a stream asks for, apart from its place."""

    topic: str
    topic_id: int
    partitions: tuple[int, ...] | None
    form: str
    filter: str


def _start(call: Call, topic: TopicDescription, partitions: list[int] | None) -> Any:
    """Return where the stream begins, as a consumer takes it. Raises Problem."""
    place = call.headers.get("last-event-id", "") or call.query.get("cursor", "")
    start: Any = offsets_at(place, topic) if place else position(call, "from", "latest")
    if isinstance(start, int):
        raise Problem("INVALID_REQUEST", "an offset means another record in each partition: give a time, or a cursor")
    if isinstance(start, dict) and partitions is not None:
        start = {partition: offset for partition, offset in start.items() if partition in partitions}
    return start


class Source(Protocol):
    """Where the events of one stream come from. `id`: the event of the place behind those that were taken."""

    buffer_bytes: int

    @property
    def id(self) -> bytes: ...
    async def next(self, timeout_s: float) -> bytes:
        """Return further events, b"" if none came in time. Raises LedgerMQError, Problem, Behind."""

    def places(self) -> dict[int, int]: ...


class Behind(Exception):
    """A reader is further behind than the shared buffer reaches."""


async def _events(call: Call, source: Source, topic: TopicDescription) -> AsyncGenerator[bytes, None]:
    loop, stopping = asyncio.get_running_loop(), call.service.stopping
    until_s = float("inf")
    try:
        yield b"retry: %d\n%s\n" % (RETRY_MS_MIN, source.id)
        sent_s = loop.time()
        while loop.time() < until_s:
            if stopping.is_set() and until_s == float("inf"):
                until_s = loop.time() + _ends_in_s(call)
            try:
                chunk = await source.next(min(POLL_S, max(0.0, until_s - loop.time())))
            except Behind:
                break
            if chunk:
                yield chunk
                sent_s = loop.time()
            elif loop.time() - sent_s >= KEEP_ALIVE_S:
                yield source.id + b"\n"
                sent_s = loop.time()
        retry_ms = call.service.sources.random.randrange(RETRY_MS_MIN, RETRY_MS_MAX)
        yield b"retry: %d\n%s\n" % (retry_ms, source.id)
    except LedgerMQError as error:
        more: dict[str, Any] = {}
        if isinstance(error, OffsetOutOfRange):
            found = out_of_range(topic, source.places(), await bounds_of(call, topic.name))
            more = {} if found is None else found.more
        yield _problem(call, problem_of(error, more))
    except Problem as error:
        yield _problem(call, error)


def _problem(call: Call, problem: Problem) -> bytes:
    return b"event: problem\ndata: " + problem.document(call.request_id) + b"\n\n"


def _ends_in_s(call: Call) -> float:
    """Return when a stream ends after the gateway began to stop: once load balancers send its reader elsewhere."""
    settings = call.service.settings
    return (settings.drain_ms + call.service.sources.random.random() * settings.streams_end_ms) / 1000


# -- a stream that reads alone


class Alone:
    """A consumer for one stream. `skips`: where records are gone it goes on, and says which."""

    buffer_bytes = 0

    def __init__(
        self, call: Call, consumer: Consumer, room: Room, topic: TopicDescription, form: str, *, skips: bool
    ) -> None:
        self._call, self._consumer, self._room, self._topic, self._form = call, consumer, room, topic, form
        self._skips = skips

    @property
    def id(self) -> bytes:
        return _id(self._topic, self._consumer)

    def places(self) -> dict[int, int]:
        return _places_of(self._consumer)

    async def next(self, timeout_s: float) -> bytes:
        try:
            messages = await self._consumer.fetch(self._room.rows, timeout=timeout_s)
        except OffsetOutOfRange:
            if not self._skips:
                raise
            return await self._skip()
        return self._room.hold(_data(messages, self._form) + self.id + b"\n", RECORDS_AT_ONCE) if messages else b""

    async def _skip(self) -> bytes:
        """Go on where the log begins now, and say which offsets are left out."""
        places, found = self.places(), b""
        for partition, (first, last) in gone(places, await bounds_of(self._call, self._topic.name)).items():
            place = first if places[partition] < first else last
            await self._consumer.seek(place, partition)
            gap = {"partition": partition, "from": places[partition], "to": place}
            found += b"event: gap\ndata: " + msgspec.json.encode(gap) + b"\n" + self.id + b"\n"
        return found


@asynccontextmanager
async def _reading(
    call: Call, topic: TopicDescription, wanted: _Wanted, start: Any, *, skips: bool
) -> AsyncIterator[Alone]:
    """Raises Problem (416) for a place that is gone, unless it skips."""
    async with streaming(
        call,
        topic.name,
        None if wanted.partitions is None else list(wanted.partitions),
        start,
        taken_bytes=PREFETCH_BYTES,
        prefetch_bytes=PREFETCH_BYTES,
        filter=wanted.filter,
    ) as (consumer, room):
        if not skips:
            problem = out_of_range(topic, _places_of(consumer), await bounds_of(call, topic.name))
            if problem:
                raise problem
        yield Alone(call, consumer, room, topic, wanted.form, skips=skips)


# -- streams that share a read


@dataclass(frozen=True, slots=True)
class _Piece:
    """Encoded events, and the place behind them."""

    chunk: bytes
    id: bytes


class Tail:
    """One read for several streams. `users`: those that follow it, or are about to. `first`: the number of the oldest
    piece in the buffer. `id`: the event of the place behind the last one. `news`: set when something comes.
    """

    def __init__(self) -> None:
        self.users = 0
        self.followers: set[Follower] = set()
        self.first = 0
        self.pieces: deque[_Piece] = deque()
        self.id = b""
        self.places: Callable[[], dict[int, int]] = dict
        self.error: Exception | None = None
        self.news = asyncio.Event()
        self.opened: asyncio.Task[None]
        self._bytes = 0
        self._running: asyncio.Task[None] | None = None
        self._held = AsyncExitStack()

    @property
    def next(self) -> int:
        return self.first + len(self.pieces)

    def number_at(self, place: bytes) -> int | None:
        """Return the number of the piece that begins at a place; None: it is not in the buffer."""
        if place == self.id:
            return self.next
        for number, piece in enumerate(self.pieces, self.first + 1):
            if piece.id == place:
                return number
        return None

    async def open(self, call: Call, topic: TopicDescription, wanted: _Wanted, start: Any) -> None:
        """Raises LedgerMQError, Problem."""
        principal = "" if call.caller.is_shared else call.caller.principal
        share = self._held.enter_context(call.service.memory.share(principal))
        share.take(TAIL_BYTES)
        reading = _reading(call._replace(share=share), topic, wanted, start, skips=False)
        alone = await self._held.enter_async_context(reading)
        self.id, self.places = alone.id, alone.places
        self._running = asyncio.create_task(self._run(alone), name="a read that event streams share")

    async def close(self) -> None:
        await end(self.opened)
        if self._running is not None:
            await end(self._running)
        await self._held.aclose()

    async def _run(self, alone: Alone) -> None:
        try:
            while True:
                chunk = await alone.next(POLL_S)
                self.id = alone.id
                if chunk:
                    await self._add(_Piece(chunk, self.id))
                    await asyncio.sleep(min(PACE_S_MAX, len(self.followers) * LISTENER_S))
        except Exception as error:  # each follower raises it
            self.error = error
        finally:
            self._wake()

    async def _add(self, piece: _Piece) -> None:
        self.pieces.append(piece)
        self._bytes += len(piece.chunk)
        self._wake()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        while self._bytes > TAIL_BYTES and len(self.pieces) > 1:
            if loop.time() < until_s and any(each.number == self.first for each in self.followers):
                await asyncio.sleep(0.01)
                continue
            self._bytes -= len(self.pieces.popleft().chunk)
            self.first += 1

    def _wake(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


class Follower:
    """A stream of a tail. `number`: of the piece that it takes next."""

    buffer_bytes = WRITE_BUFFER_BYTES

    def __init__(self, tail: Tail, number: int) -> None:
        self._tail = tail
        self.number = number
        self._id = tail.id if number == tail.next else tail.pieces[number - 1 - tail.first].id

    @property
    def id(self) -> bytes:
        return self._tail.id if self.number == self._tail.next else self._id

    def places(self) -> dict[int, int]:
        return self._tail.places()

    async def next(self, timeout_s: float) -> bytes:
        tail = self._tail
        if self.number == tail.next and tail.error is None:
            try:
                async with asyncio.timeout(timeout_s):
                    await tail.news.wait()
            except TimeoutError:
                return b""
        if self.number < tail.first:
            raise Behind
        if self.number < tail.next:
            piece = tail.pieces[self.number - tail.first]
            self.number, self._id = self.number + 1, piece.id
            return piece.chunk
        if tail.error is not None:
            raise tail.error.with_traceback(None)
        return b""


_tails: WeakKeyDictionary[Caller, dict[_Wanted, Tail]] = WeakKeyDictionary()
"""By credential: what one caller may read goes to no other one."""


@asynccontextmanager
async def _following(
    call: Call, topic: TopicDescription, wanted: _Wanted, start: Any
) -> AsyncIterator[Follower | None]:
    """Yield a follower at the stream's place; None: no tail has this place, and it is not the end of the topic."""
    tails, is_latest = _tails.setdefault(call.caller, {}), start == "latest"
    tail = tails.get(wanted)
    if is_latest and (tail is None or tail.error is not None):
        tail = tails[wanted] = Tail()
        opening = tail.open(call, topic, wanted, start)  # it outlives this request, so it says nothing of its client
        tail.opened = asyncio.create_task(opening, name="open a tail", context=Context())
    if tail is None or tail.error is not None or not (is_latest or isinstance(start, dict)):
        yield None
        return
    follower = None
    tail.users += 1
    try:
        await shared(tail.opened, "the read of an event stream")
        number = tail.next if is_latest else tail.number_at(b"id: " + cursor_of(topic.topic_id, start).encode() + b"\n")
        if number is not None:
            call.share.take(2 * WRITE_BUFFER_BYTES)
            follower = Follower(tail, number)
            tail.followers.add(follower)
        yield follower
    finally:
        tail.followers -= {follower}
        tail.users -= 1
        if not tail.users:
            if tails.get(wanted) is tail:
                del tails[wanted]
            await tail.close()


def _data(messages: list[Message], form: str) -> bytes:
    """Return the events; the last one has no end, so that the cursor can follow."""
    lines = [b"data: " + record_json(message, form) + b"\n" for message in messages]
    return b"\n".join(lines)


def _id(topic: TopicDescription, consumer: Consumer) -> bytes:
    offsets = _places_of(consumer)
    if len(offsets) > PARTITIONS_MAX:  # the topic has grown: its reader must name partitions
        raise InvalidConfig("the topic has more partitions now than fit into a cursor: name them")
    return b"id: " + cursor_of(topic.topic_id, offsets).encode() + b"\n"


def _places_of(consumer: Consumer) -> dict[int, int]:
    return {at.partition: offset for at, offset in consumer.positions().items()}
