"""Decide on a state in memory that is ahead of its log, and answer when the log has caught up.

Records of decisions go to the log in the order of the decisions. An answer with records is sent when
they are durable. An answer without records, and a final refusal, also waits for a fence check, so a
zombie answers no call (decisions 12 and 18). That holds for every type of refusal, `InvalidRequest`
too: a request may be wrong only for what this state says. After a failed append, or a bug, the state
is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ledgermq.errors import LedgerMQError, NotOwner, Unavailable
from ledgermq.runtime.tasks import retrieve_error
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.internal.bundle_log import BundleLog
from ledgermq_broker.logs import get_logger
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_ledger.log.segments.segment import Batch

RETRY_AFTER_MS = 500

T = TypeVar("T")

log = get_logger(__name__)


class IssuedState:
    """`what`: the name of the state in errors, a plural. `place`: the partition of its records.
    `on_failed` is called once if the state fails before its term ends.
    """

    def __init__(
        self,
        what: str,
        owner: BundleOwner,
        bundle_log: BundleLog,
        place: PartitionId,
        on_failed: Callable[[LedgerMQError], None],
    ) -> None:
        self.what = what
        self.owner = owner
        self.lost: LedgerMQError | None = None
        self._log = bundle_log
        self._place = place
        self._on_failed = on_failed

    def is_lost(self) -> bool:
        return self.lost is not None

    @property
    def is_durable(self) -> bool:
        """Return whether every decision so far is durable."""
        return self._log.is_durable

    @property
    def has_room(self) -> bool:
        """Return False while earlier decisions wait for room in the broker."""
        return self._log.has_room

    def check(self) -> None:
        """Raise NotOwner if the state is no longer valid."""
        if self.lost is not None:
            raise NotOwner(
                f"the term of bundle {self.owner.bundle} is over: {self.lost.message}", owner=self.lost.owner
            ) from self.lost

    def check_room(self, size_bytes: int = 1) -> None:
        """Raise the error that an append would meet now, such as that of a full store. Call this before the
        state changes.
        """
        self.check()
        self._log.check_room(size_bytes)

    def ask(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns for the present state. Call `confirmed` before it is sent."""
        self.check()
        try:
            return ask()
        except LedgerMQError:
            raise
        except Exception as bug:
            self.broken(bug)
            raise self._restarting() from bug

    async def judged(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns for the present state, in this turn. A final refusal is raised when it is
        `confirmed`.
        """
        try:
            return self.ask(ask)
        except LedgerMQError as error:
            if not error.retriable:
                await self.confirmed()
            raise

    def _restarting(self) -> Unavailable:
        return Unavailable(
            f"{self.what} of bundle {self.owner.bundle} failed, and are loaded again from their log; retry",
            retry_after_ms=RETRY_AFTER_MS,
        )

    def take(
        self,
        decision: Decision[T],
        data: Sequence[Batch] = (),
        more: Callable[[], Mapping[PartitionId, Sequence[LogRecord]]] = dict,
        *,
        within_s: float = 0.0,
    ) -> T:
        """Append a decision in one piece: its records, `data`, and what `more` returns, the records of
        other states of this bundle. The append may wait up to `within_s` for others.

        `more` changes these states when this one has changed already. So if it raises, all of them
        are ahead of the log, and are loaded again from it; raises Unavailable.
        """
        try:
            records = {self._place: decision.records, **more()}
        except Exception as bug:
            log.error("a decision could not be completed", bundle=self.owner.bundle, exc_info=bug)
            self._log.abandon(NotOwner(f"the {self.what} failed: {bug!r}", retry_after_ms=RETRY_AFTER_MS))
            raise self._restarting() from bug
        self._log.append(records, data, within_s=within_s)
        return decision.answer

    def issued(self, decide: Callable[[], Decision[T]]) -> T:
        """Decide and append now; return the answer, which is not durable yet. Raises as `check_room`."""
        self.check_room()
        return self.take(self.ask(decide))

    async def decided(self, decide: Callable[[], Decision[T]]) -> T:
        """Decide now, and return the answer when it may be sent to a caller."""
        self.check_room()
        decision = await self.judged(decide)
        self.take(decision)
        await (self.durable() if decision.records else self.confirmed())
        return decision.answer

    async def read(self, read: Callable[[], T]) -> T:
        """Return what `read` returns for the present state, once that is durable and a fence check passed."""
        try:
            return self.ask(read)
        finally:
            await self.confirmed()

    def durable_soon(self, *, within_s: float = 0.0) -> asyncio.Task[None]:
        """Return a task that is done when everything appended so far is durable; it may wait up to
        `within_s` for other appends.
        """
        waiting = asyncio.create_task(self.durable(within_s=within_s), name=f"log of bundle {self.owner.bundle}")
        waiting.add_done_callback(retrieve_error)
        return waiting

    async def durable(self, *, within_s: float = 0.0) -> None:
        await self._log.durable(within_s=within_s)
        self.check()

    async def confirmed(self) -> None:
        """Wait until the whole state is durable, then check that no other broker has claimed the bundle.
        Raises NotOwner.
        """
        await self.durable()
        await self.owner.check_fence()

    def close(self, error: LedgerMQError) -> None:
        """End the state: every later call raises NotOwner. Idempotent."""
        self.lost = self.lost or error

    def broken(self, bug: Exception) -> None:
        """Drop the state after a bug, because its content is unknown."""
        if self.lost is None:
            log.error("state of a bundle failed", what=self.what, bundle=self.owner.bundle, exc_info=bug)
            self._on_failed(NotOwner(f"the {self.what} failed: {bug!r}", retry_after_ms=RETRY_AFTER_MS))
