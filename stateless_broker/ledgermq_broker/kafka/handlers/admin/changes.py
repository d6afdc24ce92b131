"""Make the changes that one request asks for, within its time.

Quotas make a change wait, as does a name that a deleted topic is about to give back: `HELD_S_MAX` at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ledgermq.errors import (
    DeadlineExceeded,
    LedgerMQError,
    QuotaExceeded,
    ResourceExhausted,
    TopicBeingDeleted,
    Unauthorized,
)
from ledgermq_broker.kafka.wire.errors import Area, Code, code_of

TIMEOUT_S_MIN = 1.0
"""A request of less time would be over before anything is asked."""
HELD_S_MAX = 10.0

A = TypeVar("A")


class Changes:
    """`timeout_ms`: of the request."""

    def __init__(self, timeout_ms: int) -> None:
        now_s = asyncio.get_running_loop().time()
        self._until_s = now_s + max(TIMEOUT_S_MIN, timeout_ms / 1000)
        self._held_until_s = min(self._until_s, now_s + HELD_S_MAX)

    async def make(self, change: Callable[[], Awaitable[A]]) -> A:
        """Make one change. Raises what it raises, and DeadlineExceeded."""
        loop = asyncio.get_running_loop()
        while True:
            if loop.time() >= self._until_s:
                raise DeadlineExceeded("the request's time-out is over: nothing was changed; ask again")
            try:
                async with asyncio.timeout_at(self._until_s):
                    return await change()
            except TimeoutError:
                raise DeadlineExceeded("the request's time-out is over; the change may still happen") from None
            except (QuotaExceeded, TopicBeingDeleted) as error:
                pause_s = max(0.01, (error.retry_after_ms or 0) / 1000)
                if loop.time() + pause_s > self._held_until_s:
                    raise
                await asyncio.sleep(pause_s)


def topic_code(error: LedgerMQError) -> Code:
    """Return the code of a topic that cannot be described or changed."""
    if isinstance(error, Unauthorized):
        return Code.TOPIC_AUTHORIZATION_FAILED
    if isinstance(error, ResourceExhausted) and not isinstance(error, QuotaExceeded) and error.retry_after_ms is None:
        return Code.POLICY_VIOLATION  # a bound of the cluster, which waiting does not change
    return code_of(error, Area.ADMIN)
