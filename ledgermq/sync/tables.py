"""Tables without asyncio: the view lives in the background thread, and reading it needs no call to
that thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self, overload

import ledgermq
from ledgermq.client.tables.table import TableState
from ledgermq.errors import Closed, LedgerMQError
from ledgermq.sync.background import Background


class Table:
    """See `ledgermq.Table`.

    Rows may be read from any thread, while the background thread changes them.
    """

    def __init__(self, background: Background, inner: ledgermq.Table) -> None:
        self._background = background
        self._inner = inner

    @property
    def topic(self) -> str:
        return self._inner.topic

    @overload
    def get(self, key: bytes | str) -> bytes | None: ...
    @overload
    def get(self, key: bytes | str, default: bytes) -> bytes: ...

    def get(self, key: bytes | str, default: bytes | None = None) -> bytes | None:
        """See `ledgermq.Table.get`."""
        found = self._inner.message(key)
        return default if found is None else found.value

    def message(self, key: bytes | str) -> ledgermq.Message | None:
        """See `ledgermq.Table.message`."""
        return self._inner.message(key)

    def __getitem__(self, key: bytes | str) -> bytes:
        return self._inner[key]

    def __contains__(self, key: object) -> bool:
        return key in self._inner

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._inner)

    def keys(self) -> list[bytes]:
        return self._inner.keys()

    def values(self) -> list[bytes]:
        return self._inner.values()

    def items(self) -> list[tuple[bytes, bytes]]:
        """See `ledgermq.Table.items`."""
        return self._inner.items()

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    @property
    def state(self) -> TableState:
        return self._inner.state

    @property
    def last_error(self) -> LedgerMQError | None:
        return self._inner.last_error

    @property
    def caught_up(self) -> bool:
        return self._inner.caught_up

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def positions(self) -> dict[ledgermq.TopicPartition, int]:
        return self._inner.positions()

    def wait_caught_up(self, timeout_s: float | None = None) -> None:
        """See `ledgermq.Table.wait_caught_up`."""
        self._background.run(self._inner.wait_caught_up(timeout_s), timeout_s)

    def changes(self, *, existing: bool = False) -> Iterator[ledgermq.Change]:
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

    def close(self) -> None:
        self._background.run(self._inner.close())

    def __enter__(self) -> Self:
        self._background.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _next(changes: AsyncIterator[ledgermq.Change]) -> ledgermq.Change:
    return await anext(changes)


async def _end(changes: AsyncIterator[ledgermq.Change]) -> None:
    await changes.aclose()  # type: ignore[attr-defined]
