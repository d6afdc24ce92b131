"""Calls of one member to the offset store.

Invariants: one call of the store at a time; requests that arrive during a call go together in the
next. An offset that the store is known to have is not sent again. Cancelling one caller does not
cancel the commit of another caller. A commit that was permanently refused under an epoch is not
retried automatically. A partition whose offset is staged in an open transaction is not committed
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ledgermq.client.groups.holding.holding import Holding
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import (
    GroupError,
    LedgerMQError,
    TransactionError,
    Unavailable,
)
from ledgermq.offset_stores.contract import OffsetStore
from ledgermq.runtime.tasks import end

Refused = dict[TopicPartition, LedgerMQError]


class Wish(NamedTuple):
    """A request to commit in one partition. `offset`: the next one to read."""

    offset: int
    metadata: str = ""


@dataclass(slots=True, eq=False)
class _Round:
    """Requests that are committed together. `outcome`: those that were refused, or the error of
    all.
    """

    outcome: asyncio.Future[dict[Holding, LedgerMQError]]
    wishes: dict[Holding, Wish] = field(default_factory=dict)

    def add(self, wishes: Mapping[Holding, Wish]) -> None:
        for holding, wish in wishes.items():
            before = self.wishes.get(holding)
            if before is None or wish.offset >= before.offset:
                self.wishes[holding] = wish


class Committer:
    """Sends commits to the offset store, one call at a time.

    `timeout_s` bounds each call of the store.
    """

    def __init__(self, store: OffsetStore, group: str, timeout_s: float) -> None:
        self._store = store
        self._group = group
        self._timeout_s = timeout_s
        self._next: _Round | None = None
        self._running: asyncio.Task[None] | None = None

    async def commit(self, wishes: Mapping[Holding, Wish]) -> Refused:
        """Commit, and return an error for each partition that was refused; empty: all is durable.

        Raises if all failed with the same error, or if the outcome is unknown: Unavailable, …
        """
        if not wishes:
            return {}
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = _Round(loop.create_future())
        joined = self._next
        joined.add(wishes)
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run(), name="ledgermq commits")
        refused = await asyncio.shield(joined.outcome)
        return {holding.partition: refused[holding] for holding in wishes if holding in refused}

    async def _run(self) -> None:
        while (current := self._next) is not None:
            self._next = None
            try:
                outcome = await self._commit(current)
            except asyncio.CancelledError:
                _fail(
                    current,
                    Unavailable(
                        "the consumer was closed before the offset store answered; the commit may or may not be stored"
                    ),
                )
                raise
            except Exception as error:
                _fail(current, error)
            else:
                if not current.outcome.done():
                    current.outcome.set_result(outcome)

    async def idle(self) -> None:
        """Wait until no call of the store is under way; the outcome is not reported."""
        while self._running is not None and not self._running.done():
            await asyncio.wait((self._running,))

    async def _commit(self, current: _Round) -> dict[Holding, LedgerMQError]:
        wanted = {holding: wish for holding, wish in current.wishes.items() if not _is_stored(holding, wish)}
        refused: dict[Holding, LedgerMQError] = {
            holding: TransactionError(
                f"{holding.partition} has an offset in an open transaction: commit or abort the transaction first"
            )
            for holding in wanted
            if holding.transaction is not None
        }
        for call in _calls({holding: wish for holding, wish in wanted.items() if holding not in refused}):
            refused |= await self._call(call)
        return refused

    async def _call(self, wanted: Mapping[Holding, Wish]) -> dict[Holding, LedgerMQError]:
        entries = [holding.next_entry(*wish) for holding, wish in wanted.items()]
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = dict(await self._store.commit(self._group, entries))
        except TimeoutError as error:
            raise Unavailable(
                f"the offset store did not answer within {self._timeout_s} s; the commit may or may not be stored"
            ) from error
        refused = {holding: answer[holding.partition] for holding in wanted if holding.partition in answer}
        for holding, wish in wanted.items():
            refusal = refused.get(holding)
            if refusal is None:
                holding.committed, holding.committed_metadata = wish
                holding.stored = True
            elif isinstance(refusal, GroupError):
                holding.refused = refusal
        return refused

    async def close(self) -> None:
        """Fail the commits that were not answered."""
        await end(self._running)
        if self._next is not None:
            _fail(self._next, Unavailable("the consumer was closed before its commit was sent"))
            self._next = None


def _calls(wanted: Mapping[Holding, Wish]) -> list[dict[Holding, Wish]]:
    """Distribute over calls of the store, whose answer names a partition once: a member may have lost a
    partition, and have it again under a later epoch, while the commit under the earlier one waits.
    """
    calls: list[dict[Holding, Wish]] = []
    for holding in sorted(wanted, key=lambda holding: holding.given.epoch):
        for call in calls:
            if all(other.partition != holding.partition for other in call):
                break
        else:
            calls.append(call := {})
        call[holding] = wanted[holding]
    return calls


def _is_stored(holding: Holding, wish: Wish) -> bool:
    return holding.stored and wish == (holding.committed, holding.committed_metadata)


def _fail(current: _Round, error: Exception) -> None:
    if not current.outcome.done():
        current.outcome.set_exception(error)
        current.outcome.exception()  # retrieved here, because its waiters may have been cancelled
