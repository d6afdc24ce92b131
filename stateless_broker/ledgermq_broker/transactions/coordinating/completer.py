"""Send decisions to the owners of bundles, and repeat that until each has answered "done".

A completion begins as soon as its decision is durable, and again after a takeover. Each bundle has
its own bound of calls, and each call its own pauses, so a bundle in trouble does not delay others.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from ledgermq.errors import LedgerMQError, ResourceExhausted
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.logs import get_logger
from ledgermq_broker.transactions.counts import TransactionCounts
from ledgermq_broker.transactions.state.coordinator import Coordinator
from ledgermq_broker.transactions.state.types import Part, State, Transaction

PUSHES_PER_BUNDLE_MAX = 256
RETRY_FIRST_S, RETRY_S_MAX = 0.05, 5.0
NOTED_WITHIN_S = 1.0
"""How long the record of an answer "done" waits for a decision, to share its segment. If the record
is lost, the bundle receives the call again, and answers "done" again.
"""

Push = Callable[[Transaction, State, Part], Awaitable[bool]]
"""Send an outcome to the part's bundle; return whether the bundle answered "done"."""

log = get_logger(__name__)


class Completer:
    def __init__(
        self, state: IssuedState, coordinator: Coordinator, push: Push, sources: Sources, counts: TransactionCounts
    ) -> None:
        self._state = state
        self._coordinator = coordinator
        self._push = push
        self._sources = sources
        self._counts = counts
        self._tasks: dict[tuple[Transaction, int], asyncio.Task[None]] = {}
        self._pools = defaultdict[int, asyncio.Semaphore](lambda: asyncio.Semaphore(PUSHES_PER_BUNDLE_MAX))

    def resume(self) -> None:
        """Begin again with all completions that are not complete by the log."""
        self._start(self._coordinator.bundles.to_complete())

    def begin(self, transactional_id: str) -> None:
        """Begin the completion of the id's newest decision, if a bundle has a part in it."""
        self._start(self._coordinator.bundles.to_complete(transactional_id))

    async def finished(self, transactional_id: str, timeout_s: float) -> bool:
        """Wait until all bundles have completed the id's decision; return False after `timeout_s`."""
        waiting = [task for (transaction, _), task in self._tasks.items() if transaction[0] == transactional_id]
        return not waiting or not (await asyncio.wait(waiting, timeout=timeout_s))[1]

    def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    def _start(self, wanted: Sequence[tuple[Transaction, State, Part]]) -> None:
        for transaction, outcome, part in wanted:
            key = transaction, part.bundle
            if key not in self._tasks and self._state.lost is None:
                task = asyncio.create_task(
                    self._complete(transaction, outcome, part), name=f"complete {transaction.transactional_id}"
                )
                self._tasks[key] = task
                task.add_done_callback(partial(self._over, key))

    async def _complete(self, transaction: Transaction, outcome: State, part: Part) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._sources, RETRY_FIRST_S, RETRY_S_MAX)
        begun_s = loop.time()
        try:
            await self._state.durable()  # no completion leaves before its decision is durable
        except LedgerMQError:
            return  # the state is lost; the next owner begins again
        while self._is_wanted(transaction, part.bundle):
            asked_ms = None
            try:
                async with self._pools[part.bundle]:
                    is_done = await self._push(transaction, outcome, part)
                if is_done:
                    self._counts.completed(part.bundle, loop.time() - begun_s)
                    self._note_done(transaction, part.bundle)
                    return
            except LedgerMQError as error:
                asked_ms = error.retry_after_ms
                self._report(transaction, part.bundle, error, backoff.attempts)
            except Exception as bug:
                log.exception("completion of a transaction failed", bundle=part.bundle)
                self._coordinator.bundles.trouble(transaction, part.bundle, repr(bug))
            if self._state.lost is not None:
                return
            await asyncio.sleep(backoff.next_s(asked_ms))

    def _is_wanted(self, transaction: Transaction, bundle: int) -> bool:
        return self._state.lost is None and self._coordinator.bundles.is_missing(transaction, bundle)

    def _note_done(self, transaction: Transaction, bundle: int) -> None:
        if self._state.lost is None:
            completed = partial(self._coordinator.bundles.completed, transaction, bundle, self._sources.now_ms())
            self._state.take(self._state.ask(completed), within_s=NOTED_WITHIN_S)
            self.begin(transaction.transactional_id)  # parts that have waited for this one

    def _report(self, transaction: Transaction, bundle: int, error: LedgerMQError, attempts: int) -> None:
        self._counts.completion_failed(bundle, error.code)
        self._coordinator.bundles.trouble(transaction, bundle, str(error))
        if attempts and not isinstance(error, ResourceExhausted):
            log.warning(
                "transaction not complete in a bundle yet",
                bundle=bundle,
                transaction=transaction.transactional_id,
                epoch=transaction.epoch,
                number=transaction.number,
                error=str(error),
            )

    def _over(self, key: tuple[Transaction, int], task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
