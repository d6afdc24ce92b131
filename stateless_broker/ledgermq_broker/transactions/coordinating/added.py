"""Transactions of clients of the Kafka protocol, for one coordinator and one term: what was added to them, their end,
and their time-outs.

Before a commit, each bundle that has joined is asked what it has staged, behind a fence check: a former owner
would count too little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from ledgermq.errors import LedgerMQError
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.logs import get_logger
from ledgermq_broker.transactions.state.added.producers import AddedProducers, Named
from ledgermq_broker.transactions.state.added.records import OpenValue
from ledgermq_broker.transactions.state.coordinating.producers import Identity
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision

T = TypeVar("T")

LOOK_S = 1.0
"""Pause between two searches for transactions beyond their time-outs, while any is open."""

log = get_logger(__name__)


class InTurn(Protocol):
    """Decides about an id; waits for a moment while the transaction before is not complete."""

    async def __call__(self, transactional_id: str, decide: Callable[[], Decision[T]], *, held: bool = False) -> T: ...


class Counted(Protocol):
    """`counted(decision, state, cause)` counts a decision, and returns it."""

    def __call__(self, decision: Decision[T], state: State, cause: str) -> Decision[T]: ...


class Ended(NamedTuple):
    """`producer`: may use the id now."""

    state: State
    producer: Named


class AddedCalls:
    """`count(transaction, bundle, groups)` asks a bundle what it has staged. `time_out(transaction)` decides about one
    that is overdue.
    """

    def __init__(
        self,
        state: IssuedState,
        producers: AddedProducers,
        in_turn: InTurn,
        counted: Counted,
        count: Callable[[Transaction, int, Sequence[str]], Awaitable[Part]],
        time_out: Callable[[Transaction], Awaitable[object]],
        now_ms: Callable[[], int],
    ) -> None:
        self._state = state
        self._producers = producers
        self._in_turn = in_turn
        self._counted = counted
        self._count = count
        self._time_out = time_out
        self._now_ms = now_ms
        self._is_open = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._is_open.set()
        self._task = asyncio.create_task(self._look(), name="time-outs of Kafka transactions")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def init(self, name: str, timeout_ms: int, named: Named, principal: int) -> Identity:
        return await self._in_turn(
            name, lambda: self._producers.init(name, timeout_ms, named, self._now_ms(), principal), held=True
        )

    async def add(
        self, name: str, named: Named, places: Collection[PartitionId], groups: Collection[str]
    ) -> Transaction:
        added = await self._in_turn(name, lambda: self._producers.add(name, named, places, groups, self._now_ms()))
        self._is_open.set()
        return added

    async def join(
        self,
        name: str,
        named: Named,
        bundle: int,
        place: PartitionId | None,
        group: str,
        *,
        adds: bool,
        also: Collection[PartitionId],
    ) -> Transaction:
        def join() -> Decision[Transaction]:
            return self._producers.join(name, named, bundle, place, group, self._now_ms(), adds=adds, also=also)

        if not adds:
            return await self._state.decided(join)
        joined = await self._in_turn(name, join)
        self._is_open.set()
        return joined

    async def end(self, name: str, named: Named, outcome: State, *, renews: bool) -> Ended:
        """Commit or abort the open transaction, or return what its end was, if the call is repeated. `renews`: the
        producer goes on in a new epoch.
        """
        while True:
            found, producer = await self._state.read(
                lambda: (
                    self._producers.to_end(name, named, outcome, renews=renews),
                    self._producers.holder(name),
                )
            )
            if found is None:
                return Ended(outcome, producer)
            transaction, opened = found
            parts = await self._parts(transaction, opened, outcome)
            decide = partial(self._end, transaction, opened, outcome, parts, renews=renews)
            ended = await self._in_turn(name, decide, held=outcome.is_commit or renews)
            if ended is not None:
                return ended

    def _end(
        self, transaction: Transaction, opened: OpenValue, outcome: State, parts: Sequence[Part], *, renews: bool
    ) -> Decision[Ended | None]:
        decision = self._producers.end(transaction, opened, outcome, parts, self._now_ms(), renews=renews)
        if decision is None:
            return Decision([], None)
        self._counted(decision, decision.answer, "producer")
        ended = Ended(decision.answer, self._producers.holder(transaction.transactional_id))
        return Decision(decision.records, ended)

    async def _parts(self, transaction: Transaction, opened: OpenValue, outcome: State) -> Sequence[Part]:
        bundles = sorted(opened.bundles)
        if not outcome.is_commit:
            return [Part(bundle) for bundle in bundles]
        groups = sorted(opened.groups)
        return await asyncio.gather(*(self._count(transaction, bundle, groups) for bundle in bundles))

    async def _look(self) -> None:
        while self._state.lost is None:
            if not self._producers.open_count:
                self._is_open.clear()
                await self._is_open.wait()
            try:
                for transaction in self._producers.overdue(self._now_ms()):
                    await self._time_out(transaction)
            except LedgerMQError as error:
                if not self._state.is_lost():
                    log.info("time-outs of transactions delayed", error=str(error))
            except Exception as bug:
                self._state.broken(bug)
                return
            await asyncio.sleep(LOOK_S)
