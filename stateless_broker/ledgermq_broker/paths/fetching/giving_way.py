"""Let readers of a backlog give way to records that are on their way to the store.

A put to local files is some ten calls of the system, and after each its thread waits for the
interpreter. A reader that drains a backlog keeps the interpreter busy all the time, so a put beside
it would take three times as long as alone. Most of the time no put is under way, and a reader that
waits until one has ended loses little.
"""

from __future__ import annotations

import asyncio

from ledgermq.runtime.wait import wait_for
from ledgermq_broker.bundle.shared.byte_budget import ByteBudget

CREDIT_S_MAX = 0.02
CREDIT_S_LEAST = 0.0005
"""With less, a wait would end before the put does."""


class GivingWay:
    """One reader's waits for admitted records: `share` seconds at most for each second that it does not wait, and
    `CREDIT_S_MAX` at once. `admitted`: the memory of the records that are not durable yet. Use it within one event
    loop.
    """

    def __init__(self, admitted: ByteBudget, share: float) -> None:
        self._admitted = admitted
        self._share = share
        self._credit_s = CREDIT_S_MAX if share > 0 else 0.0
        self._counted_s = asyncio.get_running_loop().time()

    async def give_way(self) -> None:
        """Wait until no admitted record is under way, or the reader has waited enough."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self._credit_s = min(self._credit_s + self._share * (began_s - self._counted_s), CREDIT_S_MAX)
        self._counted_s = began_s
        if self._admitted.is_empty.is_set() or self._credit_s < CREDIT_S_LEAST:
            return
        await wait_for(self._admitted.is_empty, self._credit_s)
        self._counted_s = loop.time()
        self._credit_s -= self._counted_s - began_s
