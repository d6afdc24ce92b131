"""The contents of a producer's buffer: the bytes of records that are not answered yet, and
failures that no caller has seen.

Bytes are admitted before they are queued, and released when their batch is settled. A failure that
no caller awaits is raised at the next flush or close; the number of such failures is bounded, and
the oldest are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from ledgermq.buffers import MIB
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.producing.delivery import Failed, Outcome, SendResult
from ledgermq.client.producing.partition.ordered_batches import Failure
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.errors import DeadlineExceeded, LedgerMQError, ResourceExhausted

if TYPE_CHECKING:
    from ledgermq.telemetry.client_metrics import ClientMetrics

OnFailure = Callable[[LedgerMQError], LedgerMQError]
"""Called with the error of each batch or record that failed after it was queued; returns the error
for its delivery.
"""

UNSEEN_FAILURES_MAX = 100
WAITING_BYTES_MAX = 64 * MIB
"""Bytes that plain `send` calls, which cannot wait, may add above the buffer with
when_full="wait", or until records above it are spilled.
"""


class _Failure(NamedTuple):
    """So many records of one partition that failed."""

    outcome: Outcome
    at: TopicPartition
    records: int


class SendBuffer:
    """Invariant: `held_bytes` is the sum of what was admitted and not released. It is never above
    the limit of `admit`, except that a single record or batch larger than the whole buffer is
    accepted when the buffer is empty.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        on_failure: OnFailure = lambda error: error,
        on_full: Callable[[], None] | None = None,
        metrics: ClientMetrics | None = None,
    ) -> None:
        """`on_full`: called when the buffer is found to be full. `metrics`: count failed records."""
        self._metrics = metrics
        self._on_failure = on_failure
        self._on_full = on_full
        self.held_bytes = 0
        self.full_bytes = settings.buffer_bytes_max
        above = settings.when_full == "wait" or settings.spill is not None
        self.limit_bytes = settings.buffer_bytes_max + (WAITING_BYTES_MAX if above else 0)
        self.unchecked_bytes = self.limit_bytes if on_full is None else self.full_bytes
        """Up to here bytes may be added without `admit`."""
        self._fails = settings.when_full == "fail"
        self._timeout_s = settings.delivery_timeout_s
        self._released: asyncio.Future[None] | None = None
        self._failed: list[_Failure] = []
        self._keeps_all = False

    def admit(self, size: int) -> None:
        """Admit bytes. Raises ResourceExhausted; then nothing is admitted."""
        if self._on_full is not None and self.held_bytes + size > self.full_bytes:
            self._on_full()
        if self.held_bytes + size > self.limit_bytes and self.held_bytes:
            advice = "try again later" if self._fails else "await some results of `send`, or use `send_many`"
            raise ResourceExhausted(
                f"the producer holds {self.held_bytes} bytes that are not stored yet: {advice}", retry_after_ms=100
            )
        self.held_bytes += size

    def release(self, size: int) -> None:
        self.held_bytes -= size
        assert self.held_bytes >= 0, "only admitted bytes can be released"
        if self._released is not None:
            self._released.set_result(None)
            self._released = None

    @property
    def is_full(self) -> bool:
        """Return whether records are above `buffer_bytes_max`, or callers wait for room."""
        return self.held_bytes > self.full_bytes or self._released is not None

    def fits(self, size: int, limit_bytes: int) -> bool:
        """Return whether so many bytes may be added below a limit, or must not wait for that."""
        return self._fails or not self.held_bytes or self.held_bytes + size <= limit_bytes

    def has_room(self, size: int) -> bool:
        """Return whether `wait_for_room` would return at once."""
        return self.fits(size, self.full_bytes)

    async def wait_for_room(self, size: int = 1, deadline_s: float | None = None) -> None:
        """Wait until `size` more bytes fit below `buffer_bytes_max`, at most until `deadline_s`, by the loop's
        time. Return at once if the setting requires that `admit` fails instead.

        Raises ResourceExhausted, DeadlineExceeded.
        """
        if self.has_room(size):
            return
        begun_s = asyncio.get_running_loop().time()
        until_s = begun_s + self._timeout_s if deadline_s is None else min(deadline_s, begun_s + self._timeout_s)
        try:
            async with asyncio.timeout_at(until_s):
                while not self.has_room(size):
                    if self._on_full is not None:
                        self._on_full()
                    if self._released is None:
                        self._released = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._released)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"no room for {size} bytes within {max(0.0, until_s - begun_s):g} s: brokers accept no records"
            ) from error

    def give_up(self, failures: Iterable[Failure]) -> None:
        """Settle batches with their errors, and release their bytes; those of an overdue batch when its queue lets
        it go.
        """
        for batch, error in failures:
            has_failed = batch.outcome.settled
            if not batch.is_overdue or has_failed:
                batch.drop()
                self.release(batch.buffer_bytes)
            if has_failed:
                batch.settle(error)
            else:
                batch.outcome.settle(self._on_failure(error))
                self._keep(_Failure(batch.outcome, batch.at, batch.record_count))

    def note_failed(self, outcome: Outcome, at: TopicPartition, records: int = 1) -> None:
        """Note the failure of records that had no batch yet."""
        if outcome.error is not None:
            self._on_failure(outcome.error)
        self._keep(_Failure(outcome, at, records))

    def _keep(self, failure: _Failure) -> None:
        """Keep a failure for `raise_unseen`, or for `take_failed`."""
        if self._metrics is not None and failure.outcome.error is not None:
            self._metrics.failed(failure.at.topic, failure.records, failure.outcome.error)
        if len(self._failed) >= UNSEEN_FAILURES_MAX and not self._keeps_all:
            self._failed = self._unseen()[1 - UNSEEN_FAILURES_MAX :]
        self._failed.append(failure)

    def _unseen(self) -> list[_Failure]:
        return [failure for failure in self._failed if not failure.outcome.reported]

    def keep_failures(self) -> None:
        """Keep every failure from now on for `take_failed`, also those that callers see. No more records come, so
        their number is bounded by the buffer.
        """
        if not self._keeps_all:
            self._keeps_all, self._failed = True, self._unseen()

    def take_failed(self) -> list[SendResult]:
        """Return a result for each record that failed since `keep_failures`, or that no caller had seen before."""
        failed, self._failed = self._failed, []
        results: list[SendResult] = []
        for outcome, at, records in failed:
            assert outcome.error is not None, "only failures are kept"
            outcome.reported = True
            results += [Failed.at(at, outcome.error)] * records
        return results

    def forget_failures(self) -> None:
        self._failed = []

    def raise_unseen(self) -> None:
        """Raise the first error that no caller has awaited; the others are dropped."""
        failed, self._failed = self._unseen(), []
        for failure in failed:
            failure.outcome.raise_error()
