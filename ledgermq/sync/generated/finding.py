"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from typing import Any

from ledgermq.client.consuming.message import Message
from ledgermq.client.finding import Search as AsyncSearch
from ledgermq.sync.background import Background


class SearchCalls:
    """The calls of `ledgermq.sync.Search` that only wait for the asynchronous ones."""

    def __init__(self, background: Background, inner: AsyncSearch) -> None:
        self._background = background
        self._inner = inner

    @property
    def partitions(self) -> tuple[int, ...]:
        return self._inner.partitions

    @property
    def searched(self) -> int:
        return self._inner.searched

    @property
    def read_bytes(self) -> int:
        return self._inner.read_bytes

    @property
    def requests(self) -> int:
        return self._inner.requests

    @property
    def stopped(self) -> bool:
        """Return whether something is left to search."""
        return self._inner.stopped

    @property
    def rest(self) -> dict[str, Any]:
        """Return what is left to search, as arguments of `client.find`: partitions, start and end."""
        return self._inner.rest

    def all(self) -> list[Message]:
        """Return all messages. Raises what iterating raises; SearchStopped has those that were found before."""
        return self._background.run(self._inner.all())
