"""The standalone consumer: reads partitions of topics, and keeps its own positions.

This module decides which partitions are read, and where reading begins and ends; `Reader` reads
them. The consumer of a group is `client.groups.group_consumer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar

import pyarrow as pa

from ledgermq.client.consuming.message import TABLE_SCHEMA, Message, messages_as, opened
from ledgermq.client.consuming.reader import FilterCounts, Reader
from ledgermq.client.consuming.reading import Reading
from ledgermq.client.consuming.start import Position, Start, Wanted, check_known, check_position, check_start, wishes
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition, check_partition
from ledgermq.client.messages.expiry import Expiry
from ledgermq.client.settings.serializers import V
from ledgermq.client.settings.values import ConsumerSettings
from ledgermq.errors import (
    Closed,
    DeadlineExceeded,
    InvalidConfig,
    LedgerMQError,
    OffsetOutOfRange,
    Unavailable,
    UnknownPartition,
)
from ledgermq.runtime.shared_start import SharedStart
from ledgermq.runtime.wait import wait_until

T = TypeVar("T")

END_LOOK_S = 1.0
"""How often a waiting consumer checks whether it has reached its end: deleted records below the
end never arrive as messages.
"""

State = Literal["new", "running", "failing", "draining", "closed"]


class Consumer(Generic[V]):
    """A consumer without a group, made by `client.consumer(…)`. Use it within one task. `async
    for`, `fetch` and `fetch_arrow` may be mixed.

    Calls that wait for messages raise: errors of a partition that do not pass with time
    (OffsetOutOfRange, UnknownTopic, SubscribeNotAccepted, DataDamaged); CorruptFrame for a batch
    that fails its checks; Unavailable when no broker has served a partition for
    `request_timeout_s`. The consumer stays usable: the next call continues.
    """

    def __init__(
        self,
        context: ClientContext,
        topics: Sequence[str],
        partitions: Sequence[int] | None,
        start: Start,
        end: Start | None,
        settings: ConsumerSettings,
    ) -> None:
        if not topics:
            raise InvalidConfig("a consumer needs at least one topic name")
        self.settings = settings
        self._connections = context.connections
        self._home = context.connections.home
        self._routing = context.routing
        self._offsets = context.offsets
        self._topics = list(dict.fromkeys(topics))
        self._partitions = None if partitions is None else list(dict.fromkeys(partitions))
        self._start = check_start(start, self._topics, context.connections.now())
        self._end = None if end is None else check_start(end, self._topics, context.connections.now(), "end")
        self._by_partition: dict[TopicPartition, Reading] = {}
        reset = None if settings.auto_offset_reset == "error" else settings.auto_offset_reset
        self._kind = opened(Message, settings.deserializer, settings.interceptors, context.replier)
        self._reader: Reader[Message] = Reader(
            context,
            settings,
            out_of_range=reset,
            check=self._check,
            messages_of=self._messages_of,
            expired=self._skipped,
            on_route=self._add_partitions,
        )
        self._reader.interrupted = lambda: self._draining
        self._starting = SharedStart(self._begin)
        self._expiry = Expiry(context.routing.ttl_of, context.sources.now_us)
        self._expired = 0
        self.closed = False
        self._draining = False
        self._asking: asyncio.Task[object] | None = None
        """The task that last called for messages."""
        self._idle = asyncio.Event()
        """Set while the program has no messages to finish: it waits for some, or has ended."""
        self._idle.set()

    # -- state

    @property
    def state(self) -> State:
        """The state of the consumer. failing: a partition is not served at present; `last_error`
        says why. draining: `drain` was called.
        """
        if self.closed:
            return "closed"
        if self._draining:
            return "draining"
        if not self._reader.started:
            return "new"
        return "failing" if self.last_error is not None else "running"

    @property
    def last_error(self) -> LedgerMQError | None:
        """Return the error of the partition that has failed for longest; None: all are served."""
        return self._reader.last_error

    @property
    def expired(self) -> int:
        """Return the number of messages that were skipped because they had expired."""
        return self._expired

    @property
    def filtered(self) -> int:
        """Return the number of messages that the filter has left out."""
        return self._reader.filter_counts.messages

    @property
    def filter_counts(self) -> FilterCounts:
        """Return what the filter has left out, and how much of it was fetched in vain."""
        return self._reader.filter_counts

    @property
    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read; empty before `wait_ready`."""
        return [reading.partition for reading in self._reader.readings]

    @property
    def at_end(self) -> bool:
        """Return whether everything before `end` was returned to the program.

        False without an end, and before `wait_ready` or the first call for messages.
        """
        return (
            self._end is not None
            and self._reader.started
            and all(_is_over(reading) for reading in self._reader.readings)
        )

    async def wait_ready(self) -> None:
        """Look up the partitions and the start positions, once.

        Raises UnknownTopic, UnknownPartition, Unavailable, …
        """
        await self._ready()

    async def _ready(self, deadline: float | None = None) -> None:
        """As `wait_ready`; raise Unavailable at `deadline`, or after one second, whichever is later."""
        self._check()
        self._reader.raise_if_dead()
        if not await self._starting.wait(deadline):
            raise Unavailable(f"no broker has described {', '.join(self._topics)} in time; the consumer goes on trying")

    def _check(self) -> None:
        self._home.check()
        if self.closed:
            raise Closed("the consumer is closed")

    async def _begin(self) -> None:
        deadline = self._connections.deadline(self.settings.request_timeout_s)
        chosen: dict[TopicPartition, int] = {}
        for topic in self._topics:
            route = await self._routing.refresh(topic, deadline)
            for number in range(route.partitions) if self._partitions is None else self._partitions:
                chosen[TopicPartition(topic, check_partition(number, route.partitions, topic))] = route.topic_id
        check_known(self._start, chosen)
        positions = await self._resolve(wishes(self._start, chosen), deadline)
        ends: dict[TopicPartition, int] = {}
        if self._end is not None:
            check_known(self._end, chosen, "end")
            ends = await self._resolve(wishes(self._end, chosen, otherwise="latest"), deadline)
            positions |= await self._within_logs(deadline)
        for partition, topic_id in chosen.items():
            self._add(partition, topic_id, positions[partition])
            self._by_partition[partition].end = ends.get(partition)
        self._reader.start()

    async def _resolve(self, wanted: dict[TopicPartition, Position], deadline: float) -> dict[TopicPartition, int]:
        known = {partition: position for partition, position in wanted.items() if isinstance(position, int)}
        asked = {partition: position for partition, position in wanted.items() if not isinstance(position, int)}
        return known | await self._offsets.find(asked, deadline)

    async def _within_logs(self, deadline: float) -> dict[TopicPartition, int]:
        """Return other positions for starts above the ends of their logs, where nothing would be fetched that a
        broker could refuse. Raises OffsetOutOfRange, as a broker would.
        """
        given = dict(self._start) if isinstance(self._start, Mapping) else {}
        ends = await self._offsets.find(dict.fromkeys(given, "latest"), deadline)
        above = [partition for partition, offset in given.items() if offset > ends[partition]]
        reset = self.settings.auto_offset_reset
        if above and reset == "error":
            raise OffsetOutOfRange(f"{above[0]}: offset {given[above[0]]} is above the log's end {ends[above[0]]}")
        return await self._offsets.find(dict.fromkeys(above, "latest" if reset == "latest" else "earliest"), deadline)

    def _add(self, partition: TopicPartition, topic_id: int, position: int) -> None:
        self._by_partition[partition] = self._reader.add(partition, topic_id, position)

    def _add_partitions(self, topic: str) -> None:
        """Read the new partitions of a topic that has grown, from their beginning."""
        route = self._routing.known(topic)
        if route is None or self._partitions is not None or self._end is not None:
            return
        for number in range(route.partitions):
            partition = TopicPartition(topic, number)
            if partition not in self._by_partition:
                self._add(partition, route.topic_id, 0)

    # -- reading

    async def fetch(self, max_records: int = 500, timeout: float = 1.0) -> list[Message[V]]:  # noqa: ASYNC109  the name that users of consumers expect
        """Return up to `max_records` messages as soon as there is one; an empty list after
        `timeout` seconds, or at the end. The first call takes one second at least if no broker answers,
        and then raises Unavailable.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        await self._ask(deadline)
        while not self._is_over():
            messages = await self._reader.fetch(max_records, deadline)
            if messages or asyncio.get_running_loop().time() >= deadline:
                return self._handed(messages, len(messages))
        return []

    async def fetch_arrow(self, max_records: int = 100_000, timeout: float = 1.0) -> pa.Table:  # noqa: ASYNC109
        """Return messages like `fetch`, as a table: key, value, topic, partition, offset,
        timestamp, timestampType, headers, tag.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        await self._ask(deadline)
        while not self._is_over():
            table = await self._reader.fetch_arrow(max_records, deadline)
            if table.num_rows or asyncio.get_running_loop().time() >= deadline:
                return self._handed(table, table.num_rows)
        return TABLE_SCHEMA.empty_table()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message[V]:
        """Return the next message, waiting for it. The iteration ends at `end`, and when the consumer is drained."""
        if self._home.left:
            self._home.check()
        run = self._reader.run
        while run is None or (message := run.take_one()) is None:
            await self._ask()
            if self._is_over():
                raise StopAsyncIteration
            run = await self._reader.next_run(
                None if self._end is None else asyncio.get_running_loop().time() + END_LOOK_S
            )
            self._handed(run, run is not None)
        return message

    async def _ask(self, deadline: float | None = None) -> None:
        """Begin to wait for messages: the program has finished those that it has."""
        self._idle.set()
        self._asking = asyncio.current_task()
        await self._ready(deadline)

    def _handed(self, found: T, count: int) -> T:
        """Return what was found; if it is something, the program has messages to finish."""
        if count:
            self._idle.clear()
        return found

    async def drain(self, timeout: float = 30.0) -> None:  # noqa: ASYNC109  as GroupConsumer.drain
        """Hand out no further messages, and wait until the program has finished those that it has: until it
        asks for the next one. `fetch` returns nothing from now on, and `async for` ends; `positions` says where
        to go on.

        If the task that calls for messages calls this, everything returned to it counts as finished. Raises
        DeadlineExceeded after `timeout` seconds.
        """
        self._check()
        self._draining = True
        for reading in self._reader.readings:
            self._reader.pause(reading)
        self._reader.wake()
        asking = self._asking
        if asking is None or asking.done() or asking is asyncio.current_task():
            return
        if not await wait_until(self._idle, asyncio.get_running_loop().time() + timeout):
            raise DeadlineExceeded(f"the program has not finished its messages within {timeout} s")

    def _skipped(self, reading: Reading, rows: pa.RecordBatch, offsets: Sequence[int]) -> None:
        self._expired += rows.num_rows

    def expire(self, message: Message) -> bool:
        """Return whether a message has expired since it was returned, and count it then. For `ledgermq.sync`."""
        is_over = not self.settings.deliver_expired and self._expiry.is_over(
            message.topic, message.headers, message.timestamp_us
        )
        self._expired += is_over
        return is_over

    def _is_over(self) -> bool:
        """Return whether nothing more comes, and stop fetching partitions that have reached
        theirs.
        """
        for reading in self._reader.readings if self._end is not None else ():
            if _is_over(reading):
                self._reader.pause(reading)  # has no effect on later calls
        return self._draining or self.at_end

    # -- positions

    async def seek(self, position: Wanted, partition: int | None = None, topic: str | None = None) -> None:
        """Move to an offset, "earliest", "latest", a time, or an age like "15m", in one partition
        or, with `partition=None`, in all.

        `topic` may be left out when there is only one. Raises InvalidConfig, UnknownPartition,
        Unavailable.
        """
        wanted = check_position(position, self._connections.now())
        await self.wait_ready()
        chosen = self._chosen(partition, topic)
        positions = await self._resolve(
            {reading.partition: wanted for reading in chosen},
            self._connections.deadline(self.settings.request_timeout_s),
        )
        for reading in chosen:
            self._reader.resume(reading)
        self._reader.seek((reading, positions[reading.partition]) for reading in chosen)

    def position(self, partition: int, topic: str | None = None) -> int:
        """Return the offset of the partition's next message; call it after `wait_ready` or the first message.

        Raises UnknownPartition.
        """
        return self._chosen(partition, topic)[0].position

    def positions(self) -> dict[TopicPartition, int]:
        return {reading.partition: reading.position for reading in self._reader.readings}

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the next offset to be written in each partition. When all positions have reached
        these offsets, the program has read everything written before this call.
        """
        await self.wait_ready()
        deadline = self._connections.deadline(self.settings.request_timeout_s)
        return await self._offsets.find({reading.partition: "latest" for reading in self._reader.readings}, deadline)

    def _chosen(self, partition: int | None, topic: str | None) -> list[Reading]:
        if topic is None and partition is not None and len(self._topics) > 1:
            raise InvalidConfig(f"the consumer reads {', '.join(self._topics)}: name the topic")
        chosen = [
            reading
            for reading in self._reader.readings
            if partition in (None, reading.partition.partition) and topic in (None, reading.partition.topic)
        ]
        if not chosen:
            raise UnknownPartition(f"the consumer does not read {topic or self._topics[0]}/{partition}")
        return chosen

    def _messages_of(self, reading: Reading, rows: pa.RecordBatch, offsets: Sequence[int]) -> list[Message]:
        return messages_as(self._kind, rows, *reading.partition, offsets)

    # -- end

    async def close(self) -> None:
        self._home.check()
        self.closed = True
        await self._starting.close()
        await self._reader.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _is_over(reading: Reading) -> bool:
    return reading.end is not None and reading.position >= reading.end


def decoded_bytes_of(consumer: Consumer) -> int:
    """Return what the decoded batch takes in memory from which a consumer returns messages now."""
    run = consumer._reader.run
    return 0 if run is None else run.held_bytes
