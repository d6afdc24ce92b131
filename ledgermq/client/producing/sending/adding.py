"""What puts records into a producer: single ones, those of `send_many`, Arrow data, encoded batches.

Each way checks its records, admits their bytes to the buffer, and finds the batch that they join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, Self, cast

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.due import due_of
from ledgermq.client.messages.record import (
    ROW_OVERHEAD_BYTES,
    Headers,
    PartitionAt,
    Record,
    Row,
    as_bytes,
    checked_headers,
    headers_of,
    row_bytes,
)
from ledgermq.client.producing.arrow.rows import Piece
from ledgermq.client.producing.buffering.preparing import prepared
from ledgermq.client.producing.buffering.timeouts import deadline_of, timeout_of
from ledgermq.client.producing.buffering.works import Adds, Prepared
from ledgermq.client.producing.delivery import BatchDelivery, Delivery, OnDelivery, Outcome, Place, Refused
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.sessions import EncodedBatch
from ledgermq.client.producing.routing.places_of_keys import PlacesOfKeys
from ledgermq.client.producing.routing.topic_queues import TopicQueues
from ledgermq.client.producing.routing.unrouted import typed
from ledgermq.client.producing.sending.lifetime import Lifetime
from ledgermq.errors import InvalidRecord, UnknownPartition, UnknownTopic


class Adding(Lifetime):
    """A producer without the calls of programs that send."""

    @property
    def _adds(self) -> Adds:
        """Made for each call: a cached property would give this object a dictionary, and each attribute that
        `send` looks up would take longer.
        """
        return Adds(
            self._join,
            self._add_plain_values,
            self._prepare,
            self._add_prepared,
            self._add_piece,
            self._failed_or_raised,
        )

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

    def _join(
        self, topic: str, value: Any, key: Any, headers: Headers | None, tag: Any, partition: Any, limit_bytes: int
    ) -> Batch | None:
        """Add a record of the present time like `_add_plain`, with whatever else it has: into the open batch of its
        partition, which is returned; the record is its last one. Return None if any other check is needed. Raises
        InvalidRecord.
        """
        if key is None and partition is None:
            batch = self._open.get(topic)
        else:
            places = self._keyed.get(topic)
            if places is None:
                return None
            if places.count != len(places.queues):
                places.renew()
            if partition is None:
                key, queue = places[
                    key if type(key) is str or type(key) is bytes else cast(bytes, as_bytes("key", key))
                ]
            else:
                if type(partition) is not int or not 0 <= partition < places.count:
                    return None
                key, queue = as_bytes("key", key), places.queues[partition]
            batch = queue.open
        if batch is None or (tag is not None and not (type(tag) is str and tag.isascii())):
            return None
        if headers is not None and not isinstance(headers, dict | list | tuple):
            return None  # what can be read once only, such as a generator, is left to the way with all checks
        if type(value) is not bytes:
            value = as_bytes("value", value)
        pairs = None if headers is None else checked_headers(headers)
        row = (key, value, pairs, self._sources.now_us(), tag)
        size = row_bytes(row) if pairs else (len(key) if key else 0) + (len(value) if value else 0)
        buffer = self._buffer
        held_bytes = buffer.held_bytes + size + ROW_OVERHEAD_BYTES
        if batch.data_bytes + size > batch.row_bytes_max or held_bytes > limit_bytes:
            return None
        buffer.held_bytes = held_bytes
        batch.join(row, size)
        return batch

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
        """Queue a row that was checked already; `size` is its `row_bytes`. `delayed`: its timestamp is
        a due time. `deadline_s`: loop time at which it fails; None: after the delivery timeout.
        """
        self._check_takes_records()
        return self._add_row(topic, row, size, partition, deadline_s, delayed=delayed)

    def _add_row(
        self, topic: str, row: Row, size: int, partition: int | None, deadline_s: float | None, *, delayed: bool
    ) -> Delivery:
        self._check_alive()
        if delayed:
            return self._delayed_producer().add_row(topic, row, size, partition, deadline_s=deadline_s)
        held = size + ROW_OVERHEAD_BYTES
        self._buffer.admit(held)
        try:
            place = self._topics.topic(topic)
            delivery = place.add(row, size, partition, deadline_s)
        except BaseException as error:
            self._buffer.release(held)
            if isinstance(error, UnknownPartition | InvalidRecord):
                self._discovery.refresh(topic)  # The topic may have grown, or deduplicate by now.
                self._wake.set()
            raise
        if self._takes_plain and isinstance(place, TopicQueues) and not (self.closed or self.draining):
            self._open_fast_path(topic, place, delivery.place, row, partition)
        return self._reported(delivery)

    def _open_fast_path(self, topic: str, queues: TopicQueues, joined: Place, row: Row, partition: int | None) -> None:
        assert isinstance(joined, Batch), "records of a known topic join batches"
        takes_rows = joined.row_bytes_max >= 0
        if row[0] is None and partition is None and (takes_rows or row[2] is None):
            self._open[topic] = joined
        known = self._keyed.get(topic)
        if takes_rows and (known is None or known.queues is not queues.queues):
            self._keyed[topic] = PlacesOfKeys(queues.queues)

    def _delayed_producer(self) -> Self:
        if self._exclusive is not None:
            raise InvalidRecord("an exclusive producer sends no delayed records: send them by another producer")
        if self._delayed is None:
            settings = replace(self.settings, acks="durable", idempotent=True, spill=None)
            publishing = self._publishing.delaying(self._context.clock)
            self._delayed = type(self)(self._context, settings, publishing, buffer=self._buffer)
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
        return delivery if self.settings.on_delivery is None else calling(self.settings.on_delivery, delivery)

    def _add_plain_values(
        self, topic: str, values: Sequence[bytes] | Sequence[str], limit_bytes: int
    ) -> tuple[Delivery, int] | None:
        """Add the first of `values`, all bytes or all text, as many as the open batch and the buffer take without
        another check, below `limit_bytes`. Return the first one's delivery and their number; None if there is no room
        for one. Only about as much text is encoded as there is room for. Raises UnicodeEncodeError.
        """
        batch = self._open.get(topic)
        if batch is None:
            return None
        room, room_held = batch.plain_bytes_max - batch.data_bytes, limit_bytes - self._buffer.held_bytes
        count, size = _fitting(values, room, room_held)
        found = cast(Sequence[bytes], values[:count])
        if count and isinstance(values[0], str):
            found = [text.encode() for text in cast(Sequence[str], values[:count])]
            count, size = _fitting(found, room, room_held)  # a text may have more bytes than characters
        if not count:
            return None
        self._buffer.held_bytes += size + count * ROW_OVERHEAD_BYTES
        return Delivery(batch, batch.add_plain_values(found[:count], size, self._sources.now_us())), count

    def _add_checked(
        self, topic: str, record: Record, expect_end: int | None, timeout: float | timedelta | None
    ) -> Delivery:
        """Add a record with all checks. Raises like `send`."""
        due_us = self.due_us(record.delay, record.deliver_at, record.delay_level, record.timestamp)
        if expect_end is not None:
            self.check_conditional(record.partition, expect_end, delayed=due_us is not None)
        deadline_s = None if timeout is None else deadline_of(timeout_of(timeout, self.settings))
        if due_us is not None and deadline_s is None and self._delayed is not None and _is_plain(record):
            delivery = self._delayed._add_plain(topic, record.value, self._buffer.unchecked_bytes, due_us)
            if delivery is not None:
                return delivery
        prepared = self._prepare_due(topic, record, due_us)
        place = PartitionAt.of(prepared.partition, expect_end)
        self._check_takes_records()
        return self._add_prepared(prepared._replace(partition=place, deadline_s=deadline_s))

    def _prepare(self, topic: str, record: Record) -> Prepared:
        """Check a record of `send_many`. Raises like `send`."""
        due_us = self.due_us(record.delay, record.deliver_at, record.delay_level, record.timestamp)
        return self._prepare_due(topic, record, due_us)

    def _prepare_due(self, topic: str, record: Record, due_us: int | None) -> Prepared:
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
        topic, row, size, partition, is_delayed, deadline_s = prepared
        return self._add_row(topic, row, size, partition, deadline_s, delayed=is_delayed)

    def _failed_or_raised(self, error: Exception, topic: str) -> Delivery:
        """Return the delivery of a record of `send_many` that cannot be added; raise its error, unless the
        setting raise_on_error is False.
        """
        if self.settings.raise_on_error:
            raise error
        return self.refused(error, topic)

    def _check_piece(self, topic: str, partition: int | None, piece: Piece) -> None:
        if isinstance(place := self._topics.topic(topic), TopicQueues):
            place.check_arrow(piece, partition)

    def _add_piece(self, topic: str, piece: Piece, partition: int | None, deadline_s: float | None) -> BatchDelivery:
        """Queue rows that fit."""
        held = piece.rows.nbytes + ROW_OVERHEAD_BYTES
        self._buffer.admit(held)
        try:
            place = self._topics.topic(topic)
            if not isinstance(place, TopicQueues):
                return place.add_arrow(piece, held, partition, deadline_s)
            routed = Outcome()
            routed.settle()
            delivery = BatchDelivery(routed)
            delivery.batches = place.add_arrow(piece, held, partition, deadline_s)
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


def _fitting(values: Sequence[bytes] | Sequence[str], room: int, room_held: int) -> tuple[int, int]:
    """Return how many of the first values fit, at least half of the possible number, and their length."""
    sizes = list(accumulate(map(len, values)))
    count = len(values)
    while count and (sizes[count - 1] > room or sizes[count - 1] + count * ROW_OVERHEAD_BYTES > room_held):
        count //= 2
    return count, sizes[count - 1] if count else 0


def calling(callback: OnDelivery, delivery: Delivery) -> Delivery:
    delivery.call_when_done(callback)
    return delivery


def _is_plain(record: Record) -> bool:
    """Return whether a delayed record has a value and nothing else besides its delay."""
    return (
        type(record.value) is bytes
        and record.key is None
        and record.headers is None
        and record.tag is None
        and record.timestamp is None
        and record.partition is None
        and record.ttl is None
        and record.id is None
        and record.priority is None
    )
