"""Tables without asyncio: the view lives in the background thread, and reading it needs no call to
that thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

from ledgermq.client.settings.serializers import B
from ledgermq.client.tables.rows import Change
from ledgermq.errors import Closed
from ledgermq.sync.generated.tables import TableCalls


class Table(TableCalls[B]):
    """See `ledgermq.Table`.

    Rows may be read from any thread, while the background thread changes them.
    """

    def changes(self, *, existing: bool = False) -> Iterator[Change[B]]:
        """See `ledgermq.Table.changes`; iteration starts the subscription.

        Each step blocks until there is a change.
        """
        changes = self._inner.changes(existing=existing)
        try:
            while True:
                yield self._background.run(_next(changes))
        finally:
            with suppress(Closed):  # the client is closed, and so is everything of it
                self._background.run(_end(changes))


async def _next(changes: AsyncIterator[Change[B]]) -> Change[B]:
    return await anext(changes)


async def _end(changes: AsyncIterator[Change[B]]) -> None:
    await changes.aclose()  # type: ignore[attr-defined]
