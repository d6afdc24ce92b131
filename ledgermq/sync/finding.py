"""Look messages up without asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ledgermq
from ledgermq.sync.background import Background


class Search:
    """See `ledgermq.Search`: `for message in client.find(…)`."""

    def __init__(self, background: Background, inner: ledgermq.Search) -> None:
        self._background = background
        self._inner = inner

    @property
    def partitions(self) -> tuple[int, ...]:
        """See `ledgermq.Search.partitions`."""
        return self._inner.partitions

    @property
    def searched(self) -> int:
        """See `ledgermq.Search.searched`."""
        return self._inner.searched

    @property
    def read_bytes(self) -> int:
        """See `ledgermq.Search.read_bytes`."""
        return self._inner.read_bytes

    @property
    def requests(self) -> int:
        """See `ledgermq.Search.requests`."""
        return self._inner.requests

    @property
    def stopped(self) -> bool:
        """See `ledgermq.Search.stopped`."""
        return self._inner.stopped

    @property
    def rest(self) -> dict[str, Any]:
        """See `ledgermq.Search.rest`."""
        return self._inner.rest

    def all(self) -> list[ledgermq.Message]:
        """See `ledgermq.Search.all`."""
        return self._background.run(self._inner.all())

    def __iter__(self) -> Iterator[ledgermq.Message]:
        return self

    def __next__(self) -> ledgermq.Message:
        """Return the next message. Raises what `ledgermq.Search` raises."""
        message = self._background.run(self._next())
        if message is None:
            raise StopIteration
        return message

    async def _next(self) -> ledgermq.Message | None:
        return await anext(self._inner, None)
