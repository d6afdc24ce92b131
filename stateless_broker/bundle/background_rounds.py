"""Whether a broker compacts by itself, and how much of that is under way: who copies a root must
know when nothing moves any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stateless_broker.logs import get_logger

log = get_logger(__name__)


class BackgroundRounds:
    """`allowed` opens while rounds may begin. A round that is under way when they may not any more
    is finished.

    `under_way`: rounds, of all bundles of this broker, with what is cleaned and deleted after them.
    Once none may begin and none is under way, that is logged: also where it is so from the start.
    """

    def __init__(self, allowed: bool) -> None:
        self.allowed = asyncio.Event()
        self.under_way = 0
        if allowed:
            self.allowed.set()
        self._log_rest()

    def allow(self, allowed: bool) -> None:
        before = self.allowed.is_set()
        if allowed:
            self.allowed.set()
        else:
            self.allowed.clear()
        if before != allowed:
            self._log_rest()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Raises what `work` raises. Does nothing unless rounds may begin now."""
        if not self.allowed.is_set():
            return
        self.under_way += 1
        try:
            await work()
        finally:
            self.under_way -= 1
            self._log_rest()

    def _log_rest(self) -> None:
        if not self.allowed.is_set() and not self.under_way:
            log.info("background compaction at rest")
