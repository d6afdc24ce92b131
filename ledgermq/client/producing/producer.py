"""The producer that programs call: bounded in memory, idempotent by default, ordered per
partition.

    send ──> SendBuffer (admission) ──> TopicQueues ──> PartitionQueue ──> Dispatcher ──> ProduceStream, one per broker
"""

from __future__ import annotations

import asyncio
import atexit
import weakref
from collections.abc import AsyncIterable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate
from threading import get_ident
from types import TracebackType
from typing import Any, Self

from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.due import due_of
from ledgermq.client.messages.record import (
    ROW_OVERHEAD_BYTES,
    Bytes,
    Headers,
    PartitionAt,
    Record,
    Row,
    headers_of,
    row_bytes,
)
from ledgermq.client.producing.arrow_rows import ArrowData, Piece, Pieces, table_of
from ledgermq.client.producing.batch import Batch
from ledgermq.client.producing.delivery import (
    BatchDelivery,
    Deliveries,
    Delivery,
    OnDelivery,
    Outcome,
    Refused,
    SendResult,
    again,
)
from ledgermq.client.producing.discovery import Discovery
from ledgermq.client.producing.dispatcher import Dispatcher
from ledgermq.client.producing.exclusive import Exclusive
from ledgermq.client.producing.preparing import prepared
from ledgermq.client.producing.publishing import Producing, Publishing
from ledgermq.client.producing.queuing import Adds, ArrowRows, Calls, ManyRecords, Prepared, Queuing
from ledgermq.client.producing.send_buffer import OnFailure, SendBuffer
from ledgermq.client.producing.sessions import EncodedBatch
from ledgermq.client.producing.spilling import Spilling
from ledgermq.client.producing.topics import ProducerTopics, TopicQueues
from ledgermq.client.producing.unrouted import typed
from ledgermq.client.settings.spill import SpillState
from ledgermq.client.settings.values import ProducerSettings
from ledgermq.errors import (
    Closed,
    DeadlineExceeded,
    InvalidConfig,
    InvalidRecord,
    LedgerMQError,
    Unavailable,
    UnknownPartition,
    UnknownTopic,
)
from ledgermq.runtime.log import get_log
from ledgermq.runtime.tasks import all_of, end, ended_by, first_of

DRAINED = "the producer is drained and takes no further records: make another one"


_log = get_log("ledgermq.producer")


class Producer:
    """A producer, made by `client.producer(**settings)`.

    Use it within one event loop, in an `async with` block, or call `close()` at the end.
    """

    def __init__(
        self,
        context: ClientContext,
        settings: ProducerSettings,
        publishing: Publishing | None = None,
        on_failure: OnFailure = lambda error: error,
        buffer: SendBuffer | None = None,
    ) -> None:
        """`publishing`: how batches reach brokers; None: they are produced. `buffer`: one that is shared
        with another producer.
        """
        publishing = publishing or Producing(settings)
        self.settings = settings
        self._context = context
        self._publishing = publishing
        self._sources = context.sources
        self._home = context.connections.home
        self._wake = asyncio.Event()
        """Set when the dispatcher may have work."""
        on_full = self._wake.set if settings.spill is not None else None
        self._buffer = buffer or SendBuffer(settings, on_failure, on_full)
        self._calls = Calls(self._buffer)
        self._adds = Adds(
            self._add_plain,
            self._add_plain_values,
            self._prepare,
            self._add_prepared,
            self._add_piece,
            self._failed_or_raised,
        )
        self._topics = ProducerTopics(context, settings, self._buffer, self._wake, publishing)
        self._spilling: Spilling | None = None
        if settings.spill is not None:
            self._spilling = Spilling(settings.spill, context, settings, self._topics, self._buffer, self._wake)
        self._exclusive: Exclusive | None = None
        if settings.access_mode != "shared":
            self._exclusive = Exclusive(context, settings.access_mode, settings.name, auto_create=settings.auto_create)
        self._discovery = Discovery(
            context, settings, self._topics, self._buffer, self._wake, self._spilling, publishing, self._exclusive
        )
        self._dispatcher = Dispatcher(
            context,
            settings,
            self._topics,
            self._discovery,
            self._buffer,
            self._wake,
            publishing,
            self._spilling,
            self._exclusive,
        )
        self._background: asyncio.Task[None] | None = None
        self._open: dict[str, Batch] = {}
        """By topic, the batch that the last record without a key joined; the batch itself decides
        whether it takes more records.
        """
        self._takes_plain = settings.serializer is None and not settings.interceptors and settings.on_delivery is None
        """Whether records may take the fast path: values are stored as given, and nothing is called for each."""
        self._fresh_starts = 0
        """How often `start_over` was called, and the error of the last time."""
        self._ended_before: LedgerMQError = Unavailable("the producer has begun again")
        self._keeps = False
        """Whether the end of the background leaves the batches to `_spill_rest`."""
        self._delayed: Producer | None = None
        """Sends the records with a due time; made for the first one. It shares the buffer."""
        self.closed = False
        self.is_part = False
        """Whether it belongs to another producer, which counts its records."""
        _made.add(self)
        self.draining = False
        """Whether `drain` was called."""

    def send(
        self,
        topic: str,
        value: Any,
        key: Bytes | None = None,
        headers: Headers | None = None,
        tag: str | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
        ttl: float | timedelta | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        delay_level: int | None = None,
        id: Bytes | None = None,  # noqa: A002  as in `client.find`
        priority: int | None = None,
        on_delivery: OnDelivery | None = None,
        expect_end: int | None = None,
    ) -> Delivery:
        """Queue one record; returns at once. Await the result for the `SendResult`, or `flush()`
        for all of them.

        `value`: bytes, or text, which is stored as UTF-8; with the setting `serializer` what that takes.
        None is a tombstone. `delay` (seconds, or a timedelta),
        `deliver_at` (a datetime with a time zone) or `delay_level` (1 to 18) make it a delayed record,
        which comes into its topic at that time, at most 366 days from now; one that is due already comes
        at once. Its timestamp is the due time. It is always stored durably and once, whatever `acks` and
        `idempotent` are, and never spilled. `ttl`: seconds from the timestamp on, or a timedelta, after which
        consumers skip the record. `on_delivery`: called with the `SendResult` once the record is stored, or has failed,
        like the setting of that name. `id`: 1 to 256 bytes, or text, by which a topic with `dedup.window.ms`
        recognizes a record that it has stored already; the result then says `duplicate`, and has the offset of that
        one. `priority`: level of a topic with `priority.levels`, from 0, the lowest and the default, to that number
        less 1; it chooses among the partitions of its level. `expect_end`: store the record only if `partition`, which
        has to be given, ends at this offset: nothing was appended since the program looked. Otherwise the result is
        ConditionFailed, with the end in `end`; a repetition by the producer itself is no failure. It needs the
        defaults of `acks` and `idempotent`. Raises InvalidRecord, MessageTooLarge,
        UnknownPartition for this record, and ResourceExhausted when the buffer is full; other
        records are not affected. Errors that occur later (the topic does not exist, …) are raised
        where the result is awaited, or by the next `flush()` if the program never awaits it.
        """
        if on_delivery is not None:
            return _calling(
                on_delivery,
                self.send(
                    topic,
                    value,
                    key,
                    headers,
                    tag,
                    timestamp,
                    partition,
                    ttl,
                    delay,
                    deliver_at,
                    delay_level,
                    id,
                    priority,
                    None,
                    expect_end,
                ),
            )
        if get_ident() != self._home.thread or self._home.left:
            self._home.check()
        try:
            if self._calls.unawaited:
                self._calls.hurry()
            if id is not None or priority is not None:
                headers = headers_of(headers, id, priority, partition)
            due_us = None
            if delay is not None or deliver_at is not None or delay_level is not None:
                due_us = self.due_us(delay, deliver_at, delay_level, timestamp)
            if expect_end is not None:
                self.check_conditional(partition, expect_end, delayed=due_us is not None)
            if (
                type(value) is bytes
                and key is None
                and headers is None
                and tag is None
                and timestamp is None
                and partition is None
                and ttl is None
            ):
                sender = self if due_us is None else self._delayed
                if sender is not None:
                    delivery = sender._add_plain(topic, value, self._buffer.limit_bytes, due_us)
                    if delivery is not None:
                        return delivery
            moment, delayed = (timestamp, False) if due_us is None else (due_us, True)
            topic, row, partition = prepared(
                self.settings,
                topic,
                value,
                key,
                headers,
                tag,
                moment,
                partition,
                ttl,
                self._sources.now_us(),
                delayed=delayed,
            )
            return self.add_row(topic, row, row_bytes(row), PartitionAt.of(partition, expect_end), delayed=delayed)
        except Exception as error:  # a user's partitioner may raise anything
            if self.settings.raise_on_error:
                raise
            return self._failed(error, topic)

    def check_conditional(self, partition: int | None, expect_end: int, *, delayed: bool) -> None:
        """Raise InvalidRecord if a record may not expect an end."""
        if partition is None:
            raise InvalidRecord("expect_end is about one partition: choose it with partition=")
        if type(expect_end) is not int or not 0 <= expect_end < 2**63:
            raise InvalidRecord(f"expect_end must be an offset of 0 or more, not {expect_end!r}")
        if delayed:
            raise InvalidRecord("a delayed record takes no expect_end: it is appended when it is due")
        if self._spilling is not None or not self._publishing.takes_conditions:
            raise InvalidRecord(
                "expect_end needs a producer with acks=durable and idempotent=True, without spill, and not in a"
                " transaction: otherwise a repeated record could not be told from a refused one"
            )

    def due_us(
        self,
        delay: float | timedelta | None,
        deliver_at: datetime | None,
        delay_level: int | None,
        timestamp: datetime | int | None,
    ) -> int | None:
        """Return when a record is due; None: it is not delayed. Any thread may call this. Raises
        InvalidRecord, and why this producer takes no delayed records.
        """
        if delay is None and deliver_at is None and delay_level is None:
            return None
        clock = self._context.clock
        if self._delayed is None:
            self._publishing.delaying(clock)
        return due_of(delay, deliver_at, delay_level, timestamp, clock)

    def _add_plain(self, topic: str, value: bytes, limit_bytes: int, due_us: int | None = None) -> Delivery | None:
        """Add a record on the fast path: into the open batch, while the buffer stays below
        `limit_bytes`. Return None if any other check is needed. `due_us`: its timestamp; None: the present.
        """
        batch = self._open.get(topic)
        if batch is None:
            return None
        size, buffer = len(value), self._buffer
        held_bytes = buffer.held_bytes + size + ROW_OVERHEAD_BYTES
        if batch.data_bytes + size > batch.plain_bytes_max or held_bytes > limit_bytes:
            return None
        buffer.held_bytes = held_bytes
        return batch.deliver_plain(value, size, self._sources.now_us() if due_us is None else due_us)

    def _close_fast_path(self) -> None:
        """From now on, every record takes the path with all checks."""
        self._open.clear()
        if self._delayed is not None:
            self._delayed._close_fast_path()

    def add_row(self, topic: str, row: Row, size: int, partition: int | None, *, delayed: bool = False) -> Delivery:
        """Queue a row that was checked already; `size` is its `row_bytes`. `delayed`: its timestamp is
        a due time.
        """
        self._check_takes_records()
        return self._add_row(topic, row, size, partition, delayed=delayed)

    def _add_row(self, topic: str, row: Row, size: int, partition: int | None, *, delayed: bool) -> Delivery:
        self._check_alive()
        if delayed:
            return self._delayed_producer().add_row(topic, row, size, partition)
        held = size + ROW_OVERHEAD_BYTES
        self._buffer.admit(held)
        try:
            delivery = self._topics.topic(topic).add(row, size, partition)
        except BaseException as error:
            self._buffer.release(held)
            if isinstance(error, UnknownPartition | InvalidRecord):
                self._discovery.refresh(topic)  # The topic may have grown, or deduplicate by now.
                self._wake.set()
            raise
        is_plain = row[0] is None and row[2] is None and partition is None
        if self._takes_plain and is_plain and isinstance(delivery.place, Batch) and not (self.closed or self.draining):
            self._open[topic] = delivery.place
        return self._reported(delivery)

    def _delayed_producer(self) -> Producer:
        if self._exclusive is not None:
            raise InvalidRecord("an exclusive producer sends no delayed records: send them by another producer")
        if self._delayed is None:
            settings = replace(self.settings, acks="durable", idempotent=True, spill=None)
            publishing = self._publishing.delaying(self._context.clock)
            self._delayed = Producer(self._context, settings, publishing, buffer=self._buffer)
            self._delayed.is_part = True
        return self._delayed

    def _failed(self, error: Exception, topic: str) -> Delivery:
        """Return the delivery of a record that failed at once, with raise_on_error=False. Raises if the producer
        takes no records at all.
        """
        self._check_takes_records()
        return self.refused(error, topic)

    def refused(self, error: Exception, topic: str) -> Delivery:
        """Return the delivery of a record that could not be added and has no caller to raise to; the
        next flush raises its error.
        """
        place = Refused(typed(error), TopicPartition(topic, -1), quiet=not self.settings.raise_on_error)
        self._buffer.note_failed(place.outcome, place.at)
        return self._reported(Delivery(place, 0))

    def _reported(self, delivery: Delivery) -> Delivery:
        return delivery if self.settings.on_delivery is None else _calling(self.settings.on_delivery, delivery)

    def send_many(
        self, topic: str, records: Iterable[Record | Any] | AsyncIterable[Record | Any]
    ) -> Queuing[Deliveries]:
        """Queue many records (`Record`, or values), waiting for room whenever the buffer is full. A
        plain value stands for a record without a key.

        Begins at once. Await it until all records are queued, for their `Deliveries`; await those for
        the `SendResult`s. If it is not awaited, the records that did not fit are queued later, before
        all that is sent after this call; `flush` and `close` wait for them, and raise its error.

        `records`: a list is copied if it does not fit at once. An iterator, also an asynchronous one,
        is read as room becomes available; records that are sent meanwhile do not wait for an
        asynchronous one. Raises like `send` where it is awaited; records before the refused one stay
        queued. A list of `bytes` is fastest: those of its values that join a batch at once get the
        same timestamp.
        """
        self._check_takes_records()
        check = partial(self._check_goes_on, self._fresh_starts)
        if isinstance(records, AsyncIterable):
            deliveries = Deliveries()
            return self._calls.begin_reading(
                records, lambda record: ManyRecords(self._adds, topic, (record,), deliveries), check, deliveries
            )
        return self._calls.begin(lambda: ManyRecords(self._adds, topic, records), check)

    def _check_goes_on(self, fresh_starts: int, is_awaited: bool) -> None:
        """Raise if a call that has begun must add no further record: `start_over` was called since there
        were so many, or the producer takes no records. It still takes those of a call that is not awaited
        while it is drained or closed.
        """
        if fresh_starts != self._fresh_starts:
            raise type(self._ended_before)(self._ended_before.message)
        if is_awaited:
            self._check_takes_records()

    def _add_plain_values(self, topic: str, values: Sequence[bytes], limit_bytes: int) -> tuple[Delivery, int] | None:
        """Add the first of `values`, as many as the open batch and the buffer take without another
        check, below `limit_bytes`. Return the first one's delivery and their number, which is at least half of the
        possible number; None if there is no room for one.
        """
        batch = self._open.get(topic)
        if batch is None:
            return None
        sizes = list(accumulate(map(len, values)))
        room, room_held = batch.plain_bytes_max - batch.data_bytes, limit_bytes - self._buffer.held_bytes
        count = len(values)
        while count and (sizes[count - 1] > room or sizes[count - 1] + count * ROW_OVERHEAD_BYTES > room_held):
            count //= 2
        if not count:
            return None
        size = sizes[count - 1]
        self._buffer.held_bytes += size + count * ROW_OVERHEAD_BYTES
        return Delivery(batch, batch.add_plain_values(values[:count], size, self._sources.now_us())), count

    def _prepare(self, topic: str, record: Record) -> Prepared:
        """Check a record of `send_many`. Raises like `send`."""
        due_us = self.due_us(record.delay, record.deliver_at, record.delay_level, record.timestamp)
        topic, row, partition = prepared(
            self.settings,
            topic,
            record.value,
            record.key,
            headers_of(record.headers, record.id, record.priority, record.partition),
            record.tag,
            record.timestamp if due_us is None else due_us,
            record.partition,
            record.ttl,
            self._sources.now_us(),
            delayed=due_us is not None,
        )
        return Prepared(topic, row, row_bytes(row), partition, due_us is not None)

    def _add_prepared(self, prepared: Prepared) -> Delivery:
        topic, row, size, partition, is_delayed = prepared
        return self._add_row(topic, row, size, partition, delayed=is_delayed)

    def _failed_or_raised(self, error: Exception, topic: str) -> Delivery:
        """Return the delivery of a record of `send_many` that cannot be added; raise its error, unless the
        setting raise_on_error is False.
        """
        if self.settings.raise_on_error:
            raise error
        return self.refused(error, topic)

    def send_batch(self, topic: str, batch: ArrowData, *, partition: int | None = None) -> Queuing[BatchDelivery]:
        """Queue the rows of Arrow data, waiting for room. Begins at once, like `send_many`.

        Await it until all rows are queued, and await what that returns for the `BatchResult`s. If it is
        not awaited, `flush` and `close` wait for it, and raise its error.

        `batch`: a pyarrow Table, RecordBatch or RecordBatchReader, a data frame of polars or pandas, a
        DuckDB relation, or any object with `__arrow_c_stream__` or `__arrow_c_array__`. A stream is
        read into memory as a whole.

        Columns: `value`, and optionally `key`, `headers`, `timestamp`, `tag`, `partition`. Text,
        categories and other binary types are converted; a missing timestamp is the present time.
        Interceptors and the serializer are not called. A row goes to its partition, or else to its
        key's; the others stay together, up to 65,536 rows or 16 MiB. In a topic with `priority.levels` the header
        `ledgermq.priority` of a row, a number as text, chooses the nearest level. More than that is queued piece
        by piece. Raises InvalidRecord, MessageTooLarge, UnknownPartition before any row is queued.
        """
        self._check_takes_records()

        def rows() -> ArrowRows:
            pieces = Pieces(table_of(batch), self._sources.now_us())
            if partition is not None and pieces.has_partitions:
                raise InvalidRecord("the partition is given twice, as a column and as an argument: leave one out")
            pieces.check(partial(self._check_piece, topic, partition))
            return ArrowRows(self._adds, topic, pieces, partition)

        return self._calls.begin(rows, partial(self._check_goes_on, self._fresh_starts))

    def _check_piece(self, topic: str, partition: int | None, piece: Piece) -> None:
        if isinstance(place := self._topics.topic(topic), TopicQueues):
            place.check_arrow(piece, partition)

    def _add_piece(self, topic: str, piece: Piece, partition: int | None) -> BatchDelivery:
        """Queue rows that fit."""
        held = piece.rows.nbytes + ROW_OVERHEAD_BYTES
        self._buffer.admit(held)
        try:
            place = self._topics.topic(topic)
            if not isinstance(place, TopicQueues):
                return place.add_arrow(piece, held, partition)
            routed = Outcome()
            routed.settle()
            delivery = BatchDelivery(routed)
            delivery.batches = place.add_arrow(piece, held, partition)
        except BaseException:
            self._buffer.release(held)
            raise
        return delivery

    async def send_encoded(
        self, topic: str, topic_id: int, partition: int, batch: EncodedBatch, sequence: int
    ) -> Outcome:
        """Queue a batch that was encoded before, without changing it, waiting for room. The topic
        must have been looked up before (`Client.open_sessions`).

        `sequence`: of its first record in its session. A batch whose sequence is not the next one
        is not sent, nor is any later batch. Call `await wait()` on the returned object, then
        `raise_error()`. Raises UnknownTopic (also if the name means another topic now),
        UnknownPartition; then nothing is queued.
        """
        self._check_takes_records()
        held = len(batch.data)
        await self._buffer.wait_for_room(held)
        place = self._topics.topic(topic)
        if not isinstance(place, TopicQueues) or place.route.topic_id != topic_id:
            raise UnknownTopic(f"topic {topic!r} with id {topic_id} is not known to this client")
        self._buffer.admit(held)
        try:
            return place.add_encoded(batch, partition, sequence).outcome
        except BaseException:
            self._buffer.release(held)
            raise

    async def wait_for_room(self) -> None:
        """Wait until the buffer is no longer full; a loop of plain `send` calls should await this
        now and then. Raises like `send_many`.
        """
        self._check_takes_records()
        await self._buffer.wait_for_room()

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes of records that are not answered yet, including their overhead."""
        return self._buffer.held_bytes

    @property
    def unanswered_records(self) -> int:
        """Return the number of records that are neither stored, nor spilled, nor refused yet."""
        delayed = 0 if self._delayed is None else self._delayed.unanswered_records
        waiting = sum(waiting.record_count for waiting in self._topics.unrouted.values())
        queued = delayed + waiting + sum(batch.record_count for batch in self._batches())
        return queued + self._calls.waiting_records

    @property
    def spilled(self) -> SpillState | None:
        """Return the state of the local file of the setting `spill`; None without that setting."""
        return None if self._spilling is None else self._spilling.state

    def _batches(self) -> list[Batch]:
        """Return the batches of records that are neither stored, nor spilled, nor refused yet."""
        unwritten = () if self._spilling is None else self._spilling.unwritten()
        return [*self._topics.batches(), *unwritten]

    async def acquire(self, topic: str, timeout: float | None = None) -> None:  # noqa: ASYNC109  as `drain`
        """Wait until this producer has all partitions of the topic for itself; the first record for the topic does
        this, too. With it programs elect the one that writes.

        Raises PartitionHeld with `access_mode="exclusive"`, if another exclusive producer has one of them,
        ProducerFenced if this producer lost the topic before, UnknownTopic, Unavailable, and with
        `access_mode="wait_for_exclusive"` DeadlineExceeded after `timeout` seconds (None: it waits without end).
        Raises InvalidConfig for a shared producer.
        """
        self._check_usable()
        if self._exclusive is None:
            raise InvalidConfig("this producer is shared: make it with client.producer(access_mode='exclusive')")
        try:
            async with asyncio.timeout(timeout):
                await self._exclusive.acquire(topic)
        except TimeoutError as error:
            raise DeadlineExceeded(f"another exclusive producer still has partitions of topic {topic}") from error

    def holds(self, topic: str) -> bool:
        """Return whether this producer has the topic for itself. It may have been fenced just now: it learns that
        with its next record or renewal.
        """
        return self._exclusive is not None and self._exclusive.holds(topic)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send everything now, and return when every record sent before this call is answered, or is
        in the local file of the setting `spill`.

        Raises DeadlineExceeded after `timeout_s` (the rest stays queued), and the first error of a
        record whose result the program has not awaited.
        """
        self._check_usable()
        await self._flush(timeout_s)
        self._raise_unseen()

    async def drain(self, timeout: float | None = None) -> list[SendResult]:  # noqa: ASYNC109  as GroupConsumer.drain
        """Take no further records, send everything that is queued, and return when it is answered, or is in the local
        file of the setting `spill`. Close the producer next.

        Returns the results of the records that failed meanwhile, and of those that failed before without being
        awaited; empty: none did. From now on `send` and its like raise Closed. Raises DeadlineExceeded after
        `timeout` seconds (None: the delivery timeout): the rest stays queued, and the call may be repeated.
        """
        self._check_usable()
        self.draining = True
        self._close_fast_path()
        self._buffer.keep_failures()
        await self._flush(self.settings.delivery_timeout_s if timeout is None else timeout)
        return self._buffer.take_failed()

    def raise_unseen_calls(self) -> None:
        """Raise the first error of a `send_many` or `send_batch` that the program has not awaited."""
        self._calls.raise_unseen()

    def _raise_unseen(self) -> None:
        self._calls.raise_unseen()
        if self.settings.raise_on_error:
            self._buffer.raise_unseen()
        else:
            self._buffer.forget_failures()

    async def _flush(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._calls.queued()
                if self._delayed is None:
                    await self._answered()
                else:
                    await all_of((self._answered(), self._delayed._answered()))
        except TimeoutError as error:
            waiting = self._calls.waiting_records
            further = f", and {waiting} further records wait for room" if waiting else ""
            raise DeadlineExceeded(
                f"{self._buffer.held_bytes} bytes are not stored after {timeout_s} s{further}"
            ) from error

    async def _answered(self) -> None:
        """Send everything now, and wait until it is answered."""
        self._dispatcher.flushing += 1
        self._wake.set()
        try:
            for waiting in list(self._topics.unrouted.values()):
                await waiting.outcome.wait()
            for batch in self._batches():
                await batch.outcome.wait()
        finally:
            self._dispatcher.flushing -= 1

    async def settle(self) -> None:
        """Send everything now, and return when every record is answered or has failed."""
        await self._flush(None)

    def start_over(self, error: LedgerMQError) -> None:
        """Fail everything that is not answered, and begin again with new queues. Calls that wait for
        room raise `error`.

        Answers that still arrive are ignored. For transactions: each begins its own numbering.
        """
        self._fresh_starts += 1
        self._ended_before = error
        self._calls.forget()
        self._close_fast_path()
        self._topics.abandon(error)
        if self._delayed is not None:
            self._delayed.start_over(error)
        self._buffer.forget_failures()

    def _check_usable(self) -> None:
        self._home.check()
        if self.closed:
            raise Closed("the producer is closed")
        self._check_alive()

    @property
    def has_ended(self) -> bool:
        """Return whether the producer has failed, or was closed: it takes no further records."""
        return self.closed or (self._background is not None and self._background.done())

    def _check_alive(self) -> None:
        if self._background is None:
            self._background = asyncio.get_running_loop().create_task(self._dispatcher.run(), name="ledgermq producer")
            self._background.add_done_callback(self._ended)
        elif self._background.done():
            failure = _failure(self._background)
            raise again(failure) from ended_by(self._background, "the producer")

    def _check_takes_records(self) -> None:
        self._check_usable()
        if self.draining:
            raise Closed(DRAINED)

    def _ended(self, background: asyncio.Task[None]) -> None:
        self._close_fast_path()
        if self._keeps:
            return
        was_closed = self.closed and background.cancelled()
        if background.cancelled() and not self.closed:
            self.warn_of_lost_records()
        self._abandon(Unavailable("the producer was closed") if was_closed else _failure(background))

    def warn_of_lost_records(self) -> None:
        """Log how many records are not answered, because nothing will send them any longer."""
        if not self.is_part and (lost := self.unanswered_records):
            _log.warning(
                "%d records may not be stored: a producer was not closed before its event loop ended; use `async with`,"
                " or call close()",
                lost,
            )

    def _abandon(self, error: LedgerMQError) -> None:
        self._topics.abandon(error)
        if self._spilling is not None:
            self._spilling.abandon(error)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush within `timeout_s` (the delivery timeout if None), then close. With the setting
        `spill`, what is not stored by then is written to the local file.

        Raises what `flush` raises; the producer is closed nevertheless.
        """
        self._home.check()
        if self.closed:
            return
        self.closed = True
        self._close_fast_path()
        try:
            if self._background is not None and not self._background.done():
                try:
                    await self._flush(self.settings.delivery_timeout_s if timeout_s is None else timeout_s)
                except DeadlineExceeded:
                    if self._spilling is None:
                        raise
                    await self._spill_rest(self._spilling)
                    if self._calls.waiting_records or (self._delayed is not None and self._delayed.unanswered_records):
                        raise  # delayed records are not spilled, nor are those that wait for room
            self._raise_unseen()
        finally:
            await self.abort()

    async def _spill_rest(self, spilling: Spilling) -> None:
        """End the background, and write what it has not sent. Batches on their way are in doubt, and are written
        with their sequences.
        """
        self._keeps = True
        await end(self._background)
        try:
            await spilling.finish(keeps=True)
        finally:
            self._abandon(Unavailable("the producer was closed"))

    async def abort(self) -> None:
        """Close at once: unanswered records fail with Unavailable, or with OutcomeUnknown if they
        were on their way.
        """
        self._home.check()
        self.closed = True
        await end(*self._calls.forget())
        self._close_fast_path()
        if self._delayed is not None:
            await self._delayed.abort()
        await end(self._background)
        if self._spilling is not None:
            await self._spilling.finish()
        if self._exclusive is not None:
            await self._exclusive.close()

    async def __aenter__(self) -> Self:
        if self._spilling is not None:
            await self.open_spill()
        return self

    async def open_spill(self) -> None:
        """Open the file of the setting `spill`, and begin to send what it has; `async with` and the first `send` do
        this, too. Raises UsedElsewhere (another process has it open), DataDamaged, FormatNotSupported,
        StoreUnusable, StoreFull.
        """
        if self._spilling is None:
            raise InvalidConfig("this producer has no spill: make it with client.producer(spill=ledgermq.Spill(path))")
        self._check_usable()
        await self._spilling.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()


_made: weakref.WeakSet[Producer] = weakref.WeakSet()


def _warn_at_exit() -> None:
    """Warn of the records of producers whose loops have stopped. `ledgermq.sync`, whose loop runs on, warns itself."""
    for producer in list(_made):
        if not (producer.closed or producer._home.left or producer._home.runs):
            producer.warn_of_lost_records()


atexit.register(_warn_at_exit)


def _calling(callback: OnDelivery, delivery: Delivery) -> Delivery:
    delivery.call_when_done(callback)
    return delivery


def _failure(background: asyncio.Task[None]) -> LedgerMQError:
    """Return why the background task failed: an error of the spill, or one that is a bug."""
    error = ended_by(background, "the producer")
    first = first_of(error) if isinstance(error, BaseExceptionGroup) else error
    if isinstance(first, LedgerMQError):
        return first
    return LedgerMQError(f"the producer's background task failed: {error!r}")
