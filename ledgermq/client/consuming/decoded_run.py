"""A batch of which the program has had a part; the reading's position says how much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

import pyarrow as pa

from ledgermq.client.consuming.message import M, table_of
from ledgermq.client.consuming.reading import Reading

MessagesOf = Callable[[Reading, pa.RecordBatch, int], list[M]]
"""(reading, rows, offset of the first row) -> the messages that the program gets."""

Taken = Callable[[Reading, int, int], None]
"""(reading, first offset, offset after the last): the program gets these now."""


class DecodedRun(Generic[M]):
    def __init__(
        self, reading: Reading, rows: pa.RecordBatch, offset: int, messages_of: MessagesOf[M], taken: Taken | None
    ) -> None:
        self.reading = reading
        self._rows = rows
        self._offset = offset
        self._count: int = rows.num_rows
        self._taken = 0
        self._messages: list[M] | None = None
        self._messages_of = messages_of
        self._on_taken = taken

    @property
    def spent(self) -> bool:
        return self._taken >= self._count

    def _decoded(self) -> list[M]:
        if self._messages is None:
            self._messages = self._messages_of(self.reading, self._rows, self._offset)
        return self._messages

    def _advance(self, count: int) -> None:
        first = self._offset + self._taken
        self._taken += count
        self.reading.position = self._offset + self._taken
        if self._on_taken is not None:
            self._on_taken(self.reading, first, self.reading.position)

    def take_one(self) -> M | None:
        """None: it is spent. Called for each message, so it calls nothing that it can do itself."""
        taken = self._taken
        if taken >= self._count:
            return None
        message = (self._messages or self._decoded())[taken]
        self._taken = taken + 1
        self.reading.position = end = self._offset + taken + 1
        if self._on_taken is not None:
            self._on_taken(self.reading, end - 1, end)
        return message

    def take(self, count: int) -> list[M]:
        messages = self._decoded()[self._taken : self._taken + count]
        self._advance(len(messages))
        return messages

    def take_arrow(self, count: int) -> pa.RecordBatch:
        rows = self._rows.slice(self._taken, count)
        batch = table_of(rows, *self.reading.partition, self._offset + self._taken)
        self._advance(rows.num_rows)
        return batch
