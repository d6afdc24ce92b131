"""Where a member goes on in partitions that it was given: at the committed offset, or where the
start rule says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ledgermq.client.connections import Connections
from ledgermq.client.descriptions import TopicPartition
from ledgermq.client.groups.holding import Holding
from ledgermq.client.groups.offset_store import OffsetStore, StoredOffset
from ledgermq.client.groups.start_rule import StartRule, begin_at
from ledgermq.client.offsets import Offsets
from ledgermq.errors import LedgerMQError, Unavailable


class Loading:
    def __init__(
        self,
        store: OffsetStore,
        group: str,
        rule: StartRule,
        offsets: Offsets,
        connections: Connections,
        timeout_s: float,
    ) -> None:
        self._store = store
        self._group = group
        self._rule = rule
        self._offsets = offsets
        self._connections = connections
        self._timeout_s = timeout_s

    async def load(self, holdings: Sequence[Holding]) -> tuple[list[Holding], LedgerMQError | None]:
        """Those that know now where to begin, and why the others do not."""
        try:
            stored = await self.stored(holdings)
        except LedgerMQError as error:
            return [], error
        fresh = [holding for holding in holdings if holding.partition not in stored]
        begins: dict[TopicPartition, int] = {}
        failure: LedgerMQError | None = None
        if self._rule == "error":
            begins = dict.fromkeys((holding.partition for holding in fresh), 0)
        elif fresh:
            deadline = self._connections.deadline(self._timeout_s)
            begins, failure = await begin_at(
                self._rule, [holding.partition for holding in fresh], self._offsets, deadline
            )
        loaded = []
        for holding in holdings:
            if holding.partition in stored:
                holding.begin(stored[holding.partition].offset, stored[holding.partition])
            elif holding.partition in begins:
                holding.begin(begins[holding.partition], None)
                holding.start_unknown = self._rule == "error"
                holding.pin = not holding.start_unknown
            else:
                continue
            loaded.append(holding)
        return loaded, failure

    async def stored(self, holdings: Sequence[Holding]) -> dict[TopicPartition, StoredOffset]:
        """Raises what the store raises; Unavailable when it does not answer in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._store.load(self._group, [holding.given for holding in holdings])
        except TimeoutError as error:
            raise Unavailable(f"the offset store did not answer within {self._timeout_s} s") from error
