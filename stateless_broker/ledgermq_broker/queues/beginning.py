"""Begin a queue group in a partition once, for all callers that wait for it.

A refusal because a principal has its share reaches the callers of that principal alone: the others try for themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ledgermq.errors import QuotaExceeded
from ledgermq.runtime.tasks import retrieve_error
from ledgermq_broker.queues.state.records import ShareKey

Begin = Callable[[], Awaitable[None]]


class _UnderWay(NamedTuple):
    principal: int
    task: asyncio.Task[None]


class Beginnings:
    """Belongs to one term of a bundle. `check_term` raises NotOwner when it is over."""

    def __init__(self, check_term: Callable[[], None]) -> None:
        self._check_term = check_term
        self._under_way: dict[ShareKey, _UnderWay] = {}

    def __contains__(self, key: ShareKey) -> bool:
        return key in self._under_way

    async def wait(self, key: ShareKey, principal: int, begin: Begin) -> None:
        """Wait until the group has begun in this partition: by `begin`, or by that of an earlier caller, which goes on
        when its caller leaves. `principal`: a hash of the caller's name. Raises as `begin`; NotOwner when the term is
        over.
        """
        while True:
            found = self._under_way.get(key) or self._start(key, principal, begin)
            try:
                return await asyncio.shield(found.task)
            except QuotaExceeded:
                if found.principal == principal:
                    raise
            except asyncio.CancelledError:
                if found.task.cancelled():
                    self._check_term()
                raise

    def _start(self, key: ShareKey, principal: int, begin: Begin) -> _UnderWay:
        task = asyncio.create_task(self._run(key, begin), name=f"begin {key}")
        task.add_done_callback(retrieve_error)
        found = self._under_way[key] = _UnderWay(principal, task)
        return found

    async def _run(self, key: ShareKey, begin: Begin) -> None:
        try:
            await begin()
        finally:
            del self._under_way[key]

    def close(self) -> None:
        for each in self._under_way.values():
            each.task.cancel()
