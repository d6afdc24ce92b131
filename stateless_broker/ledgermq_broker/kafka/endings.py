"""Log why connections of Kafka clients end, a bounded number of lines a second: strangers make them end."""

from __future__ import annotations

import asyncio
from typing import Any

from ledgermq_broker.access.state.token_bucket import TokenBucket
from ledgermq_broker.logs import get_logger

LINES_AT_ONCE, LINES_PER_S = 20, 1.0

log = get_logger(__name__)


class Endings:
    """`ended`: connections so far, `lines`: those written. The next line says how many were left out before it."""

    def __init__(self) -> None:
        self.ended = self.lines = 0
        self._left_out = 0
        self._bucket: TokenBucket | None = None

    def note(self, what: str, *, peer: str, why: str, is_warning: bool = False) -> None:
        self.ended += 1
        now_s = asyncio.get_running_loop().time()
        if self._bucket is None:
            self._bucket = TokenBucket(LINES_PER_S, now_s, LINES_AT_ONCE)
        if self._bucket.level(now_s) < 1:
            self._left_out += 1
            return
        self._bucket.take(1, now_s)
        self.lines += 1
        more: dict[str, Any] = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        (log.warning if is_warning else log.info)(what, peer=peer, why=why, **more)
