"""What a term of ownership holds of its ledger, how it finds out that it was fenced, and how it ends: every waiter is
answered then, and nothing is served from it again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine

from ledgermq.errors import LedgerMQError, NotOwner
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import Recovered
from ledgermq_ledger.log.segments.segment import read_index
from ledgermq_ledger.log.writing.in_flight import Append, InFlight, fail
from ledgermq_ledger.log.writing.shared_run import SharedRun
from ledgermq_ledger.object_store.contract import ObjectMissing


class Term:
    def __init__(self, ledger: LedgerRef, recovered: Recovered) -> None:
        self.bundle = recovered.bundle
        self.epoch = recovered.state.epoch
        self.durable = recovered.state
        self.ended = asyncio.Event()
        self.lost: LedgerMQError | None = None
        self.put_ended = asyncio.Event()
        """Set whenever a put ends; a caller that waits for room clears it."""
        self._issued = recovered.state.copy()
        self._store = ledger.store
        self._in_flight: deque[InFlight] = deque()
        self._own_voids: set[int] = set()
        """Slots above `durable` that hold void segments of this term."""
        self._refused: dict[asyncio.Future[int], Append] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # ordered, so that a simulation replays
        self._fence_check = SharedRun(self._look_for_claim)

    @property
    def issued_slot(self) -> int:
        return self._issued.slot

    async def drain(self) -> None:
        """Wait until nothing is in flight. Raises NotOwner if the term is lost."""
        while self._in_flight and self.lost is None:
            self.put_ended.clear()
            await self.put_ended.wait()
        if self.lost is not None:
            raise self.lost

    async def check_fence(self) -> None:
        """Raise NotOwner if the ledger holds a foreign claim.

        What was read from `durable` before this call may be answered after it.
        """
        await self._fence_check.run()
        if self.lost is not None:
            raise self.lost

    async def _look_for_claim(self) -> None:
        """Look for a foreign claim from the lowest slot not known to be won upward. An empty slot
        of this writer's put may have landed and been deleted, so the look continues past it.

        It ends at the first slot above `highest` that is empty or holds a put of this writer. That
        put began after this look, and a claim from before the look would be in a slot below it. So
        a busy writer cannot keep the look from ending.
        """
        slot = self._in_flight[0].index.slot if self._in_flight else self.issued_slot + 1
        highest = max(self.issued_slot, *self._own_voids, 0)
        while self.lost is None:
            try:
                found = (await read_index(self._store, self.bundle, slot)).index
            except ObjectMissing:
                if slot > highest:
                    return
            else:
                if found.kind == fmt.CLAIM and found.writer != self.durable.writer:
                    self.end(NotOwner(f"bundle {self.bundle}: claimed by {found.broker} in slot {slot}"))
                if slot > highest and found.writer == self.durable.writer:
                    return
            slot += 1

    def end(self, error: LedgerMQError) -> None:
        """End the term and fail every waiter, now and later.

        Batches in flight may still be stored, so their waiters get a retriable error.
        """
        if self.lost is None:
            self.lost = error
            self.ended.set()
        if not error.retriable:
            error = NotOwner(f"bundle {self.bundle}: its term has ended: {error.message}")
        for append in (
            *self._refused.values(),
            *(append for flight in self._in_flight for append, _ in flight.answers),
        ):
            fail(append, error)
        self._refused.clear()
        self._in_flight.clear()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self.put_ended.set()

    async def close(self) -> None:
        """End the term in this process (its last puts may still land), and wait until none of its
        tasks runs.

        Idempotent.
        """
        self.end(NotOwner(f"bundle {self.bundle} was closed"))
        await asyncio.gather(*self._tasks, self._fence_check.close(), return_exceptions=True)

    def _start(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._tasks.pop(task, None))
