"""Produce without asyncio: records cross to the background thread many at a time."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

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
from ledgermq.client.producing.arrow.rows import ArrowData, table_of
from ledgermq.client.producing.buffering.preparing import prepared
from ledgermq.client.producing.buffering.queuing import Queuing
from ledgermq.client.producing.buffering.timeouts import deadline_of, timeout_of
from ledgermq.client.producing.delivery import BatchDelivery, BatchResult, OnDelivery, SendResult
from ledgermq.client.producing.delivery import Delivery as AsyncDelivery
from ledgermq.client.producing.producer import Producer as AsyncProducer
from ledgermq.client.producing.sending.lifetime import DRAINED
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.serializers import S
from ledgermq.errors import Closed, DeadlineExceeded, LedgerMQError
from ledgermq.sources import Sources
from ledgermq.sync.background import Background, as_coroutine
from ledgermq.sync.generated.producing import ProducerCalls
from ledgermq.telemetry.trace_context import with_context

if TYPE_CHECKING:
    from ledgermq.telemetry.tracing import Tracing

HANDED_OVER_RECORDS = 10_000
HANDED_OVER_BYTES = 4 * 1024 * 1024
HANDED_OVER_AFTER_S = 0.005
"""Records cross to the background thread when this many wait, after this time, or when a caller
waits for one.
"""


class Inner(Protocol):
    """What records are handed over to: an asynchronous producer, or a transaction."""

    @property
    def settings(self) -> ProducerSettings: ...
    @property
    def tracing(self) -> Tracing | None: ...
    @property
    def closed(self) -> bool: ...
    def due_us(
        self,
        delay: float | timedelta | None,
        deliver_at: datetime | None,
        delay_level: int | None,
        timestamp: datetime | int | None,
    ) -> int | None: ...
    def check_conditional(self, partition: int | None, expect_end: int, *, delayed: bool) -> None: ...
    def add_row(
        self,
        topic: str,
        row: Row,
        size: int,
        partition: int | None,
        *,
        delayed: bool = False,
        deadline_s: float | None = None,
    ) -> AsyncDelivery: ...
    def refused(self, error: Exception, topic: str) -> AsyncDelivery: ...
    async def wait_for_room(self, timeout: float | None = None) -> None: ...  # noqa: ASYNC109
    def send_batch(
        self, topic: str, batch: ArrowData, *, partition: int | None = None, timeout: float | timedelta | None = None
    ) -> Queuing[BatchDelivery]: ...
    async def flush(self, timeout_s: float | None = None) -> None: ...


In = TypeVar("In", bound=Inner)


class _Waits(Protocol):
    def wait_for(self, delivery: Delivery, timeout_s: float | None) -> None: ...


class Delivery:
    """A record on its way, which `send` returns."""

    __slots__ = ("_sender", "inner", "timeout_s")

    def __init__(self, sender: _Waits, timeout_s: float | None = None) -> None:
        self._sender = sender
        self.timeout_s = timeout_s
        """Time after which the record has failed; None: the delivery timeout."""
        self.inner: AsyncDelivery | None = None

    def result(self, timeout_s: float | None = None) -> SendResult:
        """Wait for the `SendResult`.

        Raises the error of the record, or DeadlineExceeded after `timeout_s`.
        """
        return self._done(timeout_s).result()

    def done(self) -> bool:
        return self.inner is not None and self.inner.done()

    def exception(self, timeout_s: float | None = None) -> LedgerMQError | None:
        """Wait, and return the error of the record; None: it is stored. Raises DeadlineExceeded
        after `timeout_s`.
        """
        return self._done(timeout_s).exception()

    def _done(self, timeout_s: float | None) -> AsyncDelivery:
        if self.inner is None or not self.inner.done():
            self._sender.wait_for(self, timeout_s)
        assert self.inner is not None, "what was sent is handed over"
        return self.inner


class Sender(Generic[In, S]):
    """Queues records, and hands them over to the background thread many at a time. Several threads may send at a
    time; the records of each keep their order.

    `send` blocks while the buffer is full (or raises, with when_full="fail").
    """

    def __init__(self, background: Background, inner: In, sources: Sources) -> None:
        self._background = background
        self._inner = inner
        self._sources = sources
        self._headers_of = _headers_of(inner.tracing)
        self._inbox: deque[tuple[str, Row, int, int | None, bool, Delivery, OnDelivery | None]] = deque()
        self._inbox_bytes = 0
        self._handing_over = False
        self._lock = threading.RLock()
        """Guards the inbox. A signal's handler may send while its thread is in `send`."""

    def send(
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
        id: Bytes | None = None,
        priority: int | None = None,
        on_delivery: OnDelivery | None = None,
        timeout: float | timedelta | None = None,
        expect_end: int | None = None,
    ) -> Delivery:
        """Queue one record. Raises InvalidRecord, and TransactionError for a delay in a transaction; the delivery's
        `result()` raises all other errors, or returns them with raise_on_error=False. `on_delivery` runs in the
        client's own thread. This call blocks no longer than `timeout`.
        """
        self._background.home.check_process()
        self._check()
        try:
            timeout_s = timeout_of(timeout, self._inner.settings)
            delivery = Delivery(self, timeout_s)
            headers = self._headers_of(headers, id, priority, partition)
            due_us = self._inner.due_us(delay, deliver_at, delay_level, timestamp)
            moment, delayed = (timestamp, False) if due_us is None else (due_us, True)
            if expect_end is not None:
                self._inner.check_conditional(partition, expect_end, delayed=delayed)
            now_us = self._sources.now_us()
            topic, row, partition = prepared(
                self._inner.settings, topic, value, key, headers, tag, moment, partition, ttl, now_us, delayed=delayed
            )
            partition, size = PartitionAt.of(partition, expect_end), row_bytes(row)
            if timeout_s is not None or self._inner.settings.when_full == "fail":
                delivery.inner = self._add_at_once(topic, row, size, partition, delayed, timeout_s)
                return self._calling(on_delivery, delivery)
        except Exception as error:  # a user's partitioner may raise anything
            if self._inner.settings.raise_on_error:
                raise
            failure, delivery = error, Delivery(self)
            delivery.inner = self._background.run(as_coroutine(lambda: self._inner.refused(failure, topic)))
            return self._calling(on_delivery, delivery)
        with self._lock:
            self._inbox.append((topic, row, size, partition, delayed, delivery, on_delivery))
            self._inbox_bytes += size + ROW_OVERHEAD_BYTES
            is_full = self._inbox_bytes >= HANDED_OVER_BYTES or len(self._inbox) >= HANDED_OVER_RECORDS
            is_first = not is_full and not self._handing_over
            self._handing_over |= is_first
        if is_full:
            self._background.run(self._hand_over_and_wait())
        elif is_first:
            loop = self._background.loop
            loop.call_soon_threadsafe(loop.call_later, HANDED_OVER_AFTER_S, self.hand_over)
        return delivery

    def _add_at_once(
        self, topic: str, row: Row, size: int, partition: int | None, delayed: bool, timeout_s: float | None
    ) -> AsyncDelivery:
        """Queue a record behind all that were sent before, and wait for room if it has a timeout."""

        async def add() -> AsyncDelivery:
            deadline_s = deadline_of(timeout_s)
            if deadline_s is not None:
                self.hand_over()
                await self._inner.wait_for_room(timeout_s)
            return self._inner.add_row(topic, row, size, partition, delayed=delayed, deadline_s=deadline_s)

        return self._background.run(add(), timeout_s)

    def _calling(self, on_delivery: OnDelivery | None, delivery: Delivery) -> Delivery:
        inner = delivery.inner
        if on_delivery is not None and inner is not None:
            self._background.run(as_coroutine(lambda: inner.call_when_done(on_delivery)))
        return delivery

    def _check(self) -> None:
        """Raise if no record can be sent."""
        if self._inner.closed:
            raise Closed("the producer is closed")

    def wait_for(self, delivery: Delivery, timeout_s: float | None) -> None:
        """Wait until a delivery is done. Raises DeadlineExceeded."""

        async def wait() -> None:
            self.hand_over()
            assert delivery.inner is not None, "what was sent is handed over"
            try:
                async with asyncio.timeout(timeout_s):
                    await delivery.inner.wait()
            except TimeoutError as error:
                raise DeadlineExceeded(
                    f"no answer for the record within {timeout_s} s; it is still on its way"
                ) from error

        self._background.run(wait(), delivery.timeout_s if timeout_s is None else timeout_s)

    def hand_over(self) -> None:
        """Pass the waiting records to the inner producer.

        Runs in the background thread; a closed producer refuses the records.
        """
        with self._lock:
            taken, self._inbox = self._inbox, deque()
            self._inbox_bytes, self._handing_over = 0, False
        for topic, row, size, partition, delayed, delivery, on_delivery in taken:
            try:
                delivery.inner = self._inner.add_row(topic, row, size, partition, delayed=delayed)
            except Exception as error:  # a user's partitioner may raise anything
                delivery.inner = self._inner.refused(error, topic)
            if on_delivery is not None:
                delivery.inner.call_when_done(on_delivery)

    async def _hand_over_and_wait(self) -> None:
        await self._inner.wait_for_room()
        self.hand_over()

    def send_many(
        self, topic: str, records: Iterable[Record | S | None], *, timeout: float | timedelta | None = None
    ) -> list[Delivery]:
        """Queue many records. Raises like `send`. `timeout`: as there, of each record from its own turn on."""
        deliveries = []
        for record in records:
            fields = record if isinstance(record, Record) else Record(record)
            deliveries.append(self.send(topic, fields.value, *fields[1:], timeout=timeout))
        return deliveries

    def send_batch(
        self, topic: str, batch: ArrowData, *, partition: int | None = None, timeout: float | timedelta | None = None
    ) -> list[BatchResult]:
        """Store the rows of Arrow data (see `ledgermq.Producer.send_batch`), and wait until they are stored.

        Raises InvalidRecord, MessageTooLarge, … and the errors of the rows.
        """
        timeout_s = timeout_of(timeout, self._inner.settings)

        rows = table_of(batch)  # a query of the program runs in the program's thread

        async def send() -> list[BatchResult]:
            self.hand_over()
            return await (await self._inner.send_batch(topic, rows, partition=partition, timeout=timeout_s))

        return self._background.run(send(), timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """See `ledgermq.Producer.flush`, or `ledgermq.Transaction.flush`."""

        async def flush() -> None:
            self.hand_over()
            await self._inner.flush(timeout_s)

        self._background.run(flush(), timeout_s)


def _headers_of(tracing: Tracing | None) -> Callable[[Headers | None, Any, int | None, int | None], Headers | None]:
    """Return what makes the headers of a record from those that are given, with the trace that is current in the
    program's thread.
    """
    if tracing is None:
        return headers_of

    def traced(headers: Headers | None, message_id: Any, priority: int | None, partition: int | None) -> Headers | None:
        carried = tracing.carried()
        return headers_of(
            headers if carried is None else with_context(headers, carried), message_id, priority, partition
        )

    return traced


class Producer(Sender[AsyncProducer[S], S], ProducerCalls[S]):
    """See `ledgermq.Producer`.

    Here `send` blocks while the buffer is full (or raises, with when_full="fail").
    """

    def _check(self) -> None:
        super()._check()
        if self._inner.draining:
            raise Closed(DRAINED)

    @property
    def closed(self) -> bool:
        return self._inner.closed

    @property
    def unanswered_records(self) -> int:
        """See `ledgermq.Producer.unanswered_records`."""
        return len(self._inbox) + self._background.run(as_coroutine(lambda: self._inner.unanswered_records))

    @property
    def buffered_bytes(self) -> int:
        return self._inner.buffered_bytes + self._inbox_bytes

    def drain(self, timeout: float | None = None) -> list[SendResult]:
        """See `ledgermq.Producer.drain`."""

        async def drain() -> list[SendResult]:
            self.hand_over()
            return await self._inner.drain(timeout)

        return self._background.run(drain(), timeout)

    def close(self, timeout_s: float | None = None) -> None:
        """See `ledgermq.Producer.close`."""

        async def close() -> None:
            self.hand_over()
            await self._inner.close(timeout_s)

        self._background.run(close(), timeout_s)

    def abort(self) -> None:
        """See `ledgermq.Producer.abort`."""

        async def abort() -> None:
            await self._inner.abort()
            self.hand_over()

        self._background.run(abort())

    def __enter__(self) -> Self:
        if self._inner.settings.spill is not None:
            self.open_spill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
