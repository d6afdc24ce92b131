"""The records of a transaction, of one process or in two phases: the same calls as those of a producer, as long as the
transaction is open.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterable, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

from ledgermq.client.messages.record import Bytes, Headers, Record, Row
from ledgermq.client.producing.arrow.rows import ArrowData
from ledgermq.client.producing.buffering.queuing import Queuing
from ledgermq.client.producing.delivery import BatchDelivery, Deliveries, Delivery, OnDelivery
from ledgermq.client.producing.producer import Producer
from ledgermq.client.settings.serializers import S
from ledgermq.errors import GroupError, InvalidRecord, LedgerMQError, ProducerError, TransactionAborted

if TYPE_CHECKING:
    from ledgermq.telemetry.tracing import Tracing

T = TypeVar("T")


class TransactionRecords(Generic[S]):
    """The calls of a transaction that add records."""

    @abstractmethod
    def _sending(self) -> Producer[S] | TransactionRecords[S]:
        """Return what takes the records. Raises if the transaction accepts no further ones."""

    _producer: Producer[S]

    @property
    def tracing(self) -> Tracing | None:
        """Return the spans of the client, also before the transaction is open; None: it does not trace."""
        return self._producer.tracing

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
        id: Bytes | None = None,  # noqa: A002  as `Producer.send`
        priority: int | None = None,
        on_delivery: OnDelivery | None = None,
        timeout: float | timedelta | None = None,
    ) -> Delivery:
        """Queue one record, as `Producer.send`. The delivery is done when the record is staged. Its
        `offset` is None, because a record gets its offset after the commit.

        A record with `delay`, `deliver_at` or `delay_level` comes into its topic when the transaction is
        committed and the record's time has come. A delay counts from this call. Its `handle` is None.
        Records of transactions take no `id`: it is refused. With `timeout`, a late record aborts the transaction.
        Raises like `Producer.send`, and TransactionAborted, TransactionError, TransactionFenced.
        """
        record = (value, key, headers, tag, timestamp, partition, ttl, delay, deliver_at, delay_level, id, priority)
        return self._sending().send(topic, *record, on_delivery, timeout=timeout)

    def check_conditional(self, partition: int | None, expect_end: int, *, delayed: bool) -> None:
        """Raise InvalidRecord: a record of a transaction expects no end."""
        self._sending()
        raise InvalidRecord("a record of a transaction takes no expect_end: it gets its offset at the commit")

    def due_us(
        self,
        delay: float | timedelta | None,
        deliver_at: datetime | None,
        delay_level: int | None,
        timestamp: datetime | int | None,
    ) -> int | None:
        """Return when a record is due, as `Producer.due_us`."""
        return self._sending().due_us(delay, deliver_at, delay_level, timestamp)

    def send_many(
        self,
        topic: str,
        records: Iterable[Record | S | None] | AsyncIterable[Record | S | None],
        *,
        timeout: float | timedelta | None = None,
    ) -> Queuing[Deliveries]:
        """Queue many records, as `Producer.send_many`. A commit waits until all are queued; if one of a
        call that was not awaited is refused, the commit aborts the transaction, and raises its error.
        """
        return self._adding(self._sending().send_many(topic, records, timeout=timeout))

    def send_batch(
        self, topic: str, batch: ArrowData, *, partition: int | None = None, timeout: float | timedelta | None = None
    ) -> Queuing[BatchDelivery]:
        """Queue the rows of Arrow data, as `Producer.send_batch`."""
        return self._adding(self._sending().send_batch(topic, batch, partition=partition, timeout=timeout))

    def _adding(self, call: Queuing[T]) -> Queuing[T]:
        """Return a call that adds records and waits; a transaction counts those."""
        return call

    def add_row(
        self,
        topic: str,
        row: Row,
        size: int,
        partition: int | None,
        *,
        delayed: bool = False,
        deadline_s: float | None = None,
    ) -> Delivery:
        """Queue a row that was checked already; `size` is its `row_bytes`."""
        return self._sending().add_row(topic, row, size, partition, delayed=delayed, deadline_s=deadline_s)

    async def wait_for_room(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait until the buffer is no longer full, as `Producer.wait_for_room`."""
        await self._sending().wait_for_room(timeout)


def shown(error: LedgerMQError) -> LedgerMQError:
    """Return the error to raise for a failure: TransactionAborted if a new attempt may succeed."""
    if error.retriable or isinstance(error, ProducerError | GroupError):
        return TransactionAborted(f"the transaction has failed, and cannot commit; run it again ({error.message})")
    return type(error)(
        error.message, retry_after_ms=error.retry_after_ms, owner=error.owner, object_key=error.object_key
    )
