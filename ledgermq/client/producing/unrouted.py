"""Hold records for a topic whose partitions are not known yet: they wait, in order, until a broker
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.record import ROW_OVERHEAD_BYTES, Row
from ledgermq.client.producing.arrow_rows import Piece
from ledgermq.client.producing.batch import Batch
from ledgermq.client.producing.delivery import BatchDelivery, Delivery, Outcome, Refused, SendResult
from ledgermq.client.producing.send_buffer import SendBuffer
from ledgermq.errors import InvalidConfig, LedgerMQError


class Queues(Protocol):
    """The queues of a topic whose partitions are known."""

    def add(self, row: Row, size: int, partition: int | None) -> Delivery: ...
    def add_arrow(self, piece: Piece, buffer_bytes: int, partition: int | None) -> Sequence[Batch]: ...


class Unrouted:
    """The place of a topic's records until its partitions are known."""

    def __init__(self, topic: str, buffer: SendBuffer, *, quiet: bool = False) -> None:
        self.topic = topic
        self.at = TopicPartition(topic, -1)
        self.quiet = quiet
        self.outcome = Outcome()
        self._buffer = buffer
        self._enter: list[Callable[[Queues], None]] = []
        self._held_bytes = self._records = 0
        self._arrow: list[Outcome] = []

    @property
    def record_count(self) -> int:
        """Number of waiting entries; an Arrow batch counts as one."""
        return len(self._enter)

    def result(self, row: int) -> SendResult:
        raise AssertionError(f"row {row} is not in a batch yet")

    def add(self, row: Row, size: int, partition: int | None) -> Delivery:
        delivery = Delivery(self, 0)
        held = size + ROW_OVERHEAD_BYTES
        self._held_bytes += held
        self._records += 1

        def enter(topic: Queues) -> None:
            try:
                moved = topic.add(row, size, partition)
            except Exception as error:  # a user's partitioner may raise anything
                delivery.place = Refused(typed(error), self.at, quiet=self.quiet)
                self._buffer.note_failed(delivery.place.outcome, self.at)
                self._buffer.release(held)
            else:
                delivery.place, delivery.row = moved.place, moved.row

        self._enter.append(enter)
        return delivery

    def add_arrow(self, piece: Piece, buffer_bytes: int, partition: int | None) -> BatchDelivery:
        outcome = Outcome()
        delivery = BatchDelivery(outcome)
        self._held_bytes += buffer_bytes
        self._records += piece.rows.num_rows
        self._arrow.append(outcome)

        def enter(topic: Queues) -> None:
            try:
                delivery.batches = topic.add_arrow(piece, buffer_bytes, partition)
            except Exception as error:  # as above
                outcome.settle(typed(error))
                self._buffer.note_failed(outcome, self.at, piece.rows.num_rows)
                self._buffer.release(buffer_bytes)
            else:
                outcome.settle()

        self._enter.append(enter)
        return delivery

    def routed(self, topic: Queues) -> None:
        """Move everything to the queues of the topic."""
        for enter in self._enter:
            enter(topic)
        self._enter = []
        self.outcome.settle()

    def failed(self, error: LedgerMQError) -> None:
        """Fail everything, because the topic's partitions cannot be looked up."""
        records, self._enter = self._records, []
        self._buffer.release(self._held_bytes)
        self.outcome.settle(error)
        self._buffer.note_failed(self.outcome, self.at, records)
        for outcome in self._arrow:
            outcome.settle(error)


def typed(error: Exception) -> LedgerMQError:
    """Return a LedgerMQError as it is, and any other error as one of the user's partitioner."""
    if isinstance(error, LedgerMQError):
        return error
    return InvalidConfig(f"the partitioner raised {type(error).__name__}: {error}")
