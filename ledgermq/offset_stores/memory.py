"""Offsets in the memory of this process; they are lost when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.errors import LedgerMQError
from ledgermq.offset_stores.contract import GivenPartition, OffsetEntry, StoredOffset
from ledgermq.offset_stores.rules import Row, RowKey, commit_rows, load_rows
from ledgermq.sources import Sources


class MemoryOffsetStore:
    """Keeps offsets in memory. Several consumers of one event loop may share it."""

    def __init__(self, sources: Sources | None = None) -> None:
        self._rows: dict[RowKey, Row] = {}
        self._sources = sources or Sources()

    async def load(self, group: str, partitions: Sequence[GivenPartition]) -> dict[TopicPartition, StoredOffset]:
        return load_rows(self._rows, group, partitions)

    async def commit(self, group: str, entries: Sequence[OffsetEntry]) -> Mapping[TopicPartition, LedgerMQError]:
        return commit_rows(self._rows, group, entries, self._sources.now_ms())
