"""LedgerMQ without asyncio: the same names, driving the one asynchronous implementation on a background thread.

    with ledgermq.sync.connect("localhost:9650") as client:
        with client.producer() as producer:
            print(producer.send("flights", b"...", key=b"UA").result())
        for message in client.consumer("flights"):
            ...

Each client has one thread with one event loop. A client, and what it made, may be used from any thread, but by one at a time.
Calls block; Ctrl-C interrupts them. They have the deadlines of the asynchronous calls that they wait for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import pyarrow as pa

import ledgermq
from ledgermq.client.consuming.consumer import State
from ledgermq.client.consuming.start import Position, Start
from ledgermq.client.ending import end
from ledgermq.client.producing.delivery import SendResult
from ledgermq.client.record import ROW_OVERHEAD_BYTES, Bytes, Headers, Row, row_bytes, row_of
from ledgermq.errors import DeadlineExceeded, LedgerMQError, Unavailable
from ledgermq.sources import Sources

T = TypeVar("T")

HANDED_OVER_RECORDS = 10_000
HANDED_OVER_BYTES = 4 * 1024 * 1024
HANDED_OVER_AFTER_S = 0.005
"""A producer's records cross to the background thread many at a time: when so many wait, after so long, or when somebody waits for one."""

FETCH_RECORDS = 1000
FETCH_WAIT_S = 1.0


class _Background:
    """A thread that runs one event loop until `stop`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="ledgermq", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine of the other thread; interrupted, it is cancelled."""
        if self.loop.is_closed():
            work.close()
            raise Unavailable("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except CancelledError as error:
            raise Unavailable("the client was closed meanwhile") from error
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self.run(_end_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Delivery:
    """What `send` returns: a record on its way."""

    __slots__ = ("_producer", "inner")

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.inner: ledgermq.Delivery | None = None

    def result(self, timeout_s: float | None = None) -> SendResult:
        """Wait for the `SendResult`. Raises what happened to the record, or DeadlineExceeded after `timeout_s`."""
        if self.inner is not None and self.inner.done():
            return self.inner.result()
        return self._producer.wait_for(self, timeout_s)

    def done(self) -> bool:
        return self.inner is not None and self.inner.done()

    def exception(self) -> LedgerMQError | None:
        """Of a delivery that is done; None: it is stored."""
        assert self.inner is not None, "the delivery is not done"
        return self.inner.exception()


class Producer:
    """See `ledgermq.Producer`. Here `send` blocks while the buffer is full (or fails, with when_full="fail")."""

    def __init__(self, background: _Background, inner: ledgermq.Producer, sources: Sources) -> None:
        self._background = background
        self._inner = inner
        self._sources = sources
        self._inbox: deque[tuple[str, Row, int, int | None, Delivery]] = deque()
        self._inbox_bytes = 0
        self._handing_over = False

    def send(
        self,
        topic: str,
        value: Bytes | None,
        key: Bytes | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Queue one record. Raises InvalidRecord; everything else that may happen is raised by the delivery's `result()`."""
        row = row_of(value, key, headers, tag, timestamp, self._sources.now_us())
        size = row_bytes(row)
        delivery = Delivery(self)
        if self._inner.settings.when_full == "fail":
            delivery.inner = self._background.run(_as_coroutine(lambda: self._inner.add_row(topic, row, size, partition)))
            return delivery
        self._inbox.append((topic, row, size, partition, delivery))
        self._inbox_bytes += size + ROW_OVERHEAD_BYTES
        if self._inbox_bytes >= HANDED_OVER_BYTES or len(self._inbox) >= HANDED_OVER_RECORDS:
            self._inbox_bytes = 0
            self._background.run(self._hand_over_and_wait())
        elif not self._handing_over:
            self._handing_over = True
            self._background.loop.call_soon_threadsafe(self._background.loop.call_later, HANDED_OVER_AFTER_S, self._hand_over)
        return delivery

    def wait_for(self, delivery: Delivery, timeout_s: float | None) -> SendResult:
        """What `delivery.result` does."""

        async def wait() -> SendResult:
            self._hand_over()
            assert delivery.inner is not None, "what was sent is handed over"
            try:
                async with asyncio.timeout(timeout_s):
                    return await delivery.inner
            except TimeoutError as error:
                raise DeadlineExceeded(f"the record is not stored after {timeout_s} s; it is still on its way") from error

        return self._background.run(wait())

    def _hand_over(self) -> None:
        """In the background thread."""
        self._handing_over = False
        while self._inbox:
            topic, row, size, partition, delivery = self._inbox.popleft()
            try:
                delivery.inner = self._inner.add_row(topic, row, size, partition)
            except Exception as error:  # a user's partitioner may raise anything
                delivery.inner = ledgermq.Delivery(self._inner.refused(error), 0)

    async def _hand_over_and_wait(self) -> None:
        await self._inner.wait_for_room()
        self._hand_over()

    def send_many(self, topic: str, records: Iterable[ledgermq.Record | Bytes | None]) -> list[Delivery]:
        """Queue many records. Raises as `send`."""
        deliveries = []
        for record in records:
            fields = record if isinstance(record, ledgermq.Record) else ledgermq.Record(record)
            deliveries.append(self.send(topic, fields.value, *fields[1:]))
        return deliveries

    def send_batch(self, topic: str, batch: pa.RecordBatch, *, partition: int | None = None) -> list[ledgermq.BatchResult]:
        """Store the rows of an Arrow batch and wait until they are. Raises InvalidRecord, MessageTooLarge, … and what happened to them."""

        async def send() -> list[ledgermq.BatchResult]:
            self._hand_over()
            return await (await self._inner.send_batch(topic, batch, partition=partition))

        return self._background.run(send())

    @property
    def buffered_bytes(self) -> int:
        return self._inner.buffered_bytes + self._inbox_bytes

    def flush(self, timeout_s: float | None = None) -> None:
        """See `ledgermq.Producer.flush`."""

        async def flush() -> None:
            self._hand_over()
            await self._inner.flush(timeout_s)

        self._background.run(flush())

    def close(self, timeout_s: float | None = None) -> None:
        """See `ledgermq.Producer.close`."""

        async def close() -> None:
            self._hand_over()
            await self._inner.close(timeout_s)

        self._background.run(close())

    def abort(self) -> None:
        """See `ledgermq.Producer.abort`."""
        self._background.run(self._inner.abort())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class Consumer:
    """See `ledgermq.Consumer`. Messages cross to this thread many at a time; `position` speaks of those that the program has had."""

    def __init__(self, background: _Background, inner: ledgermq.Consumer) -> None:
        self._background = background
        self._inner = inner
        self._ahead: deque[ledgermq.Message] = deque()

    def __iter__(self) -> Iterator[ledgermq.Message]:
        return self

    def __next__(self) -> ledgermq.Message:
        """The next message, whenever it comes."""
        while not self._ahead:
            self._ahead.extend(self._background.run(self._inner.fetch(FETCH_RECORDS, FETCH_WAIT_S)))
        return self._ahead.popleft()

    def fetch(self, max_records: int = 500, timeout: float = 1.0) -> list[ledgermq.Message]:
        """See `ledgermq.Consumer.fetch`."""
        if self._ahead:
            return [self._ahead.popleft() for _ in range(min(max_records, len(self._ahead)))]
        return self._background.run(self._inner.fetch(max_records, timeout))

    def fetch_arrow(self, max_records: int = 100_000, timeout: float = 1.0) -> pa.Table:
        """See `ledgermq.Consumer.fetch_arrow`."""
        for partition, offset in self._first_ahead().items():
            self.seek(offset, partition.partition, partition.topic)
        return self._background.run(self._inner.fetch_arrow(max_records, timeout))

    def _first_ahead(self) -> dict[ledgermq.TopicPartition, int]:
        first: dict[ledgermq.TopicPartition, int] = {}
        for message in self._ahead:
            first.setdefault(ledgermq.TopicPartition(message.topic, message.partition), message.offset)
        return first

    def seek(self, position: Position, partition: int | None = None, topic: str | None = None) -> None:
        """See `ledgermq.Consumer.seek`."""
        self._background.run(self._inner.seek(position, partition, topic))
        self._ahead = deque(m for m in self._ahead if partition not in (None, m.partition) or topic not in (None, m.topic))

    def position(self, partition: int, topic: str | None = None) -> int:
        """See `ledgermq.Consumer.position`."""
        position = self._inner.position(partition, topic)
        name = topic if topic is not None else self._inner.assignment[0].topic
        return self._first_ahead().get(ledgermq.TopicPartition(name, partition), position)

    def positions(self) -> dict[ledgermq.TopicPartition, int]:
        return self._inner.positions() | self._first_ahead()

    def end_offsets(self) -> dict[ledgermq.TopicPartition, int]:
        """See `ledgermq.Consumer.end_offsets`."""
        return self._background.run(self._inner.end_offsets())

    def wait_ready(self) -> None:
        """See `ledgermq.Consumer.wait_ready`."""
        self._background.run(self._inner.wait_ready())

    @property
    def state(self) -> State:
        return self._inner.state

    @property
    def last_error(self) -> LedgerMQError | None:
        return self._inner.last_error

    @property
    def assignment(self) -> list[ledgermq.TopicPartition]:
        return self._inner.assignment

    def close(self) -> None:
        self._background.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Client:
    """See `ledgermq.Client`."""

    def __init__(self, background: _Background, inner: ledgermq.Client, sources: Sources) -> None:
        self._background = background
        self._inner = inner
        self._sources = sources

    def create_topic(self, name: str, partitions: int = 0, settings: Mapping[str, object] | None = None) -> ledgermq.TopicDescription:
        """See `ledgermq.Client.create_topic`."""
        return self._background.run(self._inner.create_topic(name, partitions, settings))

    def list_topics(self) -> list[ledgermq.TopicDescription]:
        """See `ledgermq.Client.list_topics`."""
        return self._background.run(self._inner.list_topics())

    def describe_topic(self, name: str) -> ledgermq.TopicDescription:
        """See `ledgermq.Client.describe_topic`."""
        return self._background.run(self._inner.describe_topic(name))

    def alter_topic(
        self, name: str, partitions: int = 0, settings: Mapping[str, object] | None = None, unset: Iterable[str] = ()
    ) -> ledgermq.TopicDescription:
        """See `ledgermq.Client.alter_topic`."""
        return self._background.run(self._inner.alter_topic(name, partitions, settings, unset))

    def delete_topic(self, name: str) -> None:
        """See `ledgermq.Client.delete_topic`."""
        self._background.run(self._inner.delete_topic(name))

    def describe_cluster(self) -> ledgermq.ClusterDescription:
        """See `ledgermq.Client.describe_cluster`."""
        return self._background.run(self._inner.describe_cluster())

    def list_offsets(self, topic: str, at: Literal["earliest", "latest"] | datetime = "latest") -> dict[int, int]:
        """See `ledgermq.Client.list_offsets`."""
        return self._background.run(self._inner.list_offsets(topic, at))

    def producer(self, **settings: Any) -> Producer:
        """See `ledgermq.Client.producer`."""
        return Producer(self._background, self._background.run(_as_coroutine(lambda: self._inner.producer(**settings))), self._sources)

    def consumer(
        self, topics: str | Iterable[str], partitions: Iterable[int] | None = None, start: Start = "earliest", **settings: Any
    ) -> Consumer:
        """See `ledgermq.Client.consumer`."""
        inner = self._background.run(_as_coroutine(lambda: self._inner.consumer(topics, partitions, start, **settings)))
        return Consumer(self._background, inner)


@contextmanager
def connect(target: str, *, sources: Sources | None = None, **settings: Any) -> Iterator[Client]:
    """See `ledgermq.connect`."""
    background = _Background()
    connection = ledgermq.connect(target, sources=sources, **settings)
    try:
        inner = background.run(connection.__aenter__())
        try:
            yield Client(background, inner, sources or Sources())
        except BaseException as error:
            if not background.run(connection.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            background.run(connection.__aexit__(None, None, None))
    finally:
        background.stop()


async def _end_all() -> None:
    await end(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
    await asyncio.get_running_loop().shutdown_asyncgens()


async def _as_coroutine(work: Callable[[], T]) -> T:
    """Run in the background thread what has to be made or called there."""
    return work()


__all__ = ["Client", "Consumer", "Delivery", "Producer", "connect"]
