"""Hold records for a topic whose partitions are not known yet: they wait, in order, until a broker
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.record import ROW_OVERHEAD_BYTES, Row
from ledgermq.client.producing.arrow.rows import Piece
from ledgermq.client.producing.buffering.send_buffer import SendBuffer
from ledgermq.client.producing.delivery import BatchDelivery, Delivery, Outcome, Refused, SendResult, StoredRows
from ledgermq.errors import DeadlineExceeded, InvalidConfig, LedgerMQError


class Queues(Protocol):
    """The queues of a topic whose partitions are known."""

    def add(self, row: Row, size: int, partition: int | None, deadline_s: float | None = None) -> Delivery: ...
    def add_arrow(
        self, piece: Piece, buffer_bytes: int, partition: int | None, deadline_s: float | None = None
    ) -> Sequence[StoredRows]: ...


class Apart:
    """The place of one waiting record that may fail before the others, at its own time."""

    def __init__(self, at: TopicPartition, *, quiet: bool) -> None:
        self.at = at
        self.quiet = quiet
        self.outcome = Outcome()

    def result(self, row: int) -> SendResult:
        raise AssertionError(f"row {row} is not in a batch yet")


@dataclass(slots=True, eq=False)
class _Entry:
    """What waits: `enter` moves it to the topic's queues. `fail` fails it alone, and returns its outcome; None: it
    fails with the others only.
    """

    enter: Callable[[Queues], None]
    held_bytes: int
    records: int
    deadline_s: float | None
    fail: Callable[[LedgerMQError], Outcome] | None


class Unrouted:
    """The place of a topic's records until its partitions are known."""

    def __init__(self, topic: str, buffer: SendBuffer, *, quiet: bool = False) -> None:
        self.topic = topic
        self.at = TopicPartition(topic, -1)
        self.quiet = quiet
        self.outcome = Outcome()
        self._buffer = buffer
        self._entries: list[_Entry] = []
        self._deadline_s = inf
        """The first of the entries' deadlines."""

    @property
    def record_count(self) -> int:
        """Number of waiting entries; an Arrow batch counts as one."""
        return len(self._entries)

    def result(self, row: int) -> SendResult:
        raise AssertionError(f"row {row} is not in a batch yet")

    def add(self, row: Row, size: int, partition: int | None, deadline_s: float | None = None) -> Delivery:
        apart = None if deadline_s is None else Apart(self.at, quiet=self.quiet)
        delivery = Delivery(self if apart is None else apart, 0)
        held = size + ROW_OVERHEAD_BYTES

        def enter(topic: Queues) -> None:
            try:
                moved = topic.add(row, size, partition, deadline_s)
            except Exception as error:  # a user's partitioner may raise anything
                delivery.place = Refused(typed(error), self.at, quiet=self.quiet)
                self._buffer.note_failed(delivery.place.outcome, self.at)
                self._buffer.release(held)
            else:
                delivery.place, delivery.row = moved.place, moved.row
            if apart is not None:
                apart.outcome.settle()  # who waits for it looks where the record is now

        self._keep(_Entry(enter, held, 1, deadline_s, None if apart is None else partial(_settled, apart.outcome)))
        return delivery

    def _keep(self, entry: _Entry) -> None:
        self._entries.append(entry)
        if entry.deadline_s is not None:
            self._deadline_s = min(self._deadline_s, entry.deadline_s)

    def add_arrow(
        self, piece: Piece, buffer_bytes: int, partition: int | None, deadline_s: float | None = None
    ) -> BatchDelivery:
        outcome = Outcome()
        delivery = BatchDelivery(outcome)

        def enter(topic: Queues) -> None:
            try:
                delivery.batches = topic.add_arrow(piece, buffer_bytes, partition, deadline_s)
            except Exception as error:  # as above
                outcome.settle(typed(error))
                self._buffer.note_failed(outcome, self.at, piece.rows.num_rows)
                self._buffer.release(buffer_bytes)
            else:
                outcome.settle()

        self._keep(_Entry(enter, buffer_bytes, piece.rows.num_rows, deadline_s, partial(_settled, outcome)))
        return delivery

    def routed(self, topic: Queues) -> None:
        """Move everything to the queues of the topic."""
        for entry in self._entries:
            entry.enter(topic)
        self._entries = []
        self.outcome.settle()

    def failed(self, error: LedgerMQError) -> None:
        """Fail everything, because the topic's partitions cannot be looked up."""
        entries, self._entries = self._entries, []
        self.outcome.settle(error)
        if together := sum(entry.records for entry in entries if entry.fail is None):
            self._buffer.note_failed(self.outcome, self.at, together)
        self._fail(entries, error)

    def _fail(self, entries: Sequence[_Entry], error: LedgerMQError) -> None:
        for entry in entries:
            self._buffer.release(entry.held_bytes)
            if entry.fail is not None:
                self._buffer.note_failed(entry.fail(error), self.at, entry.records)

    def overdue(self, now_s: float) -> float | None:
        """Fail what has a deadline that has passed. Return the next deadline; None: there is none."""
        if self._deadline_s <= now_s:
            late = [each for each in self._entries if each.deadline_s is not None and each.deadline_s <= now_s]
            self._entries = [each for each in self._entries if each not in late]
            self._deadline_s = min((e.deadline_s for e in self._entries if e.deadline_s is not None), default=inf)
            text = f"records for topic {self.topic} were not sent in time: no broker has described the topic yet"
            self._fail(late, DeadlineExceeded(text))
        return None if self._deadline_s == inf else self._deadline_s


def _settled(outcome: Outcome, error: LedgerMQError) -> Outcome:
    outcome.settle(error)
    return outcome


def typed(error: Exception) -> LedgerMQError:
    """Return a LedgerMQError as it is, and any other error as one of the user's partitioner."""
    if isinstance(error, LedgerMQError):
        return error
    return InvalidConfig(f"the partitioner raised {type(error).__name__}: {error}")
