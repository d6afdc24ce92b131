"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Generic, Self, cast, overload

from ledgermq.client.consuming.message import Message
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.settings.serializers import B
from ledgermq.client.tables.table import Table as AsyncTable
from ledgermq.client.tables.table import TableState
from ledgermq.errors import LedgerMQError
from ledgermq.sync.background import Background


class TableCalls(Generic[B]):
    """The calls of `ledgermq.sync.Table` that only wait for the asynchronous ones."""

    def __init__(self, background: Background, inner: AsyncTable[B]) -> None:
        self._background = background
        self._inner = inner

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def caught_up(self) -> bool:
        return self._inner.caught_up

    @property
    def closed(self) -> bool:
        return self._inner.closed

    @overload
    def get(self, key: bytes | str) -> B | None: ...
    @overload
    def get(self, key: bytes | str, default: B) -> B: ...
    def get(self, key: bytes | str, default: B | None = None) -> B | None:
        """Return the value of a key. Raises BadValue if the deserializer refuses it, and the error that ended the
        table: ResourceExhausted, UnknownTopic, DataDamaged, …
        """
        found: B | None = cast(Any, self._inner).get(key, default)
        return found

    def message(self, key: bytes | str) -> Message[B] | None:
        """Return the message that holds the value, with its partition, offset and headers."""
        return self._inner.message(key)

    def __getitem__(self, key: bytes | str) -> B:
        return self._inner.__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return self._inner.__contains__(key)

    def __len__(self) -> int:
        return self._inner.__len__()

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over a copy of the keys, in no particular order."""
        return self._inner.__iter__()

    def keys(self) -> list[bytes]:
        return self._inner.keys()

    def values(self) -> list[B]:
        return self._inner.values()

    def items(self) -> list[tuple[bytes, B]]:
        """Return a copy of the rows."""
        return self._inner.items()

    @property
    def size_bytes(self) -> int:
        """Return the estimated memory of the rows."""
        return self._inner.size_bytes

    @property
    def state(self) -> TableState:
        """The state of the table. failing: a partition is not served at present; see `last_error`.
        failed: every call raises `last_error`.
        """
        return self._inner.state

    @property
    def last_error(self) -> LedgerMQError | None:
        return self._inner.last_error

    def positions(self) -> dict[TopicPartition, int]:
        """Return by partition the offset of the next message that is not in the table."""
        return self._inner.positions()

    def wait_caught_up(self, timeout_s: float | None = None) -> None:
        """Wait until the table has read everything that is in the topic now.

        Raises DeadlineExceeded after `timeout_s`, and the error that ended the table.
        """
        self._background.run(self._inner.wait_caught_up(timeout_s), timeout_s)

    def close(self) -> None:
        self._background.run(self._inner.close())

    def __enter__(self) -> Self:
        self._background.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
