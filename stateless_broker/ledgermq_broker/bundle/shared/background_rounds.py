"""Control whether a broker compacts in the background, and count the rounds under way, so that an
operator who copies a root knows when nothing changes any longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ledgermq_broker.logs import get_logger

log = get_logger(__name__)


class BackgroundRounds:
    """`allowed` is set while rounds may begin. A round that is under way when it is cleared is
    finished.

    `under_way`: rounds of all bundles of this broker, including the cleaning and deletion after
    them. When no round may begin and none is under way, that is logged, also if it is so from the
    start.
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
        """Run `work` if rounds may begin now, otherwise do nothing. Raises what `work` raises."""
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
