"""The batches of one partition that come from the producer's spill, on their way to a broker. Pure.

It differs from the queue of a program's records in four ways. Nothing expires, and no error ends a batch: it is
sent until it is stored. A session is used only after it is written to the spill (`confirm`). When a session
ends, batches in doubt are sent again under the next one: they may be stored twice, and are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.partition.batch import Batch
from ledgermq.client.producing.partition.ordered_batches import Failure
from ledgermq.client.producing.partition.partition_queue import PartitionQueue
from ledgermq.client.producing.partition.phases import Event, Numbering
from ledgermq.client.producing.partition.sessions import Session
from ledgermq.client.producing.runs import DuplicateOf
from ledgermq.errors import LedgerMQError, OutcomeUnknown, OutOfOrderSequence, Unavailable, UnknownProducer
from ledgermq.runtime.backoff import Backoff

REFUSED_AGAIN_MS = 30_000
"""Wait before a batch is sent again that a broker has refused for a reason that does not pass by itself."""


class ResendQueue(PartitionQueue):
    """`on_stored` is called with each batch that is stored, `on_opened` with no argument when there is a session to
    `confirm`.
    """

    resends: ClassVar[bool] = True

    def __init__(
        self,
        at: TopicPartition,
        topic_id: int,
        *,
        window_batches: int,
        backoff: Backoff,
        session: Session | None,
        on_stored: Callable[[Batch], None],
        on_opened: Callable[[], None],
    ) -> None:
        super().__init__(
            at, topic_id, numbering=Numbering.NEW, window_batches=window_batches, backoff=backoff, session=session
        )
        self._on_stored = on_stored
        self._on_opened = on_opened
        self.waits = False
        """Whether it is not known yet how far an earlier process has come: it opens no session."""
        self.fresh: Session | None = None
        """A session that waits for `confirm`."""
        self.maybe_twice = 0
        """Number of records that were in doubt when a session ended."""

    @property
    def is_stalled(self) -> bool:
        """Return whether the latest attempt failed."""
        return self.last_error is not None

    def wants_session(self, now_s: float) -> bool:
        return not self.waits and super().wants_session(now_s)

    def opened(self, session: Session) -> None:
        self.fresh = session
        self._on_opened()

    def confirm(self) -> None:
        """Use the session that was opened."""
        assert self.fresh is not None, "only an opened session is confirmed"
        session, self.fresh = self.fresh, None
        super().opened(session)

    def not_confirmed(self, error: LedgerMQError, now_s: float) -> None:
        """Drop the session that was opened: it could not be written."""
        self.fresh = None
        self.not_opened(error, now_s)

    def resume(self, session: Session) -> None:
        """Go on with the session of an earlier process."""
        self.waits = False
        super().opened(session)

    def oldest_s(self) -> float | None:
        return None

    def expire(self, born_before_s: float) -> list[Failure]:
        return []

    def stored(self, batch: Batch, base_offset: int | None) -> list[Failure]:
        failures = super().stored(batch, base_offset)
        self._on_stored(batch)
        return failures

    def failed(self, batch: Batch, error: LedgerMQError, now_s: float) -> list[Failure]:
        if error.retriable or isinstance(error, UnknownProducer | OutOfOrderSequence | OutcomeUnknown):
            return super().failed(batch, error, now_s)
        was_in_doubt = batch.in_doubt
        failures = super().failed(batch, Unavailable(error.message, retry_after_ms=REFUSED_AGAIN_MS), now_s)
        batch.in_doubt = was_in_doubt
        self.last_error = error
        return failures

    def duplicates(
        self, batch: Batch, found: Mapping[int, DuplicateOf], error: LedgerMQError, now_s: float
    ) -> list[Failure]:
        failures = super().duplicates(batch, found, error, now_s)
        if not batch.sent_count:
            self._on_stored(batch)
        return failures

    def _end_session(self) -> list[Failure]:
        self._move(Event.ENDED)
        self.session = self._renumbers = None
        window, self._window, self._places, self._next = self._window, [], [], 0
        for batch in reversed(window):
            self.maybe_twice += batch.record_count if batch.in_doubt else 0
            batch.sequence, batch.in_doubt = None, False
            self._sealed.appendleft(batch)
        return []
