"""Commits of one member: one at a time, those that come meanwhile together in the next.

Invariants: an offset that the store is known to have is not sent again; a caller that is cancelled
takes no commit of others with it; what was refused for good under an epoch is not tried again by
itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.holding import Holding
from ledgermq.client.groups.offset_store import OffsetStore
from ledgermq.errors import GroupError, LedgerMQError, Unavailable
from ledgermq.runtime.tasks import end

Refused = dict[TopicPartition, LedgerMQError]


class Wish(NamedTuple):
    """`offset`: the next one to read."""

    offset: int
    metadata: str = ""


@dataclass(slots=True, eq=False)
class _Round:
    """What is committed together. `outcome` is the refused, or the error that all had."""

    outcome: asyncio.Future[Refused]
    wishes: dict[Holding, Wish] = field(default_factory=dict)

    def add(self, wishes: Mapping[Holding, Wish]) -> None:
        for holding, wish in wishes.items():
            before = self.wishes.get(holding)
            if before is None or wish.offset >= before.offset:
                self.wishes[holding] = wish


class Committer:
    """`timeout_s` bounds each call of the store, whatever the store does."""

    def __init__(self, store: OffsetStore, group: str, timeout_s: float) -> None:
        self._store = store
        self._group = group
        self._timeout_s = timeout_s
        self._next: _Round | None = None
        self._running: asyncio.Task[None] | None = None

    async def commit(self, wishes: Mapping[Holding, Wish]) -> Refused:
        """By partition why it was not committed; empty: all is durable.

        Raises when that holds for all, or is not known: Unavailable, …
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
        return {holding.partition: refused[holding.partition] for holding in wishes if holding.partition in refused}

    async def _run(self) -> None:
        while (current := self._next) is not None:
            self._next = None
            try:
                outcome = await self._commit(current)
            except asyncio.CancelledError:
                _fail(current, Unavailable("the consumer was closed before its commit was answered"))
                raise
            except Exception as error:
                _fail(current, error)
            else:
                if not current.outcome.done():
                    current.outcome.set_result(outcome)

    async def _commit(self, current: _Round) -> Refused:
        wanted = {holding: wish for holding, wish in current.wishes.items() if not _is_stored(holding, wish)}
        if not wanted:
            return {}
        entries = [holding.next_entry(*wish) for holding, wish in wanted.items()]
        try:
            async with asyncio.timeout(self._timeout_s):
                refused = dict(await self._store.commit(self._group, entries))
        except TimeoutError as error:
            raise Unavailable(
                f"the offset store did not answer within {self._timeout_s} s; perhaps the commit is stored"
            ) from error
        for holding, wish in wanted.items():
            refusal = refused.get(holding.partition)
            if refusal is None:
                holding.committed, holding.committed_metadata = wish
                holding.stored = True
            elif isinstance(refusal, GroupError):
                holding.refused = refusal
        return refused

    async def close(self) -> None:
        """What has not been answered fails."""
        await end(self._running)
        if self._next is not None:
            _fail(self._next, Unavailable("the consumer was closed before its commit was sent"))
            self._next = None


def _is_stored(holding: Holding, wish: Wish) -> bool:
    return holding.stored and wish == (holding.committed, holding.committed_metadata)


def _fail(current: _Round, error: Exception) -> None:
    if not current.outcome.done():
        current.outcome.set_exception(error)
        current.outcome.exception()  # nobody may be waiting any more
