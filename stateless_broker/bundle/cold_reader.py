"""Batches of segments by range GETs, for readers that are behind the tail cache.

Neighbouring batches of a segment come in one GET. The requests go through the broker's own pool for cold reads, and nothing read here
enters the tail cache: a reader of old data can hurt neither producers nor readers of the tail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ledger import keys
from ledger.object_store.contract import ObjectStore
from ledger.stored_batch import StoredBatch
from ledgermq.errors import CorruptFrame, DataDamaged
from ledgermq.protocol.batch_header import check_crc
from stateless_broker.bundle.fetch_index import IndexedBatch


class ColdReader:
    def __init__(self, store: ObjectStore, bundle: int, pool: asyncio.Semaphore) -> None:
        self._store = store
        self._bundle = bundle
        self._pool = pool

    async def read(self, batches: Sequence[IndexedBatch]) -> list[StoredBatch]:
        """The bytes of these, in order. Raises ObjectMissing (trimmed meanwhile), DataDamaged, the store's errors."""
        runs = neighbours(batches)
        if len(runs) == 1:
            return await self._read_run(runs[0])
        tasks: list[asyncio.Task[list[StoredBatch]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._read_run(run)) for run in runs]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [batch for task in tasks for batch in task.result()]

    async def _read_run(self, run: Sequence[IndexedBatch]) -> list[StoredBatch]:
        first, last = run[0], run[-1]
        key = keys.segment(self._bundle, first.slot)
        length = last.position + last.length - first.position
        async with self._pool:
            data = memoryview(await self._store.get_range(key, first.position, length))
        return [self._cut(data[b.position - first.position :][: b.length], b, key) for b in run]

    @staticmethod
    def _cut(data: memoryview, batch: IndexedBatch, key: str) -> StoredBatch:
        try:
            check_crc(data, batch.crc)
        except CorruptFrame as error:
            raise DataDamaged(f"{key}: batch at byte {batch.position}: {error}", object_key=key) from error
        return StoredBatch(batch.base_offset, batch.record_count, batch.crc, data)


def neighbours(batches: Sequence[IndexedBatch]) -> list[list[IndexedBatch]]:
    """Runs of batches that follow one another in the same segment."""
    runs: list[list[IndexedBatch]] = []
    for batch in batches:
        if runs:
            last = runs[-1][-1]
            if (last.slot, last.position + last.length) == (batch.slot, batch.position):
                runs[-1].append(batch)
                continue
        runs.append([batch])
    return runs
