"""Batches whose records have a deadline, and the errors of those whose deadline has passed."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count

from ledgermq.client.producing.partition.batch import Batch
from ledgermq.errors import DeadlineExceeded, LedgerMQError, OutcomeUnknown, ResourceExhausted, StoreFull


class Deadlines:
    """The batches of one queue that have a deadline, the earliest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Batch]] = []
        self._order = count()

    def add(self, batch: Batch) -> None:
        assert batch.deadline_s is not None, "only a batch with a time of its own is overdue by it"
        heappush(self._heap, (batch.deadline_s, next(self._order), batch))

    def next_s(self) -> float | None:
        """Return when the next records fail."""
        while self._heap and self._heap[0][2].outcome.settled:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def over(
        self, now_s: float, answers_to_s: float, window: Sequence[Batch]
    ) -> tuple[Sequence[Batch], Sequence[Batch]]:
        """Take the batches whose time is over: those that were not sent, and those of the window.

        `answers_to_s`: answers that came until then are applied. A batch of the window whose time ended later is
        left for the next look.
        """
        unsent: list[Batch] = []
        sent: list[Batch] = []
        later = []
        while (deadline_s := self.next_s()) is not None and deadline_s <= now_s:
            entry = heappop(self._heap)
            if entry[2] not in window:
                unsent.append(entry[2])
            elif deadline_s <= answers_to_s:
                sent.append(entry[2])
            else:
                later.append(entry)
        for entry in later:
            heappush(self._heap, entry)
        return unsent, sent


def expired(batch: Batch, last_error: LedgerMQError | None) -> LedgerMQError:
    """Return the error of records that are surely not stored."""
    last = f"; last error: {last_error}" if last_error is not None else ""
    text = f"{batch.record_count} records for {batch.at} were not stored in time{last}"
    return StoreFull(text) if isinstance(last_error, StoreFull) else DeadlineExceeded(text)


def unanswered(batch: Batch, last_error: LedgerMQError | None) -> LedgerMQError:
    """Return the error of records that were sent, and whose time is over."""
    return OutcomeUnknown(
        f"{batch.record_count} records for {batch.at} may or may not be stored: they were sent, and no broker "
        f"answered within their timeout (last error: {last_error})"
    )


def leaves_doubt(error: LedgerMQError) -> bool:
    """Return whether the batch may be stored nevertheless. A broker that lost its term may have
    put the segment just before, and so may one whose store did not answer; a broker without memory
    has accepted nothing, and one that refused the batch at its door says so.
    """
    if error.not_stored:
        return False
    return (error.retriable and not isinstance(error, ResourceExhausted)) or isinstance(error, OutcomeUnknown)
