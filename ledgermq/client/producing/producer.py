"""The producer that programs call: bounded in memory, idempotent by default, ordered per
partition.

    send ──> SendBuffer (admission) ──> TopicQueues ──> PartitionQueue ──> Dispatcher ──> ProduceStream, one per broker
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable
from datetime import datetime, timedelta
from functools import partial
from threading import get_ident
from typing import Generic, Self

from ledgermq.client.messages.record import Bytes, Headers, Record
from ledgermq.client.producing.arrow.rows import ArrowData, Pieces, table_of
from ledgermq.client.producing.buffering.queuing import Queuing
from ledgermq.client.producing.buffering.timeouts import deadline_of, timeout_of
from ledgermq.client.producing.buffering.works import ArrowRows, ManyRecords
from ledgermq.client.producing.delivery import BatchDelivery, Deliveries, Delivery, OnDelivery
from ledgermq.client.producing.sending.adding import Adding, calling
from ledgermq.client.settings.serializers import S
from ledgermq.client.settings.spill import SpillState
from ledgermq.errors import DeadlineExceeded, InvalidConfig, InvalidRecord


class Producer(Adding, Generic[S]):
    """A producer, made by `client.producer(**settings)`. To type checkers it is a `Producer[Order]` if its serializer
    takes orders; `Producer` alone takes any value.

    Use it within one event loop, in an `async with` block, or call `close()` at the end.
    """

    def send(  # no argument is keyword-only: CPython calls such a function 50 ns slower
        self,
        topic: str,
        value: S | None,
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
        timeout: float | timedelta | None = None,
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
        defaults of `acks` and `idempotent`. `timeout`: seconds, or a timedelta, after which the record has failed;
        at most, and by default, the setting `delivery_timeout_s`. The error is DeadlineExceeded if the record is
        surely not stored, OutcomeUnknown if it was sent and may be stored. Raises InvalidRecord, MessageTooLarge,
        UnknownPartition for this record, and ResourceExhausted when the buffer is full; other
        records are not affected. Errors that occur later (the topic does not exist, …) are raised
        where the result is awaited, or by the next `flush()` if the program never awaits it.
        """
        if get_ident() != self._home.thread or self._home.left:
            self._home.check()
        try:
            if self._calls.unawaited:
                self._calls.hurry()
            if (
                timestamp is None
                and ttl is None
                and delay is None
                and deliver_at is None
                and delay_level is None
                and id is None
                and priority is None
                and expect_end is None
                and timeout is None
            ):
                limit_bytes = self._buffer.unchecked_bytes
                if type(value) is bytes and key is None and headers is None and tag is None and partition is None:
                    delivery = self._add_plain(topic, value, limit_bytes)
                else:
                    batch = self._join(topic, value, key, headers, tag, partition, limit_bytes)
                    delivery = None if batch is None else batch.last()
                if delivery is not None:
                    return delivery if on_delivery is None else calling(on_delivery, delivery)
            record = Record(
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
            )
            delivery = self._add_checked(topic, record, expect_end, timeout)
        except Exception as error:  # a user's partitioner may raise anything
            if self.settings.raise_on_error:
                raise
            delivery = self._failed(error, topic)
        return delivery if on_delivery is None else calling(on_delivery, delivery)

    def send_many(
        self,
        topic: str,
        records: Iterable[Record | S | None] | AsyncIterable[Record | S | None],
        *,
        timeout: float | timedelta | None = None,
    ) -> Queuing[Deliveries]:
        """Queue many records (`Record`, or values), waiting for room whenever the buffer is full. A
        plain value stands for a record without a key.

        Begins at once. Await it until all records are queued, for their `Deliveries`; await those for
        the `SendResult`s. If it is not awaited, the records that did not fit are queued later, before
        all that is sent after this call; `flush` and `close` wait for them, and raise its error.

        `records`: a list is copied if it does not fit at once. An iterator, also an asynchronous one,
        is read as room becomes available; records that are sent meanwhile do not wait for an
        asynchronous one. Raises like `send` where it is awaited; records before the refused one stay
        queued. `timeout`: as in `send`, the wait for room included; of a list it counts from this call on, else from
        the time when each record is taken from `records`. A list of `bytes`, or of text, is fastest: those that join
        a batch at once get the same timestamp.
        """
        self._check_takes_records()
        timeout_s = timeout_of(timeout, self.settings)
        check = partial(self._check_goes_on, self._fresh_starts)
        if isinstance(records, AsyncIterable):
            deliveries = Deliveries()
            return self._calls.begin_reading(
                records,
                lambda record: ManyRecords(self._adds, topic, (record,), deliveries, timeout_s),
                check,
                deliveries,
            )
        return self._calls.begin(lambda: ManyRecords(self._adds, topic, records, None, timeout_s), check)

    def _check_goes_on(self, fresh_starts: int, is_awaited: bool) -> None:
        """Raise if a call that has begun must add no further record: `start_over` was called since there
        were so many, or the producer takes no records. It still takes those of a call that is not awaited
        while it is drained or closed.
        """
        if fresh_starts != self._fresh_starts:
            raise type(self._ended_before)(self._ended_before.message)
        if is_awaited:
            self._check_takes_records()

    def send_batch(
        self, topic: str, batch: ArrowData, *, partition: int | None = None, timeout: float | timedelta | None = None
    ) -> Queuing[BatchDelivery]:
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
        `ledgermq.priority` of a row, a number as text, chooses the nearest level. More than that is queued piece by
        piece. `timeout`: as in `send`, for all rows from this call on, the wait for room included. Raises
        InvalidRecord, MessageTooLarge, UnknownPartition before any row is queued.
        """
        self._check_takes_records()
        deadline_s = deadline_of(timeout_of(timeout, self.settings))

        def rows() -> ArrowRows:
            pieces = Pieces(table_of(batch), self._sources.now_us())
            if partition is not None and pieces.has_partitions:
                raise InvalidRecord("the partition is given twice, as a column and as an argument: leave one out")
            pieces.check(partial(self._check_piece, topic, partition))
            return ArrowRows(self._adds, topic, pieces, partition, deadline_s)

        return self._calls.begin(rows, partial(self._check_goes_on, self._fresh_starts))

    async def wait_for_room(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  as `send`
        """Wait until the buffer is no longer full, at most `timeout` seconds; a loop of plain `send` calls should await
        this now and then. Raises like `send_many`.
        """
        self._check_takes_records()
        await self._buffer.wait_for_room(deadline_s=deadline_of(timeout))

    @property
    def spilled(self) -> SpillState | None:
        """Return the state of the local file of the setting `spill`; None without that setting."""
        return None if self._spilling is None else self._spilling.state

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
