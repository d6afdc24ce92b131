"""The batches of one partition in a producer: `OrderedBatches`, and what does not wait for its turn there. Pure.

Times that are over, batches that are sent from elsewhere, and the end of the producer or the topic take
batches out of the order.

Invariants
- Records whose own time is over fail at once, also out of order (`overdue`). A batch of them that was never sent
  leaves. One that was sent stays until its answer, or its number, is not needed: as long as it is in doubt together
  with later batches, it is sent again with them; otherwise nothing of it is sent again, and the session ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.deadlines import expired, unanswered
from ledgermq.client.producing.partition.ordered_batches import Failure, OrderedBatches
from ledgermq.client.producing.partition.phases import Event, Phase
from ledgermq.client.producing.partition.sessions import Session
from ledgermq.errors import DeadlineExceeded, LedgerMQError, OutcomeUnknown, Unavailable


@dataclass(frozen=True, slots=True)
class Left:
    """The batches that were taken out of a queue, in order. The first ones may have been sent: they have sequences
    of `session`, without a gap up to its next one. `error`: why they could not be delivered.
    """

    batches: Sequence[Batch]
    session: Session | None
    error: LedgerMQError


class PartitionQueue(OrderedBatches):
    """See `OrderedBatches` for its arguments."""

    def never_opened(self, error: LedgerMQError) -> list[Failure]:
        """The owner refused for a reason that does not pass with time: fail everything."""
        self._move(Event.REFUSED)
        return self.abandon(error)

    def can_leave(self) -> bool:
        """Return whether no batch is on its way, so that the batches may be taken out."""
        return not self._in_flight

    def leave(self) -> Left:
        """Take out all batches, with the session; they are sent from elsewhere. Needs `can_leave()`. A later batch
        begins a new session.
        """
        assert not self._in_flight, "a batch on its way stays"
        self.seal()
        error = self.last_error or DeadlineExceeded(f"records for {self.at} were not stored in time")
        left = Left(list(self.batches()), self.session if self._window else None, error)
        self._window, self._places, self._sealed, self._next = [], [], deque(), 0
        self._move(Event.ABANDONED)
        self.session = None
        return left

    def expire(self, born_before_s: float) -> list[Failure]:
        """Fail batches older than this. Attempts on their way end at about that time by
        themselves, and are left until then. A queue that can never send again fails everything.
        """
        if self.phase is Phase.OVER:
            return self.abandon(self.last_error or OutcomeUnknown(f"the resumed session of {self.at} has ended"))
        failures: list[Failure] = []
        while self._sealed and self._sealed[0].born_s < born_before_s and not self._in_flight:
            batch = self._sealed.popleft()
            failures.append((batch, expired(batch, self.last_error)))
        for batch in self.open_batches() if not self._in_flight else ():
            if batch.born_s < born_before_s:
                failures.append((batch, expired(batch, self.last_error)))
                self._drop_open(batch)
        if self._window and not self._in_flight and self._window[0].born_s < born_before_s:
            old = [batch for batch in self._window if batch.born_s < born_before_s]
            for batch in old:
                self._remove(batch)
            failures = [
                (batch, self.unknown(batch) if batch.in_doubt else expired(batch, self.last_error)) for batch in old
            ] + failures
            failures += self._end_session()
        if any(batch.decided_sequence is not None for batch, _ in failures):
            failures += self.abandon(Unavailable(f"not sent: an earlier batch for {self.at} was not stored"))
        return failures

    def overdue(self, now_s: float, answers_to_s: float) -> list[Failure]:
        """Fail the records whose own time is over. A batch that stays in the queue is marked as `is_overdue`.

        `answers_to_s`: see `Deadlines.over`.
        """
        unsent, sent = self.deadlines.over(now_s, answers_to_s, self._window)
        if unsent:
            self._sealed = deque(batch for batch in self._sealed if batch not in unsent)
            for batch in unsent:
                self._drop_open(batch)
        failures = [(batch, expired(batch, self.last_error)) for batch in unsent]
        for batch in sent:
            batch.is_overdue = True
            told = unanswered if batch.in_doubt or batch in self._in_flight else expired
            failures.append((batch, told(batch, self.last_error)))
        return failures

    def drop_overdue(self) -> list[Failure]:
        """Take out the overdue batches of the window, if that leaves no other one in doubt."""
        if self._in_flight or not any(batch.is_overdue for batch in self._window):
            return []
        first = self._window[0]
        if first.is_overdue and not first.in_doubt:
            for batch in self._window:  # those behind one that is surely not stored are not stored either
                batch.in_doubt = False
        elif any(batch.in_doubt and not batch.is_overdue for batch in self._window):
            return []
        return self._end_session()

    def _drop_open(self, batch: Batch) -> None:
        if batch is self.open:
            self.open = None
        self._beside = {tag: other for tag, other in self._beside.items() if other is not batch}

    def abandon(self, error: LedgerMQError) -> list[Failure]:
        """Fail everything, because the producer ends or the topic is gone. Answers that still
        arrive are ignored, so batches on their way are in doubt.
        """
        failures = [
            (batch, self.unknown(batch) if batch.in_doubt or batch in self._in_flight else error)
            for batch in self.batches()
        ]
        self._window, self._places, self._sealed, self.open, self._beside = [], [], deque(), None, {}
        self._next, self._in_flight = 0, []
        self._renumbers = None
        self._move(Event.ABANDONED)
        self.session = None
        return failures
