"""The batches of one partition in the order of their records: decides which may be sent now, and how
an answer changes them. Pure: no I/O, time is an argument.

    open ──seal──> sealed ──sent──> window (≤ 5: on their way, or to be sent again) ──> settled

The phases of a queue are drawn in `ledgermq.client.producing.partition.phases`.

Invariants
- Batches are settled, and sent, in the order of their records. After a failure nothing is sent
  before everything on its way has been answered; then everything in the window is sent again, in
  order.
- Sequences of a session are dense and never used twice for different records.
- A batch whose sequence was decided before it came here is sent under that sequence or not at all:
  it fails with the one before it.
- A session ends when its numbering cannot go on: the broker forgot the producer, or a batch in the
  middle failed. Batches whose outcome is unknown then fail with OutcomeUnknown and are never sent
  again; the others get new numbers in a new session (design P5).
- A batch that is refused because of duplicates used no sequence. When all is answered, its other records
  and the batches behind it are numbered again, in the next epoch of the session (`duplicates`). So it is with
  a batch whose condition fails; the batch itself fails.

A session belongs to one partition, so that its end disturbs no other; brokers remember producers by
partition anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.deadlines import Deadlines, leaves_doubt
from ledgermq.client.producing.partition.phases import NEXT, Event, Numbering, Phase
from ledgermq.client.producing.partition.sessions import Session
from ledgermq.client.producing.runs import DuplicateOf
from ledgermq.errors import (
    ConditionFailed,
    LedgerMQError,
    NotOwner,
    OutcomeUnknown,
    OutOfOrderSequence,
    PartitionHeld,
    ProducerFenced,
    UnknownProducer,
)
from ledgermq.runtime.backoff import Backoff

Failure = tuple[Batch, LedgerMQError]


class OrderedBatches:
    """`window_batches`: number of batches that may be sent, counted from the oldest unacknowledged
    one.

    `session`: the one to use, with Numbering.GIVEN; or the first one, with Numbering.NEW. `resends`: whether its
    batches come from the producer's spill.
    """

    resends: ClassVar[bool] = False

    def __init__(
        self,
        at: TopicPartition,
        topic_id: int,
        *,
        numbering: Numbering,
        window_batches: int,
        backoff: Backoff,
        session: Session | None = None,
    ) -> None:
        self.at = at
        self.topic_id = topic_id
        self.open: Batch | None = None
        """The batch that the last record has joined; `turn_to` puts another one in its place."""
        self._tag: str | None = None
        self._beside: dict[str | None, Batch] = {}
        """By tag, the open batches that records of other tags join; none unless batches are kept apart by tag."""
        self.session = session
        self.phase = Phase.SENDING if session is not None else numbering.value
        self.next_epoch = 0
        """Higher than the epochs of all sessions until now."""
        self.not_before_s = 0.0
        self.last_error: LedgerMQError | None = None
        """Why the latest attempt failed; None after a success."""
        self.refuses: LedgerMQError | None = None
        """Why no record may be added at present."""
        self.waits_since_s: float | None = None
        """Since when complete batches have waited and none was stored, as of the last look; None: none waited."""
        self.stored_s = float("-inf")
        """When a batch was last stored."""
        self._numbering = numbering
        self._window_batches = 1 if numbering is Numbering.NONE else window_batches
        self._backoff = backoff
        self._sealed: deque[Batch] = deque()
        self._window: list[Batch] = []
        self._places: list[int] = []
        """By batch of the window: how many batches had ever been sent before it."""
        self._begun = 0
        self._next = 0
        """Index in the window of the batch to send next; all batches below it are on their way."""
        self._in_flight: list[Batch] = []
        """Those that were sent and have no answer yet."""
        self.deadlines = Deadlines()
        self._renumbers: Batch | None = None
        """The batch with duplicates after which the session goes on in its next epoch."""

    def __bool__(self) -> bool:
        """Return whether it has work."""
        return bool(self._window or self._sealed or self.open is not None or self._beside)

    @property
    def is_full(self) -> bool:
        """Return whether as many complete batches wait as may be under way."""
        return len(self._sealed) >= self._window_batches

    def look(self, now_s: float) -> float | None:
        """Return since when complete batches have waited and none was stored; None: none wait."""
        if not (self._window or self._sealed):
            self.waits_since_s = None
        elif self.waits_since_s is None:
            self.waits_since_s = now_s
        return self.waits_since_s

    def progressed(self, now_s: float) -> None:
        """Note that a batch was stored."""
        self.waits_since_s, self.stored_s = None, now_s

    def _move(self, event: Event) -> None:
        phase = NEXT.get((self.phase, event))
        assert phase is not None, f"{event} is possible in phase {self.phase}"
        self.phase = self._numbering.value if phase is Phase.UNOPENED else phase

    def batches(self) -> Iterator[Batch]:
        """Return all unsettled batches, oldest first."""
        yield from self._window
        yield from self._sealed
        yield from self.open_batches()

    def open_batches(self) -> list[Batch]:
        """Return the batches that further rows may join, oldest first."""
        found = [*self._beside.values(), *(() if self.open is None else (self.open,))]
        return sorted(found, key=lambda batch: batch.born_s) if self._beside else found

    def turn_to(self, tag: str | None) -> int:
        """Let `open` be the batch of this tag, and return how many others are open. Records of one tag are sent in
        their order; those of different tags are not.
        """
        if tag != self._tag:
            if self.open is not None:
                self._beside[self._tag] = self.open
            self.open, self._tag = self._beside.pop(tag, None), tag
        return len(self._beside)

    def seal_open(self) -> None:
        """Seal `open`: no further rows join it."""
        if self.open is not None:
            self.open.close()
            self._sealed.append(self.open)
            self.open = None

    def seal(self) -> None:
        """Seal all open batches."""
        if self._beside:
            for batch in self.open_batches():
                batch.close()
                self._sealed.append(batch)
            self._beside, self.open = {}, None
        self.seal_open()

    def add_sealed(self, batch: Batch) -> None:
        self.seal()
        self._sealed.append(batch)

    def last_sealed(self) -> Batch | None:
        """Return the sealed batch that the next one would follow; None: all that are sealed have been sent."""
        return self._sealed[-1] if self._sealed else None

    def wants_session(self, now_s: float) -> bool:
        return self.phase is Phase.UNOPENED and now_s >= self.not_before_s

    def session_asked(self) -> None:
        self._move(Event.ASKED)

    def opened(self, session: Session) -> None:
        self._move(Event.OPENED)
        self.session, self.next_epoch = session, session.epoch + 1

    def not_opened(self, error: LedgerMQError, now_s: float) -> None:
        """The owner did not answer, or was not the owner: request a session again later."""
        self._move(Event.REFUSED)
        self.last_error = error
        self.not_before_s = now_s + self._wait_s(error)

    def has_room(self) -> bool:
        """Return whether the open batch would be sent at once if it were sealed."""
        return (
            self.phase not in (Phase.DRAINING, Phase.ENDING)
            and not self._sealed
            and self._next == len(self._window)
            and self._is_window_open()
        )

    def _is_window_open(self) -> bool:
        """Return whether the window has room. A broker remembers the last few batches,
        acknowledged or not, and the oldest unacknowledged one must stay among them.
        """
        return not self._window or self._begun - self._places[0] < self._window_batches

    def oldest_s(self) -> float | None:
        """Return the birth of the oldest unsettled batch."""
        first = next(iter(self._window or self._sealed), None)
        return min((batch.born_s for batch in (first, *self.open_batches()) if batch is not None), default=None)

    def next_to_send(self, now_s: float) -> Batch | None:
        """Return the batch to send now, if there is one; a call of `sent` follows."""
        if self.phase is not Phase.SENDING or now_s < self.not_before_s:
            return None
        if self._next < len(self._window):
            batch = self._window[self._next]
            return None if batch.is_overdue and not batch.in_doubt else batch
        if self._is_window_open() and self._sealed:
            return self._sealed[0]
        return None

    def sent(self, batch: Batch) -> None:
        """Note that `batch`, which `next_to_send` returned, is encoded and sent."""
        if self._next == len(self._window):
            assert self._sealed.popleft() is batch, "batches are sent in order"
            self._number(batch)
            self._window.append(batch)
            self._places.append(self._begun)
            self._begun += 1
        assert self._window[self._next] is batch, "batches are sent in order"
        assert len(self._window) <= self._window_batches, "the window is bounded"
        self._next += 1
        self._in_flight.append(batch)

    def gap_before(self, batch: Batch) -> LedgerMQError | None:
        """Return why `batch`, which is next, may not be sent: its sequence was decided, and the
        session has reached another one. None: it may be sent.
        """
        next_sequence = self.session.next_sequence if self.session is not None else None
        if batch.sequence is not None or batch.decided_sequence in (None, next_sequence):
            return None
        where = f"{batch.record_count} records for {batch.at}"
        return OutOfOrderSequence(
            f"{where} have the decided sequence {batch.decided_sequence}, but {next_sequence} is next; not sent"
        )

    def _number(self, batch: Batch) -> None:
        assert self.gap_before(batch) is None, "a decided sequence is no other"
        if self.session is not None:
            batch.sequence = self.session.number(batch.sent_count)

    def stored(self, batch: Batch, base_offset: int | None) -> list[Failure]:
        """Apply an acknowledgement of the broker.

        Return the batches that failed with the end of a session that had to wait for this answer.
        """
        self._remove(batch)
        self._backoff.reset()
        self.last_error = None
        batch.stored(base_offset)
        return self._answered(batch)

    def failed(self, batch: Batch, error: LedgerMQError, now_s: float) -> list[Failure]:
        """Apply a failed attempt. Return the batches that fail, with the errors for their callers."""
        self.last_error = error
        if isinstance(error, UnknownProducer | OutOfOrderSequence):
            # Only the first in the window says something about the session; the others may just wait
            # for an earlier one that failed.
            self._move(Event.BROKEN if self._window[0] is batch else Event.FAILED)
            self.not_before_s = now_s + self._backoff.next_s()
            return self._answered(batch)
        if isinstance(error, ConditionFailed) and batch.decided_sequence is None:
            return self._condition_failed(batch, error)
        batch.in_doubt |= leaves_doubt(error)
        if error.retriable or (isinstance(error, OutcomeUnknown) and self._numbering is not Numbering.NONE):
            if self.phase is Phase.SENDING:  # a lost line fails all batches on it, but is a single reason to wait
                self.not_before_s = max(self.not_before_s, now_s + self._wait_s(error))
            self._move(Event.FAILED)
            return self._answered(batch)
        self._remove(batch)
        self._move(Event.BROKEN)
        if self.session is not None and isinstance(error, PartitionHeld | ProducerFenced):
            batch.in_doubt = False  # the owner would have known a batch that is stored
        failure = self.unknown(batch) if batch.in_doubt else error  # an earlier attempt may have stored it
        return [(batch, failure), *self._answered(batch)]

    def _condition_failed(self, batch: Batch, error: ConditionFailed) -> list[Failure]:
        """Fail a batch whose partition does not end where it expects. Its owner judges repetitions first, so no
        earlier attempt has stored it. A late double could be stored only if the partition were yet to reach the end
        that it expects, because an end never goes back.
        """
        if self._window[0] is not batch:  # a batch before it may be stored, and has to be settled first
            self._move(Event.FAILED)
            return self._answered(batch)
        self._backoff.reset()
        batch.in_doubt = batch.in_doubt and batch.expect_end is not None and not 0 <= batch.expect_end <= error.end
        failure = self.unknown(batch) if batch.in_doubt else error
        self._remove(batch)
        if self.session is not None:
            self._renumbers = batch
            self._move(Event.BROKEN)
        return [(batch, failure), *self._answered(batch)]

    def duplicates(
        self, batch: Batch, found: Mapping[int, DuplicateOf], error: LedgerMQError, now_s: float
    ) -> list[Failure]:
        """Apply the answer that nothing of a batch is stored, because some of its records are duplicates. They are
        left out, and the others are sent again.

        Its sequence was not used, so the session goes on in its next epoch, in which a late double of the refused
        message counts no longer. Batches behind it have later sequences, so none of them is stored either; a batch
        before it may be, and has to be settled first.
        """
        if batch.decided_sequence is not None:
            return self.failed(batch, error, now_s)
        if self._window[0] is not batch:
            self._move(Event.FAILED)
            return self._answered(batch)
        self._backoff.reset()
        self.last_error = None
        batch.leave_out(found)
        if self.session is None:
            if batch.sent_count:
                self._move(Event.FAILED)
        else:
            self._renumbers = batch
            self._move(Event.BROKEN)
        if not batch.sent_count:
            self._remove(batch)
            batch.stored(None)
        return self._answered(batch)

    def _wait_s(self, error: LedgerMQError) -> float:
        """Follow a redirect at once, the first time."""
        wait_s = self._backoff.next_s(error.retry_after_ms)
        redirected = isinstance(error, NotOwner) and error.owner
        return 0.0 if redirected and self._backoff.attempts == 1 else wait_s

    def _remove(self, batch: Batch) -> None:
        index = self._window.index(batch)
        del self._window[index], self._places[index]
        if index < self._next:
            self._next -= 1

    def _answered(self, batch: Batch) -> list[Failure]:
        self._in_flight.remove(batch)  # one answer an attempt
        if self._in_flight or self.phase is Phase.SENDING:
            return []
        if self.phase is Phase.ENDING:
            return self._end_session()
        self._move(Event.ANSWERED)
        self._next = 0
        return []

    def _end_session(self) -> list[Failure]:
        """End the session; no batch is on its way.

        Batches whose outcome is unknown fail; the others are numbered again in the next session.
        """
        self._move(Event.ENDED)
        session, self.session = self.session, None
        refused, self._renumbers = self._renumbers, None
        window, self._window, self._places, self._next = self._window, [], [], 0
        doubtful = [batch for batch in window if batch.in_doubt]
        if refused is not None and session is not None:
            # They are behind the refused batch, and can be stored only if a double of it is, after the window.
            doubtful = [batch for batch in doubtful if refused.in_doubt and not batch.has_ids]
            self.opened(replace(session, epoch=session.epoch + 1, next_sequence=0))
        doubtful += [batch for batch in window if batch.is_overdue and batch not in doubtful]
        for batch in reversed([batch for batch in window if batch not in doubtful]):
            batch.sequence = None
            self._sealed.appendleft(batch)
        return [(batch, self.unknown(batch)) for batch in doubtful]

    def unknown(self, batch: Batch) -> LedgerMQError:
        return OutcomeUnknown(
            f"{batch.record_count} records for {batch.at} may or may not be stored: an attempt had no answer, and "
            f"its outcome can no longer be found out (last error: {self.last_error})"
        )
