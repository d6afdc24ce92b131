"""Heartbeats that a coordinator holds until it has something to say: long polls, at most one for
each member.

Bounded by the number of members; each ends at its own time at the latest. Must not know what a
heartbeat says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

Member = tuple[str, str]
"""(group, member id)."""


class HeldHeartbeats:
    def __init__(self) -> None:
        self._held: dict[Member, asyncio.Future[None]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    async def wait(self, member: Member, until_s: float) -> None:
        """Returns when the member is woken, when a newer heartbeat of it comes, at `until_s` (the
        loop's time), or after `close`.
        """
        self.wake([member])
        loop = asyncio.get_running_loop()
        if self._closed or until_s <= loop.time():
            return
        woken: asyncio.Future[None] = loop.create_future()
        self._held[member] = woken
        timer = loop.call_at(until_s, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()
            if self._held.get(member) is woken:
                del self._held[member]

    def wake(self, members: Iterable[Member]) -> None:
        for member in members:
            woken = self._held.pop(member, None)
            if woken is not None:
                _wake(woken)

    def close(self) -> None:
        """Wake all, hold none any more."""
        self._closed = True
        self.wake(list(self._held))


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
