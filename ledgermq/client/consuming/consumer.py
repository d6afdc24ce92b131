"""The consumer: what programs call to read partitions. The consumer keeps its positions itself; groups are another matter.

Owners, redirects and dead brokers are the fetcher's business; here is what was fetched, decoded batch by batch, in each partition's order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self

import pyarrow as pa

from ledgermq.client.connections import Connections
from ledgermq.client.consuming.fetcher import Fetcher
from ledgermq.client.consuming.message import TABLE_SCHEMA, Message, decode_run, messages_of, table_of
from ledgermq.client.consuming.reading import Prefetch, Reading
from ledgermq.client.consuming.start import Position, Start, check_position, check_start, wishes
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.ending import end
from ledgermq.client.offsets import Offsets
from ledgermq.client.partitioner import checked
from ledgermq.client.routing import Routing
from ledgermq.client.settings import ConsumerSettings
from ledgermq.errors import InvalidConfig, LedgerMQError, Unavailable, UnknownPartition

State = Literal["new", "running", "failing", "closed"]


class Consumer:
    """Made by `client.consumer(…)`. Use within one task. `async for`, `fetch` and `fetch_arrow` may be mixed.

    Calls that wait for messages raise: what the cluster says of a partition and time does not cure (OffsetOutOfRange, UnknownTopic,
    SubscribeNotAccepted, DataDamaged), CorruptFrame for a batch that fails its checks, Unavailable when no broker has served a partition
    for `request_timeout_s`. The consumer stays usable: the next call goes on.
    """

    def __init__(
        self,
        connections: Connections,
        routing: Routing,
        offsets: Offsets,
        topics: Sequence[str],
        partitions: Sequence[int] | None,
        start: Start,
        settings: ConsumerSettings,
    ) -> None:
        if not topics:
            raise InvalidConfig("a consumer needs the names of one topic or more")
        self.settings = settings
        self._connections = connections
        self._routing = routing
        self._offsets = offsets
        self._topics = list(dict.fromkeys(topics))
        self._partitions = None if partitions is None else list(dict.fromkeys(partitions))
        self._start = check_start(start, self._topics)
        self._readings: list[Reading] = []
        self._by_partition: dict[TopicPartition, Reading] = {}
        self._prefetch = Prefetch(settings.prefetch_bytes_max)
        self._fetcher = Fetcher(connections, routing, offsets, self._readings, self._prefetch, settings, self._add_partitions)
        self._background: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self.closed = False
        self._run: _DecodedRun | None = None

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """failing: some partition is not served at present; `last_error` says why."""
        if self.closed:
            return "closed"
        if self._background is None:
            return "new"
        return "failing" if self.last_error is not None else "running"

    @property
    def last_error(self) -> LedgerMQError | None:
        """Of the partition that fails the longest; None: all are served."""
        failing = [reading for reading in self._readings if reading.failing_since_s is not None]
        return min(failing, key=lambda reading: reading.failing_since_s or 0.0).last_error if failing else None

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read; empty before `wait_ready`."""
        return [reading.partition for reading in self._readings]

    async def wait_ready(self) -> None:
        """Find the partitions and where to begin, once. Raises UnknownTopic, UnknownPartition, Unavailable, …"""
        if self.closed:
            raise Unavailable("the consumer is closed")
        if self._background is None:
            async with self._starting:
                if self._background is None:
                    await self._begin()
        elif self._background.done():
            raise LedgerMQError("the consumer's background task failed") from self._background.exception()

    async def _begin(self) -> None:
        deadline = self._connections.deadline(self.settings.request_timeout_s)
        chosen: dict[TopicPartition, int] = {}
        for topic in self._topics:
            route = await self._routing.refresh(topic, deadline)
            for number in range(route.partitions) if self._partitions is None else self._partitions:
                chosen[TopicPartition(topic, checked(number, route.partitions, topic))] = route.topic_id
        positions = await self._resolve(wishes(self._start, chosen), deadline)
        for partition, topic_id in chosen.items():
            self._add(partition, topic_id, positions[partition])
        self._background = asyncio.get_running_loop().create_task(self._fetcher.run(), name="ledgermq consumer")
        self._background.add_done_callback(lambda _: self._prefetch.changed.set())

    async def _resolve(self, wanted: dict[TopicPartition, Position], deadline: float) -> dict[TopicPartition, int]:
        known = {partition: position for partition, position in wanted.items() if isinstance(position, int)}
        asked = {partition: position for partition, position in wanted.items() if not isinstance(position, int)}
        return known | await self._offsets.find(asked, deadline)

    def _add(self, partition: TopicPartition, topic_id: int, position: int) -> None:
        reading = Reading(partition, topic_id, position, self._connections.backoff())
        self._readings.append(reading)
        self._by_partition[partition] = reading

    def _add_partitions(self, topic: str) -> None:
        """A topic has grown: its new partitions are read from their beginning."""
        route = self._routing.known(topic)
        if route is None or self._partitions is not None:
            return
        for number in range(route.partitions):
            partition = TopicPartition(topic, number)
            if partition not in self._by_partition:
                self._add(partition, route.topic_id, 0)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def fetch(self, max_records: int = 500, timeout: float = 1.0) -> list[Message]:  # noqa: ASYNC109  the name that users of consumers expect
        """Up to `max_records` messages; as soon as there is one, or an empty list after `timeout` seconds."""
        messages: list[Message] = []
        if max_records < 1:
            raise InvalidConfig(f"max_records is 1 or more, not {max_records}")
        await self._wait_for_run(timeout)
        while len(messages) < max_records and (run := self._current(wait_for_error=bool(messages))) is not None:
            messages += run.take(max_records - len(messages))
        return messages

    async def fetch_arrow(self, max_records: int = 100_000, timeout: float = 1.0) -> pa.Table:  # noqa: ASYNC109
        """As `fetch`, as a table: key, value, topic, partition, offset, timestamp, timestampType, headers, tag."""
        batches: list[pa.RecordBatch] = []
        count = 0
        if max_records < 1:
            raise InvalidConfig(f"max_records is 1 or more, not {max_records}")
        await self._wait_for_run(timeout)
        while count < max_records and (run := self._current(wait_for_error=bool(batches))) is not None:
            batches.append(run.take_arrow(max_records - count))
            count += batches[-1].num_rows
        return pa.Table.from_batches(batches, schema=TABLE_SCHEMA)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message, whenever it comes."""
        run = self._run
        if run is None or run.spent:
            while (run := await self._wait_for_run(None)) is None:
                pass
        return run.take_one()

    async def _wait_for_run(self, timeout_s: float | None) -> _DecodedRun | None:
        """None: the time is up. Raises what the program has to be told, when nothing is there to read."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        await self.wait_ready()
        while True:
            self._prefetch.changed.clear()
            if (run := self._current()) is not None:
                return run
            self._raise_trouble(loop.time())
            if deadline is not None and loop.time() >= deadline:
                return None
            try:
                async with asyncio.timeout_at(self._next_look(deadline)):
                    await self._prefetch.changed.wait()
            except TimeoutError:
                pass

    def _next_look(self, deadline: float | None) -> float | None:
        """When to stop waiting: at the deadline, or when a partition has failed for too long."""
        moments = [r.failing_since_s + self.settings.request_timeout_s + 0.001 for r in self._readings if r.failing_since_s is not None]
        moments.append(asyncio.get_running_loop().time() + self.settings.request_timeout_s)
        return min([*moments, deadline] if deadline is not None else moments)

    def _raise_trouble(self, now_s: float) -> None:
        if self.closed:
            raise Unavailable("the consumer is closed")
        if self._background is not None and self._background.done():
            raise LedgerMQError("the consumer's background task failed") from self._background.exception()
        for reading in self._readings:
            if reading.refusal is not None:
                refusal, reading.refusal = reading.refusal, None
                raise refusal
        for reading in self._readings:
            since_s = reading.failing_since_s
            if since_s is not None and now_s - since_s > self.settings.request_timeout_s:
                reading.failing_since_s = now_s
                name = f"{reading.partition.topic}/{reading.partition.partition}"
                raise Unavailable(f"{name} was not served for {now_s - since_s:.1f} s: {reading.last_error}") from reading.last_error

    def _current(self, *, wait_for_error: bool = False) -> _DecodedRun | None:
        """The batch to take from. A damaged one raises, each time, until the program seeks past it; but good messages first."""
        if self._run is not None and not self._run.spent:
            return self._run
        self._run = None
        while (fetched := self._prefetch.head()) is not None:
            reading = fetched.reading
            where = f"{reading.partition.topic}/{reading.partition.partition}, offsets {fetched.base_offset} to "
            where += str(fetched.base_offset + fetched.record_count - 1)
            try:
                rows = decode_run(fetched.data, fetched.crc, fetched.record_count, self.settings.decoded_bytes_max, where)
            except LedgerMQError:
                if wait_for_error:
                    return None
                raise
            self._prefetch.pop()
            skip = max(0, reading.position - fetched.base_offset)
            if skip < rows.num_rows:
                self._run = _DecodedRun(reading, rows.slice(skip), fetched.base_offset + skip)
                return self._run
        return None

    # -- positions -----------------------------------------------------------------------------------------------------

    async def seek(self, position: Position, partition: int | None = None, topic: str | None = None) -> None:
        """Go to an offset, "earliest", "latest" or a time, in one partition or, with `partition=None`, in all.

        `topic` may be left out when there is only one. Raises InvalidConfig, UnknownPartition, Unavailable.
        """
        wanted = check_position(position)
        await self.wait_ready()
        chosen = self._chosen(partition, topic)
        positions = await self._resolve(
            {reading.partition: wanted for reading in chosen}, self._connections.deadline(self.settings.request_timeout_s)
        )
        for reading in chosen:
            reading.seek(positions[reading.partition])
            self._fetcher.moved(reading)
            if self._run is not None and self._run.reading is reading:
                self._run = None
        self._prefetch.drop_unwanted()

    def position(self, partition: int, topic: str | None = None) -> int:
        """Offset of the next message of the partition; after `wait_ready` or the first message. Raises UnknownPartition."""
        return self._chosen(partition, topic)[0].position

    def positions(self) -> dict[TopicPartition, int]:
        return {reading.partition: reading.position for reading in self._readings}

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """The next offset to be written in each partition: once all positions are there, everything written before this call was read."""
        await self.wait_ready()
        deadline = self._connections.deadline(self.settings.request_timeout_s)
        return await self._offsets.find({reading.partition: "latest" for reading in self._readings}, deadline)

    def _chosen(self, partition: int | None, topic: str | None) -> list[Reading]:
        if topic is None and partition is not None and len(self._topics) > 1:
            raise InvalidConfig(f"the consumer reads {', '.join(self._topics)}: say which topic")
        chosen = [
            reading
            for reading in self._readings
            if partition in (None, reading.partition.partition) and topic in (None, reading.partition.topic)
        ]
        if not chosen:
            raise UnknownPartition(f"the consumer does not read {topic or self._topics[0]}/{partition}")
        return chosen

    # -- end -----------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self.closed = True
        await end(self._background)
        self._prefetch.runs.clear()
        self._prefetch.changed.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


class _DecodedRun:
    """A batch of which the program has had a part; the reading's position says how much."""

    def __init__(self, reading: Reading, rows: pa.RecordBatch, offset: int) -> None:
        self.reading = reading
        self._rows = rows
        self._offset = offset
        self._count: int = rows.num_rows
        self._taken = 0
        self._messages: list[Message] | None = None

    @property
    def spent(self) -> bool:
        return self._taken >= self._count

    def _decoded(self) -> list[Message]:
        if self._messages is None:
            self._messages = messages_of(self._rows, *self.reading.partition, self._offset)
        return self._messages

    def _advance(self, count: int) -> None:
        self._taken += count
        self.reading.position = self._offset + self._taken

    def take_one(self) -> Message:
        message = self._decoded()[self._taken]
        self._advance(1)
        return message

    def take(self, count: int) -> list[Message]:
        messages = self._decoded()[self._taken : self._taken + count]
        self._advance(len(messages))
        return messages

    def take_arrow(self, count: int) -> pa.RecordBatch:
        rows = self._rows.slice(self._taken, count)
        batch = table_of(rows, *self.reading.partition, self._offset + self._taken)
        self._advance(rows.num_rows)
        return batch
