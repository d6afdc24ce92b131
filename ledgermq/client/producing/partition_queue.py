"""One partition's batches in a producer: which may be sent now, and what an answer means for them.
Pure: no I/O, time is an argument.

    open ──seal──> sealed ──take──> window (≤ 5: on their way, or to be sent again) ──> settled

Invariants
- Batches are settled, and sent, in the order of their records; after a failure nothing is sent before all that is on its way has been
  answered, then everything in the window is sent again in order.
- Sequences of a session are dense and never used twice for different records.
- A batch whose sequence was decided before it came here is sent under that or not at all: it is given up with the one before it.
- A session ends when its numbering cannot go on: the broker forgot the producer, or a batch in the middle was given up. Batches whose
  outcome is not known then fail with OutcomeUnknown, never sent again; the others get new numbers in a new session (design P5).

A session belongs to one partition, so that its end disturbs no other; brokers remember producers by
partition anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ledgermq.client.producing.batch import Batch
from ledgermq.errors import (
    DeadlineExceeded,
    LedgerMQError,
    NotOwner,
    OutcomeUnknown,
    OutOfOrderSequence,
    ResourceExhausted,
    StoreFull,
    Unavailable,
    UnknownProducer,
)
from ledgermq.runtime.backoff import Backoff


@dataclass(slots=True)
class Session:
    """`opened_slot`: the end slot that the owner named before the first batch was sent."""

    id: bytes
    opened_slot: int
    epoch: int = 0
    next_sequence: int = 0


Failure = tuple[Batch, LedgerMQError]


class PartitionQueue:
    """`window_batches`: that many may be sent, counted from the oldest unacknowledged one; one,
    without sessions, else a retry would change the order."""

    def __init__(
        self, topic: str, topic_id: int, partition: int, *, idempotent: bool, window_batches: int, backoff: Backoff
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.open: Batch | None = None
        self.session: Session | None = None
        self.opening = False
        self.not_before_s = 0.0
        self.last_error: LedgerMQError | None = None
        self._idempotent = idempotent
        self._window_batches = window_batches if idempotent else 1
        self._backoff = backoff
        self._sealed: deque[Batch] = deque()
        self._window: list[Batch] = []
        self._places: list[int] = []
        """Of each batch in the window: how many had been sent before it, ever."""
        self._begun = 0
        self._next = 0
        """Index in the window of the batch to send next; below it all are on their way."""
        self._in_flight = 0
        self._draining = False
        self._session_over = False

    def __bool__(self) -> bool:
        """Has anything to do."""
        return bool(self._window or self._sealed or self.open is not None)

    def batches(self) -> Iterator[Batch]:
        """All that are not settled, oldest first."""
        yield from self._window
        yield from self._sealed
        if self.open is not None:
            yield self.open

    def seal(self) -> None:
        """No more rows for the open batch."""
        if self.open is not None:
            self.open.close()
            self._sealed.append(self.open)
            self.open = None

    def add_sealed(self, batch: Batch) -> None:
        self.seal()
        self._sealed.append(batch)

    def wants_session(self, now_s: float) -> bool:
        idle = self.session is None and not self.opening and not self._draining
        return self._idempotent and idle and now_s >= self.not_before_s

    def opened(self, session: Session) -> None:
        self.opening = False
        self.session = session

    def not_opened(self, error: LedgerMQError, now_s: float) -> None:
        """The owner did not answer, or was not the owner: ask again later."""
        self.opening = False
        self.last_error = error
        self.not_before_s = now_s + self._wait_s(error)

    def has_room(self) -> bool:
        """The open batch would be sent at once if it were sealed."""
        return not self._sealed and self._room_for_another()

    def _room_for_another(self) -> bool:
        return not self._draining and self._is_window_open() and self._next == len(self._window)

    def _is_window_open(self) -> bool:
        """The broker remembers the last few batches, acknowledged or not: the oldest that is not
        must stay among them.
        """
        return not self._window or self._begun - self._places[0] < self._window_batches

    def oldest_s(self) -> float | None:
        """When the oldest batch that is not settled was born."""
        return next((batch.born_s for batch in self.batches()), None)

    def next_to_send(self, now_s: float) -> Batch | None:
        """The batch to send now, if there is one; `sent` says that it was."""
        if self._draining or now_s < self.not_before_s or (self._idempotent and self.session is None):
            return None
        if self._next < len(self._window):
            return self._window[self._next]
        if self._is_window_open() and self._sealed:
            return self._sealed[0]
        return None

    def sent(self, batch: Batch) -> None:
        """`batch` is what `next_to_send` gave, encoded."""
        if self._next == len(self._window):
            assert self._sealed.popleft() is batch, "batches are sent in order"
            self._number(batch)
            self._window.append(batch)
            self._places.append(self._begun)
            self._begun += 1
        assert self._window[self._next] is batch, "batches are sent in order"
        assert len(self._window) <= self._window_batches, "the window is bounded"
        self._next += 1
        self._in_flight += 1

    def gap_before(self, batch: Batch) -> LedgerMQError | None:
        """What to tell of `batch`, which is next, if it may not be sent: its sequence was decided,
        and the session has come to another.
        """
        next_sequence = self.session.next_sequence if self.session is not None else None
        if batch.sequence is not None or batch.decided_sequence in (None, next_sequence):
            return None
        where = f"{batch.record_count} records for {batch.topic}/{batch.partition}"
        return OutOfOrderSequence(
            f"{where} were decided to have the sequence {batch.decided_sequence}; {next_sequence} is next: not sent"
        )

    def _number(self, batch: Batch) -> None:
        assert self.gap_before(batch) is None, "a decided sequence is no other"
        if self.session is not None:
            batch.sequence = self.session.next_sequence
            self.session.next_sequence += batch.record_count

    def stored(self, batch: Batch, base_offset: int) -> list[Failure]:
        """The broker acknowledged.

        Returns what failed with the end of a session that had to wait for this answer.
        """
        self._remove(batch)
        self._backoff.reset()
        batch.stored(base_offset)
        return self._answered()

    def failed(self, batch: Batch, error: LedgerMQError, now_s: float) -> list[Failure]:
        """The attempt failed. Returns the batches that are given up, with what to tell their
        callers.
        """
        self.last_error = error
        if isinstance(error, UnknownProducer | OutOfOrderSequence):
            # Only the first in the window says anything of the session; the others may just wait
            # for one before them that failed.
            self._draining = True
            self._session_over |= self._window[0] is batch
            self.not_before_s = now_s + self._backoff.next_s()
            return self._answered()
        batch.in_doubt |= _leaves_doubt(error)
        if error.retriable or (isinstance(error, OutcomeUnknown) and self._idempotent):
            if not self._draining:  # one lost line fails all batches on it, which is one reason to wait, not five
                self.not_before_s = max(self.not_before_s, now_s + self._wait_s(error))
            self._draining = True
            return self._answered()
        self._remove(batch)
        self._draining = self._session_over = True
        return [(batch, error), *self._answered()]

    def _wait_s(self, error: LedgerMQError) -> float:
        """A redirect is followed at once, the first time."""
        wait_s = self._backoff.next_s(error.retry_after_ms)
        redirected = isinstance(error, NotOwner) and error.owner
        return 0.0 if redirected and self._backoff.attempts == 1 else wait_s

    def _remove(self, batch: Batch) -> None:
        index = self._window.index(batch)
        del self._window[index], self._places[index]
        if index < self._next:
            self._next -= 1

    def _answered(self) -> list[Failure]:
        self._in_flight -= 1
        assert self._in_flight >= 0, "one answer an attempt"
        return self._settle_drained()

    def _settle_drained(self) -> list[Failure]:
        if not self._draining or self._in_flight:
            return []
        self._draining = False
        self._next = 0
        return self._end_session() if self._session_over else []

    def _end_session(self) -> list[Failure]:
        """Nothing is on its way.

        What is in doubt is given up; the rest is numbered again in the next session.
        """
        self._session_over = False
        self.session = None
        window, self._window, self._places, self._next = self._window, [], [], 0
        doubtful = [batch for batch in window if batch.in_doubt]
        for batch in reversed([batch for batch in window if not batch.in_doubt]):
            batch.sequence = None
            self._sealed.appendleft(batch)
        return [(batch, self._unknown(batch)) for batch in doubtful]

    def _unknown(self, batch: Batch) -> LedgerMQError:
        return OutcomeUnknown(
            f"{batch.record_count} records for {batch.topic}/{batch.partition} may or may not be stored: an attempt had no answer, and the "
            f"partition's owner can no longer tell (last: {self.last_error})"
        )

    def expire(self, born_before_s: float) -> list[Failure]:
        """Give up what is older; attempts on their way end by themselves at about that time, and
        are left until then.
        """
        failures: list[Failure] = []
        while self._sealed and self._sealed[0].born_s < born_before_s and not self._in_flight:
            batch = self._sealed.popleft()
            failures.append((batch, self._expired(batch)))
        if self.open is not None and self.open.born_s < born_before_s and not self._in_flight:
            failures.append((self.open, self._expired(self.open)))
            self.open = None
        if self._window and not self._in_flight and self._window[0].born_s < born_before_s:
            expired = [batch for batch in self._window if batch.born_s < born_before_s]
            for batch in expired:
                self._remove(batch)
            failures = [
                (batch, self._unknown(batch) if batch.in_doubt else self._expired(batch)) for batch in expired
            ] + failures
            failures += self._end_session()
        if any(batch.decided_sequence is not None for batch, _ in failures):
            failures += self.abandon(
                Unavailable(f"not sent: what comes before it for {self.topic}/{self.partition} was not stored")
            )
        return failures

    def _expired(self, batch: Batch) -> LedgerMQError:
        last = f"; last error: {self.last_error}" if self.last_error is not None else ""
        text = f"{batch.record_count} records for {batch.topic}/{batch.partition} were not stored in time{last}"
        return StoreFull(text) if isinstance(self.last_error, StoreFull) else DeadlineExceeded(text)

    def abandon(self, error: LedgerMQError) -> list[Failure]:
        """The producer ends, or the topic is gone: give up everything.

        Answers that still come are not wanted.
        """
        failures = [
            (batch, self._unknown(batch) if batch.in_doubt or batch in self._window[: self._next] else error)
            for batch in self.batches()
        ]
        self._window, self._places, self._sealed, self.open = [], [], deque(), None
        self._next = self._in_flight = 0
        self._draining = self._session_over = False
        self.session = None
        return failures


def _leaves_doubt(error: LedgerMQError) -> bool:
    """Whether the batch may be stored all the same. A broker that lost its term may have put the
    segment just before, and so may one whose store did not answer; one that has no memory left has
    accepted nothing."""
    return (error.retriable and not isinstance(error, ResourceExhausted)) or isinstance(error, OutcomeUnknown)
