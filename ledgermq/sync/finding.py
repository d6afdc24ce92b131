"""Look messages up without asyncio."""

from __future__ import annotations

from collections.abc import Iterator

from ledgermq.client.consuming.message import Message
from ledgermq.sync.generated.finding import SearchCalls


class Search(SearchCalls):
    """See `ledgermq.Search`: `for message in client.find(…)`."""

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """Return the next message. Raises what `ledgermq.Search` raises."""
        message = self._background.run(self._next())
        if message is None:
            raise StopIteration
        return message

    async def _next(self) -> Message | None:
        return await anext(self._inner, None)
