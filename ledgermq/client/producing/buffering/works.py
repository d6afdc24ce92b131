"""The work of a call that queues many records: adds them as room becomes available."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ledgermq.client.messages.record import ROW_OVERHEAD_BYTES, Headers, Record, Row
from ledgermq.client.producing.arrow.rows import Piece
from ledgermq.client.producing.buffering.send_buffer import SendBuffer
from ledgermq.client.producing.buffering.timeouts import deadline_of
from ledgermq.client.producing.delivery import BatchDelivery, Deliveries, Delivery
from ledgermq.client.producing.partition.batch import Batch

RECORDS_PER_STEP = 1000
"""Number of records after which a call lets other tasks run."""

_END = object()
T_co = TypeVar("T_co", covariant=True)


class Prepared(NamedTuple):
    """A record that was checked. `held`: bytes that it takes in the buffer. `deadline_s`: as in `Batch`."""

    topic: str
    row: Row
    size: int
    partition: int | None
    is_delayed: bool
    deadline_s: float | None = None

    @property
    def held(self) -> int:
        return self.size + ROW_OVERHEAD_BYTES


class Adds(NamedTuple):
    """What calls add records to: functions of the producer. `prepare` checks a record. `failed_or_raised`
    returns the delivery of a record that cannot be added, or raises its error, as `raise_on_error` says.
    """

    join: Callable[[str, Any, Any, Headers | None, Any, Any, int], Batch | None]
    plain_values: Callable[[str, Sequence[bytes] | Sequence[str], int], tuple[Delivery, int] | None]
    prepare: Callable[[str, Record], Prepared]
    prepared: Callable[[Prepared], Delivery]
    piece: Callable[[str, Piece, int | None, float | None], BatchDelivery]
    failed_or_raised: Callable[[Exception, str], Delivery]


class Work(Protocol[T_co]):
    """Records of a call. `add` adds some of those that are left, as long as they fit below
    `limit_bytes`, and returns None once all are added, the bytes that the next one needs if it does not
    fit, else 0. `refuse` is called when there was no room for the next one in time, which is at most until
    `deadline_s`, by the loop's time; None: the delivery timeout.
    """

    @property
    def result(self) -> T_co: ...
    @property
    def left(self) -> int: ...
    @property
    def deadline_s(self) -> float | None: ...
    def keep(self) -> None: ...
    def add(self, buffer: SendBuffer, limit_bytes: int, records_max: int) -> int | None: ...
    def refuse(self, error: Exception) -> None: ...


class ManyRecords:
    """Records of `send_many`. `timeout_s`: from now on for those of a list, else from the time when each is taken."""

    def __init__(
        self,
        adds: Adds,
        topic: str,
        records: Iterable[Record | Any],
        result: Deliveries | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self.deadline_s = deadline_of(timeout_s)
        self.result = Deliveries() if result is None else result
        self._adds = adds
        self._topic = topic
        self._sequence: Sequence[Any] | None = records if isinstance(records, list | tuple) else None
        self._iterator = iter(records) if self._sequence is None else None
        self._at = 0
        self._piece_end = 0
        self._is_plain = False
        """Whether the values up to `_piece_end` are plain bytes."""
        self._is_text = False
        self._waiting: Prepared | None = None

    @property
    def left(self) -> int:
        """Records that are not added yet, where their number is known."""
        ahead = 0 if self._sequence is None else len(self._sequence) - self._at
        return ahead + (self._waiting is not None)

    def keep(self) -> None:
        """Make a copy of a list, which the program may change after the call."""
        if isinstance(self._sequence, list):
            self._sequence = self._sequence[self._at :]
            self._at = self._piece_end = 0

    def add(self, buffer: SendBuffer, limit_bytes: int, records_max: int) -> int | None:
        left = records_max
        while left > 0:
            if self._waiting is None:
                if count := self._add_values(limit_bytes, left):
                    left -= count
                    continue
                if not self._take(limit_bytes):
                    return None
            elif not buffer.fits(self._waiting.held, limit_bytes):
                return self._waiting.held
            else:
                prepared, self._waiting = self._waiting, None
                self._add(prepared)
            left -= self._waiting is None
        return None if self._sequence is not None and not self.left else 0

    def refuse(self, error: Exception) -> None:
        self._waiting = None
        self.result.add(self._adds.failed_or_raised(error, self._topic))

    def _add(self, prepared: Prepared) -> None:
        try:
            delivery = self._adds.prepared(prepared)
        except Exception as error:  # a user's partitioner may raise anything
            delivery = self._adds.failed_or_raised(error, self._topic)
        self.result.add(delivery)

    def _take(self, limit_bytes: int) -> bool:
        """Take the next record, and add it if that needs no check. Return False if there is none."""
        if self._iterator is not None:
            record = next(self._iterator, _END)
            if record is _END:
                return False
            self.deadline_s = deadline_of(self._timeout_s)
        else:
            assert self._sequence is not None, "records are a sequence or an iterator"
            if self._at >= len(self._sequence):
                return False
            record = self._sequence[self._at]
            self._at += 1
        try:
            if self.deadline_s is None and (batch := self._joined(record, limit_bytes)) is not None:
                self.result.add_rows(batch, batch.record_count - 1)
                return True
            waiting = self._adds.prepare(self._topic, record if isinstance(record, Record) else Record(record))
            self._waiting = waiting._replace(deadline_s=self.deadline_s)
        except Exception as error:  # as in `send`
            self.result.add(self._adds.failed_or_raised(error, self._topic))
        return True

    def _joined(self, record: Any, limit_bytes: int) -> Batch | None:
        """Add a record that needs no further check, and return its batch. Return None for any other one."""
        if type(record) is not Record:
            if isinstance(record, Record):
                return None
            return self._adds.join(self._topic, record, None, None, None, None, limit_bytes)
        value, key, headers, tag, timestamp, partition, ttl, delay, deliver_at, delay_level, message_id, priority = (
            record
        )
        if (
            timestamp is None
            and ttl is None
            and delay is None
            and deliver_at is None
            and delay_level is None
            and message_id is None
            and priority is None
        ):
            return self._adds.join(self._topic, value, key, headers, tag, partition, limit_bytes)
        return None

    def _add_values(self, limit_bytes: int, count_max: int) -> int:
        """Add plain values of a sequence that join a batch at once. Return their number."""
        if self._sequence is None or self.deadline_s is not None:
            return 0
        if self._at >= self._piece_end:
            piece = self._sequence[self._at : self._at + RECORDS_PER_STEP]
            self._piece_end = self._at + len(piece)
            kinds = set(map(type, piece))
            self._is_plain, self._is_text = kinds == {bytes}, kinds == {str}
        if not (self._is_plain or self._is_text):
            return 0
        values = self._sequence[self._at : min(self._piece_end, self._at + count_max)]
        try:
            run = self._adds.plain_values(self._topic, values, limit_bytes)
        except UnicodeEncodeError:  # they are added one by one, so that the error is that of its record alone
            self._is_text = False
            return 0
        if run is None:
            return 0
        self.result.add(*run)
        self._at += run[1]
        return run[1]


class ArrowRows:
    """Rows of `send_batch`; one piece is added at a time."""

    def __init__(
        self, adds: Adds, topic: str, pieces: Iterable[Piece], partition: int | None, deadline_s: float | None = None
    ) -> None:
        self.deadline_s = deadline_s
        self._adds = adds
        self._topic = topic
        self._pieces = iter(pieces)
        self._partition = partition
        self._next = next(self._pieces, None)
        self._delivery: BatchDelivery | None = None

    @property
    def result(self) -> BatchDelivery:
        assert self._delivery is not None, "data without rows is refused"
        return self._delivery

    @property
    def left(self) -> int:
        """Rows of the piece that waits."""
        return 0 if self._next is None else self._next.rows.num_rows

    def keep(self) -> None:
        """Arrow data does not change."""

    def add(self, buffer: SendBuffer, limit_bytes: int, records_max: int) -> int | None:
        while (piece := self._next) is not None:
            held: int = piece.rows.nbytes + ROW_OVERHEAD_BYTES
            if not buffer.fits(held, limit_bytes):
                return held
            delivery = self._adds.piece(self._topic, piece, self._partition, self.deadline_s)
            if self._delivery is None:
                self._delivery = delivery
            else:
                self._delivery.join(delivery)
            self._next = next(self._pieces, None)
            records_max -= piece.rows.num_rows
            if self._next is not None and records_max <= 0:
                return 0
        return None

    def refuse(self, error: Exception) -> None:
        raise error
