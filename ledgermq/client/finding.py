"""Look messages up by their key or their id: the calls of `client.find` and `client.describe_message`.

The owner of a partition searches a bounded part of its log in each call, and says what is left
(`ledgermq_broker.paths.find_path`); the client repeats the call. So nothing is cut silently: a search ends when all
of its range is searched, when it has returned `max` messages, or by SearchStopped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, cast

from ledgermq.client.connection.routing import AtOwners
from ledgermq.client.consuming.described import MessageDescription, description_of
from ledgermq.client.consuming.message import Message, messages_of
from ledgermq.client.consuming.start import Position, Wanted, check_known, check_position, check_start, wishes
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition, check_partition
from ledgermq.client.messages.message_id import MessageId
from ledgermq.client.messages.record import as_bytes
from ledgermq.client.settings.partitioner import partition_of_key
from ledgermq.errors import (
    CorruptFrame,
    InvalidConfig,
    InvalidRequest,
    LedgerMQError,
    NotOwner,
    OffsetOutOfRange,
    ResourceExhausted,
    RetriableError,
    SearchStopped,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.batches.records import decode_batch

MAX = 64
"""Messages that a search returns, unless the program asks for more."""
BYTES_MAX = 1024 * 1024 * 1024
TIMEOUT_S = 60.0

GivenKey = bytes | bytearray | memoryview | str
Place = Wanted | Mapping[int, int]
"""Where a search begins or ends: as `start` of a consumer, and an offset, if one partition is searched."""
Partitions = Iterable[int] | Literal["key", "all"]
Order = Literal["newest", "oldest"]


class Search:
    """A search, made by `client.find`. Iterate over it once: `async for message in search`, or call `all`.

    At its end, `stopped` says whether `max` messages were returned before all was searched, and `rest` where
    to go on.
    """

    def __init__(
        self,
        finding: Finding,
        topic: str,
        key: bytes | None,
        message_id: MessageId | None,
        partitions: Partitions,
        start: Place,
        end: Place,
        messages_max: int,
        order: Order,
        bytes_max: int,
        timeout_s: float,
    ) -> None:
        self.topic = topic
        self.key = key
        self.partitions: tuple[int, ...] = ()
        """The partitions that are searched, in this order; known when the first message comes."""
        self.searched = 0
        """Number of offsets that were searched so far."""
        self.read_bytes = 0
        """What brokers have read for it so far, from memory and from the store."""
        self.requests = 0
        """Number of calls so far."""
        self._finding = finding
        self._id = message_id
        self._chosen = partitions
        self._bounds = (start, end)
        self._left_max = messages_max
        self._order = order
        self._bytes_max = bytes_max
        self._timeout_s = timeout_s
        self._deadline: float | None = None
        self._left: dict[int, tuple[int, int]] = {}
        self._ready: deque[Message] = deque()
        self._is_begun = False

    @property
    def stopped(self) -> bool:
        """Return whether something is left to search."""
        return bool(self._left)

    @property
    def rest(self) -> dict[str, Any]:
        """Return what is left to search, as arguments of `client.find`: partitions, start and end."""
        first = {partition: span[0] for partition, span in self._left.items()}
        return {"partitions": [*self._left], "start": first, "end": {at: span[1] for at, span in self._left.items()}}

    async def all(self) -> list[Message]:
        """Return all messages. Raises what iterating raises; SearchStopped has those that were found before."""
        return await self._some(2**63)

    async def _some(self, room: int) -> list[Message]:  # for the gateway: whole answers, until so many bytes
        found: list[Message] = []
        try:
            async for message in self:
                found.append(message)
                if (room := room - len(message.value or b"") - len(message.key or b"")) <= 0 and not self._ready:
                    break
        except SearchStopped as stopped:
            stopped.found = found
            raise
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message. Raises SearchStopped, OffsetOutOfRange (by id), UnknownTopic,
        UnknownPartition, InvalidRequest, Unauthorized, Unavailable, DataDamaged.
        """
        if not self._is_begun:
            self._is_begun = True
            await self._begin()
        while not self._ready:
            if not self._left or self._left_max <= 0:
                raise StopAsyncIteration
            await self._next()
        self._left_max -= 1
        return self._ready.popleft()

    async def _begin(self) -> None:
        self._deadline = asyncio.get_running_loop().time() + self._timeout_s
        if self._id is not None:
            self.partitions = (self._id.partition,)
            self._ready.append((await self._finding.describe(self._id)).message)
            self.requests, self.searched, self._left_max = 1, 1, 1
            return
        assert self.key is not None, "one of both was given"
        spans = await self._finding.spans(self.topic, self.key, self._chosen, *self._bounds)
        self.partitions = tuple(spans)
        self._left = {partition: span for partition, span in spans.items() if span[0] < span[1]}

    async def _next(self) -> None:
        """Search on in the first partition that is not finished."""
        assert self._deadline is not None, "it has begun"
        self._check_bounds(self._deadline)
        partition, (first, end) = next(iter(self._left.items()))
        request = pb.FindMessagesRequest(
            topic=self.topic,
            partition=partition,
            key=self.key,
            first=first,
            end=end,
            oldest_first=self._order == "oldest",
            max_messages=self._left_max,
            max_read_bytes=self._bytes_max - self.read_bytes,
        )
        try:
            answer = await self._finding.ask(request, self._deadline)
        except RetriableError as error:
            if asyncio.get_running_loop().time() < self._deadline:
                raise
            raise self._stopped(f"{error.message} ({self._timeout_s:g} s have passed: timeout)") from error
        self.requests += 1
        self.read_bytes += answer.read_bytes
        found = _messages(answer, self.topic, partition)
        left = self._checked(answer, found, first, end)
        self.searched += (end - first) - (left[1] - left[0])
        if left[0] < left[1]:
            self._left[partition] = left
        else:
            del self._left[partition]
        self._ready.extend(found)

    def _check_bounds(self, deadline: float) -> None:
        if self.read_bytes >= self._bytes_max:
            raise self._stopped(f"{self.read_bytes} bytes were read (bytes_max)")
        if asyncio.get_running_loop().time() >= deadline:
            raise self._stopped(f"{self._timeout_s:g} s have passed (timeout)")

    def _stopped(self, why: str) -> SearchStopped:
        spans = ", ".join(f"{at}: {first} to {end - 1}" for at, (first, end) in self._left.items())
        stopped = SearchStopped(
            f"the search in topic {self.topic!r} stopped after {self.searched} offsets, because {why}; offsets left by"
            f" partition: {spans}. Go on with client.find(…, **error.rest), or raise the bound"
        )
        stopped.rest = self.rest
        return stopped

    def _checked(
        self, answer: pb.FindMessagesResponse, found: Sequence[Message], first: int, end: int
    ) -> tuple[int, int]:
        """Return what is left. Raises CorruptFrame for messages that were not asked for, and for an answer that
        leaves all to search.
        """
        if len(found) > self._left_max or any(
            message.key != self.key or not first <= message.offset < end for message in found
        ):
            raise CorruptFrame(f"a broker answered a look-up in topic {self.topic!r} with other messages")
        left = (max(first, answer.left_first), min(end, answer.left_end))
        if left[0] >= left[1]:
            return first, first
        if left == (first, end) and not answer.messages:
            raise CorruptFrame(f"a broker searched nothing of offsets {first} to {end - 1} of topic {self.topic!r}")
        return left


class Finding:
    """The calls of `client.find` and `client.describe_message`."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    def search(
        self,
        topic: str | None,
        key: GivenKey | None,
        wanted_id: str | MessageId | None,
        start: Place,
        end: Place,
        messages_max: int,
        partitions: Partitions,
        order: Order,
        bytes_max: int,
        timeout_s: float,
    ) -> Search:
        """See `Client.find`."""
        if (key is None) is (wanted_id is None):
            raise InvalidRequest("a search needs a key or an id: give one of them")
        if order not in ("newest", "oldest"):
            raise InvalidConfig(f"order must be 'newest' or 'oldest', not {order!r}")
        for most, given in (("max", messages_max), ("bytes_max", bytes_max)):
            if type(given) is not int or given < 1:
                raise InvalidConfig(f"{most} must be at least 1, not {given!r}")
        if not timeout_s > 0:
            raise InvalidConfig(f"timeout must be above 0 seconds, not {timeout_s!r}")
        message_id = None if wanted_id is None else id_of(wanted_id)
        if message_id is not None and topic not in (None, message_id.topic):
            raise InvalidRequest(f"message {message_id} is of topic {message_id.topic!r}, not {topic!r}")
        name = topic if message_id is None else message_id.topic
        if not isinstance(name, str):
            raise InvalidRequest("a search by key needs the topic")
        raw = None if key is None else as_bytes("key", key)
        return Search(
            self, name, raw, message_id, partitions, start, end, messages_max, order, bytes_max, float(timeout_s)
        )

    async def describe(self, message_id: MessageId) -> MessageDescription:
        """See `Client.describe_message`."""
        topic, partition, offset = message_id
        answer = await self.ask(pb.FindMessagesRequest(topic=topic, partition=partition, offset=offset))
        found = _messages(answer, topic, partition)
        if not found:
            raise OffsetOutOfRange(
                f"message {message_id} was cleaned: topic {topic!r} keeps the latest message of each key only"
            )
        return description_of(found[0], answer.messages[0])

    async def ask(self, request: pb.FindMessagesRequest, deadline: float | None = None) -> pb.FindMessagesResponse:
        """Call the owner. `deadline`: a time of the loop's clock; the client's `timeout_s` bounds it, too.

        Raises UnknownTopic, UnknownPartition, OffsetOutOfRange, Unauthorized, Unavailable, DataDamaged,
        InvalidRequest from a broker of a release without look-up.
        """

        async def ask(
            at: BrokerApi, partitions: Sequence[TopicPartition]
        ) -> list[pb.FindMessagesResponse | LedgerMQError]:
            try:
                return [await at.find_messages(request)]
            except (NotOwner, ResourceExhausted) as error:
                return [error]

        partition = TopicPartition(request.topic, request.partition)
        connections = self._context.connections
        owners = AtOwners(connections, self._context.routing, ask)
        until = connections.deadline() if deadline is None else min(deadline, connections.deadline())
        return (await owners.find([partition], until))[partition]

    async def spans(
        self, topic: str, key: bytes, partitions: Partitions, start: Place, end: Place
    ) -> dict[int, tuple[int, int]]:
        """Return the offsets to search by partition. Raises InvalidConfig, UnknownPartition, UnknownTopic,
        Unavailable.
        """
        deadline = self._context.connections.deadline()
        count = (await self._context.routing.refresh(topic, deadline)).partitions
        chosen = _chosen(partitions, key, count, topic)
        wanted = [TopicPartition(topic, partition) for partition in chosen]
        firsts = await self._resolve("start", start, wanted, "earliest", deadline)
        ends = await self._resolve("end", end, wanted, "latest", deadline)
        return {at.partition: (firsts[at], ends[at]) for at in wanted}

    async def _resolve(
        self,
        name: str,
        given: Place,
        wanted: Sequence[TopicPartition],
        otherwise: Literal["earliest", "latest"],
        deadline: float,
    ) -> Mapping[TopicPartition, int]:
        now = self._context.connections.now()
        topic = wanted[0].topic
        if type(given) is int and len(wanted) == 1:
            given = {wanted[0].partition: cast(int, check_position(given, now))}
        places = check_start(given, [topic], now, name)
        check_known(places, wanted, name)
        positions: dict[TopicPartition, Position] = wishes(places, wanted, otherwise)
        known = {at: position for at, position in positions.items() if isinstance(position, int)}
        asked = {at: position for at, position in positions.items() if not isinstance(position, int)}
        return known | await self._context.offsets.find(asked, deadline)


def id_of(given: str | MessageId) -> MessageId:
    """Return the id that a program gives. Raises InvalidRequest."""
    return given if isinstance(given, MessageId) else MessageId.parse(given)


def _chosen(partitions: Partitions, key: bytes, count: int, topic: str) -> Sequence[int]:
    if partitions == "key":
        return [partition_of_key(key, count)]
    if partitions == "all":
        return range(count)
    given: object = partitions
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise InvalidConfig(f"partitions must be 'key', 'all' or numbers, not {partitions!r}")
    chosen = sorted({check_partition(partition, count, topic) for partition in partitions})
    if not chosen:
        raise InvalidConfig("partitions names none: give at least one, or 'all'")
    return chosen


def _messages(answer: pb.FindMessagesResponse, topic: str, partition: int) -> list[Message]:
    if not answer.messages:
        return []
    rows = decode_batch(answer.batch)
    if rows.num_rows != len(answer.messages):
        raise CorruptFrame(f"a look-up answered {rows.num_rows} records for {len(answer.messages)} offsets")
    return messages_of(rows, topic, partition, [found.offset for found in answer.messages])
