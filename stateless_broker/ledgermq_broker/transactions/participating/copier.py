"""Make committed transactions visible: read the staged batches and append copies to their partitions.

This goes chunk by chunk: one segment has the copies of a chunk, and the records that drop its
references. A completion that has begun continues until it is finished, also after a takeover. Copies
have the bytes that the producer sent, and no producer session. Delayed batches are not copied to their
partitions: they enter the bundle's intake of timed messages, in the same segment. Batches of topics that
were removed meanwhile are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ledgermq.errors import LedgerMQError, ResourceExhausted
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.logs import get_logger
from ledgermq_broker.transactions.participating.pending_offsets import PendingOffsets
from ledgermq_broker.transactions.participating.staged_log import StagedLog
from ledgermq_broker.transactions.participating.timed_blocks import TimedBlocks
from ledgermq_broker.transactions.state.participant import Participant
from ledgermq_broker.transactions.state.participating.completing import Chunk
from ledgermq_broker.transactions.state.types import Transaction
from ledgermq_ledger.topics.catalog import Catalog

RETRY_FIRST_S, RETRY_S_MAX = 0.1, 5.0
ENDED_WITHIN_S = 0.005
"""How long the segment that ends a transaction waits for other appends. The first batches of the
producer's next transaction usually arrive in this time; they share the segment instead of waiting
for its put.
"""

log = get_logger(__name__)


class Copier:
    """Runs one task for each transaction that is being copied in this bundle.

    `on_finished` is called after the last chunk of each transaction. `is_confirmed` asks the coordinator
    whether a transaction is committed and not complete in all its bundles.
    """

    def __init__(
        self,
        state: IssuedState,
        participant: Participant,
        staged: StagedLog,
        pending: PendingOffsets,
        timed: TimedBlocks,
        catalog: Callable[[], Catalog],
        sources: Sources,
        on_finished: Callable[[], None],
        is_confirmed: Callable[[Transaction], Awaitable[bool]],
    ) -> None:
        self.troubles: dict[bytes, LedgerMQError] = {}
        """Producer id -> why the last attempt to copy failed."""
        self._state = state
        self._participant = participant
        self._staged = staged
        self._pending = pending
        self._timed = timed
        self._catalog = catalog
        self._sources = sources
        self._on_finished = on_finished
        self._is_confirmed = is_confirmed
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._attempted: dict[bytes, asyncio.Event] = {}

    def resume(self) -> None:
        """Continue all completions that have begun by the log."""
        for transaction in self._participant.completing.unfinished():
            self.start(transaction.producer_id)

    def start(self, producer_id: bytes) -> None:
        """Begin to copy the producer's committed transaction, unless a task does so already."""
        if producer_id not in self._tasks and self._state.lost is None:
            task = asyncio.create_task(self._copy(producer_id), name=f"complete in bundle {self._staged.owner.bundle}")
            self._tasks[producer_id] = task
            task.add_done_callback(lambda _: self._over(producer_id, task))

    async def copied(self, producer_id: bytes, timeout_s: float) -> bool:
        """Return True when the producer's completion is appended, False after `timeout_s`.

        Raises the error of the last attempt.
        """
        self.start(producer_id)
        task = self._tasks.get(producer_id)
        attempted = self._attempted.setdefault(producer_id, asyncio.Event())
        if task is not None:
            waiting = asyncio.create_task(attempted.wait())
            try:
                await asyncio.wait([task, waiting], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        self._state.check()
        if producer_id in self.troubles:
            raise self.troubles[producer_id]
        return task is None or task.done()

    def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    async def _copy(self, producer_id: bytes) -> None:
        backoff = Backoff(self._sources, RETRY_FIRST_S, RETRY_S_MAX)
        while not self._state.is_lost():
            try:
                chunk = self._participant.completing.next_chunk(producer_id)
                if chunk is None:
                    break
                await self._copy_chunk(chunk)
                backoff.reset()
                self.troubles.pop(producer_id, None)
                continue
            except LedgerMQError as error:
                if self._state.is_lost():
                    return
                self._report(producer_id, error)
                pause_s = backoff.next_s(error.retry_after_ms)
            except Exception as bug:
                self._state.broken(bug)
                return
            await asyncio.sleep(pause_s)
            await self._stop_if_given_up(producer_id)
        self._on_finished()

    async def _stop_if_given_up(self, producer_id: bytes) -> None:
        """Drop the rest of a commit that the coordinator no longer confirms, because an operator gave
        up this bundle's part.
        """
        doing = next((one for one in self._participant.completing.unfinished() if one.producer_id == producer_id), None)
        try:
            if doing is None or await self._is_confirmed(doing):
                return
            self._state.check_room()
            decision = self._state.ask(lambda: self._participant.completing.give_up(doing))
            if decision.answer:
                log.warning("part of a transaction dropped: an operator gave it up", transaction=doing.transactional_id)
                self._state.take(decision, more=lambda: self._pending.settle(doing, ()))
        except LedgerMQError as error:
            log.info("coordinator did not answer about a commit that makes no progress", error=str(error))

    async def _copy_chunk(self, chunk: Chunk) -> None:
        """Append one chunk, if it is still the next one when its bytes have been read."""
        catalog = self._catalog()
        wanted = [
            (reference, principal)
            for reference, principal in zip(chunk.references, chunk.principals, strict=True)
            if not catalog.is_removed(reference.stream.topic_id, catalog.offset)
        ]
        read = await self._staged.read([reference for reference, _ in wanted])
        found = list(zip(read, wanted, strict=True))
        copies = [batch for batch, (reference, _) in found if not reference.stream.is_delayed]
        delayed = [(batch, principal) for batch, (reference, principal) in found if reference.stream.is_delayed]
        # from here on nothing is awaited: judged and appended in one turn
        self._state.check_room(1 + sum(len(batch.data) for batch in read))
        transaction = chunk.transaction
        if chunk.is_last:
            self._pending.check_ready(chunk.groups)
        blocks = self._timed.made(delayed) if delayed else None
        decision = self._participant.completing.admit(chunk)
        if not decision.answer:
            return
        self._state.take(
            decision,
            copies if blocks is None else copies + blocks.appends,
            lambda: self._pending.settle(transaction, chunk.groups) if chunk.is_last else {},
            within_s=ENDED_WITHIN_S,
        )
        if blocks is not None:
            self._timed.issued(blocks, within_s=ENDED_WITHIN_S)

    def _report(self, producer_id: bytes, error: LedgerMQError) -> None:
        if not isinstance(error, ResourceExhausted):
            log.warning(
                "transaction not complete yet",
                bundle=self._staged.owner.bundle,
                producer=producer_id.hex(),
                error=str(error),
            )
        self.troubles[producer_id] = error
        attempted = self._attempted.get(producer_id)
        if attempted is not None:
            attempted.set()
            del self._attempted[producer_id]

    def _over(self, producer_id: bytes, task: asyncio.Task[None]) -> None:
        if self._tasks.get(producer_id) is task:
            del self._tasks[producer_id]
            self._attempted.pop(producer_id, None)
            self.troubles.pop(producer_id, None)
