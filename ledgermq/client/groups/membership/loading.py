"""Find where a member begins in partitions that it was given: at the committed offset, or as the
start rule requires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ledgermq.client.context import ClientContext
from ledgermq.client.groups.assignment import StartRule, begin_at
from ledgermq.client.groups.holding.holding import Holding, Start
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError, Unavailable
from ledgermq.offset_stores.contract import LoadedInPart, OffsetStore, StoredOffset
from ledgermq.runtime.backoff import Backoff


class Loading:
    """`timeout_s` bounds each call of the store, and the look-up of starts."""

    def __init__(
        self, context: ClientContext, store: OffsetStore, group: str, rule: StartRule, timeout_s: float
    ) -> None:
        self._context = context
        self._store = store
        self._group = group
        self._rule = rule
        self._timeout_s = timeout_s

    def backoff(self) -> Backoff:
        """Return the waits between attempts to load the same partitions."""
        return self._context.connections.backoff()

    async def load(self, holdings: Sequence[Holding]) -> tuple[list[Holding], LedgerMQError | None]:
        """Return the holdings whose start is known now, and why the start of the others is not.

        Holdings that were let go in the meantime are left out.
        """
        failure: LedgerMQError | None = None
        stored: Mapping[TopicPartition, StoredOffset]
        try:
            stored = await self.stored(holdings)
        except LoadedInPart as error:
            stored, failure = error.found, error
            holdings = [holding for holding in holdings if holding.partition not in error.missing]
        except LedgerMQError as error:
            return [], error
        fresh = [holding.partition for holding in holdings if holding.partition not in stored]
        begins: dict[TopicPartition, int] = {}
        start = Start.UNCHOSEN if self._rule == "error" else Start.CHOSEN
        if self._rule == "error":
            begins = dict.fromkeys(fresh, 0)
        elif fresh:
            deadline = self._context.connections.deadline(self._timeout_s)
            begins, unknown = await begin_at(self._rule, fresh, self._context.offsets, deadline)
            failure = unknown or failure
        loaded = []
        for holding in holdings:
            if not holding.kept:
                continue
            if (known := stored.get(holding.partition)) is not None:
                holding.load(known.offset, known)
            elif (begin := begins.get(holding.partition)) is not None:
                holding.load(begin, None, start)
            else:
                continue
            loaded.append(holding)
        return loaded, failure

    async def stored(self, holdings: Sequence[Holding]) -> dict[TopicPartition, StoredOffset]:
        """Return the stored offsets.

        Raises what the store raises; Unavailable when it does not answer in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._store.load(self._group, [holding.given for holding in holdings])
        except TimeoutError as error:
            raise Unavailable(
                f"the offset store of group {self._group!r} did not answer within {self._timeout_s} s"
            ) from error
