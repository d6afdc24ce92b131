"""Lease messages of a queue group by one call, without a member that lives on (`client.queues.lease`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from ledgermq.client.consuming.message import Message, partition_of
from ledgermq.client.consuming.start import Start
from ledgermq.client.queues.leases.handles import LeaseHandle, LeaseName, caller_hash, handle_of_lease
from ledgermq.client.queues.message import QueueMessage
from ledgermq.client.queues.queue import Queue
from ledgermq.client.settings.values import QueueSettings
from ledgermq.errors import LedgerMQError
from ledgermq.runtime.tasks import end

HELD_S_MAX = 1.0
"""How long a broker may hold one poll. When another broker has answered first, what this one leases is returned."""
ASK_S = 0.05
"""A call that does not wait gives brokers so long to hold a poll."""
TOPICS_MAX = 1_000
"""So many topics are remembered with the time of their last look-up."""


@dataclass(frozen=True, slots=True)
class LeasedMessage:
    """A message that is leased for `lease_s` seconds from now. Say what became of it by its `handle`, in any process.
    `attempt`: the number of this delivery, from 1 on.
    """

    message: Message
    handle: str
    attempt: int
    lease_s: float


class OneCall(Queue[bytes]):
    """A member of a queue group for the time of one call. What its polls lease too late, it returns."""

    def since(self, refreshed_s: dict[str, float]) -> None:
        """Share the times at which topics were looked up with members of other calls."""
        self._polls.refreshed_s = refreshed_s
        self._polls.held_s_max = HELD_S_MAX

    async def take(self, records_max: int, wait_s: float) -> list[QueueMessage[bytes]]:
        """Return messages as `fetch` does. If there are none, the answers of all polls are awaited: a slow broker would
        otherwise lease messages, and have them returned, again and again.
        """
        found = await self.fetch(records_max, max(wait_s, ASK_S))
        if not found:
            await self._polls.until_answered()
            found = self._from_buffer(records_max, at_once=True)
        return found

    async def leave(self) -> None:
        """Give back what polls under way still lease, then close. Leases of messages that were taken stay."""
        self._held.clear()
        self.draining = True
        if self._returning is not None:
            self._returning.cancel()
        if self._loop is not None:
            self._return_untaken()
            await self._polls.until_answered()
        await self.close()


MakeMember = Callable[[str | Iterable[str], str, Start, QueueSettings, type[OneCall]], Queue]


class QueueLeasing:
    """Leases messages for calls, and returns those that come too late, in the background until `close`. `make` makes
    a member of a queue group.
    """

    def __init__(self, make: MakeMember) -> None:
        self._make = make
        self._leaving: set[asyncio.Task[None]] = set()
        self._refreshed_s: dict[str, float] = {}

    async def lease(
        self,
        topics: str | Iterable[str],
        group: str,
        records_max: int,
        wait_s: float,
        start: Start,
        settings: QueueSettings,
        caller: str,
    ) -> list[LeasedMessage]:
        """See `QueueAdmin.lease`."""
        member = self._make(topics, group, start, settings, OneCall)
        assert isinstance(member, OneCall)
        if len(self._refreshed_s) > TOPICS_MAX:
            self._refreshed_s = {}
        member.since(self._refreshed_s)
        try:
            messages = await member.take(records_max, wait_s)
            now_s, number = asyncio.get_running_loop().time(), caller_hash(caller)
            return [_leased(message, group, settings, number, now_s) for message in messages]
        finally:
            task = asyncio.create_task(_left(member), name=f"leave queue {group}")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Stop waiting for late answers. Messages that they lease come again when their lease ends."""
        await end(*self._leaving)


async def _left(member: OneCall) -> None:
    try:
        with suppress(LedgerMQError):
            await member.leave()
    finally:
        with suppress(LedgerMQError):
            await member.close()


def _leased(
    message: QueueMessage[bytes], group: str, settings: QueueSettings, caller: int, now_s: float
) -> LeasedMessage:
    lease = message.lease
    name = LeaseName(lease.topic_id, lease.epoch, lease.number)
    handle = LeaseHandle(
        group,
        partition_of(message),
        message.offset,
        name,
        message.attempt,
        settings.attempts_max,
        round(settings.lease_s * 1000),
        settings.dead_letters,
        caller,
    )
    return LeasedMessage(Message._make(message), handle_of_lease(handle), message.attempt, lease.until_s - now_s)
