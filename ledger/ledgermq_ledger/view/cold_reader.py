"""Read batches of segments by range GETs, for readers that are behind a broker's tail cache or have
no broker.

Neighbouring batches of a segment come in one GET. The requests use a separate pool, and nothing
read here enters a broker's tail cache, so a reader of old data slows neither producers nor readers
of the tail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from crc32c import crc32c

from ledgermq.errors import CorruptFrame, DataDamaged, LedgerMQError
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.limits import BATCHES_PER_FRAME_MAX
from ledgermq_ledger import keys
from ledgermq_ledger.log.segments.segment import whose_damage
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from ledgermq_ledger.object_store.contract import Buffer, ObjectMissing, ObjectStore
from ledgermq_ledger.view.partition_index import IndexedBatch, Masks, PartitionIndex, Place

REQUESTS_MAX = 64
"""Requests of one read, where segments are small."""


class ColdReader:
    def __init__(
        self,
        store: ObjectStore,
        bundle: int,
        pool: asyncio.Semaphore,
        at_hand: Mapping[Place, Buffer] = MappingProxyType({}),
    ) -> None:
        """`at_hand`: batches that need no request."""
        self._store = store
        self._bundle = bundle
        self._pool = pool
        self._at_hand = at_hand

    async def read(self, batches: Sequence[IndexedBatch]) -> list[StoredBatch]:
        """Return the bytes of these batches, in order, up to the first that cannot be read.

        Raises the error of the very first: ObjectMissing (trimmed meanwhile, perhaps filled again),
        DataDamaged, the store's errors.
        """
        results = await asyncio.gather(*(self._read_run(run) for run in neighbours(batches)), return_exceptions=True)
        found: list[StoredBatch] = []
        for result in results:
            if isinstance(result, BaseException):
                if not found or not isinstance(result, LedgerMQError):
                    raise result
                break
            readable, damage = result
            found += readable
            if damage is not None:
                if not found:
                    raise damage
                break
        return found

    async def _read_run(
        self, run: Sequence[IndexedBatch]
    ) -> tuple[list[StoredBatch], DataDamaged | ObjectMissing | None]:
        """Return the whole batches, and the error of the batch after them."""
        first, last = run[0], run[-1]
        key = keys.segment(self._bundle, first.slot)
        data = memoryview(
            self._joined_at_hand(run) or await self._fetch(key, first.position, last.position + last.length)
        )
        found: list[StoredBatch] = []
        for batch in run:
            piece = data[batch.position - first.position :][: batch.length]
            try:
                check_crc(piece, batch.crc)
            except CorruptFrame as error:
                damage = DataDamaged(f"{key}: batch at byte {batch.position}: {error}", object_key=key)
                return found, await whose_damage(self._store, self._bundle, batch.position, batch.crc, damage)
            found.append(StoredBatch(batch.base_offset, batch.record_count, batch.crc, piece))
        return found, None

    def _joined_at_hand(self, run: Sequence[IndexedBatch]) -> bytes:
        """Return the joined bytes of these batches; empty if one is not at hand or damaged: then
        the store is read.
        """
        parts = []
        for batch in run:
            part = self._at_hand.get((batch.slot, batch.position))
            if part is None or crc32c(part) != batch.crc:
                return b""
            parts.append(part)
        return b"".join(parts)

    async def _fetch(self, key: str, start: int, end: int) -> Buffer:
        async with self._pool:
            return await self._store.get_range(key, start, end - start)


def choose_batches(index: PartitionIndex, place: int, bytes_max: int, masks: Masks = None) -> list[IndexedBatch]:
    """Return the batches from `place` on that fit into `bytes_max`, REQUESTS_MAX requests and the
    header of one answer; at least one. `masks`: behind the first, only those that may have one of the tags.
    """
    chosen = [last := index[place]]
    size_bytes, requests = last.length, 1
    for at in index.wanted(place + 1, masks):
        batch = index[at]
        size_bytes += batch.length
        requests += not _are_neighbours(last, batch)
        if size_bytes > bytes_max or requests > REQUESTS_MAX or len(chosen) == BATCHES_PER_FRAME_MAX:
            break
        chosen.append(last := batch)
    return chosen


def neighbours(batches: Sequence[IndexedBatch]) -> list[list[IndexedBatch]]:
    """Return runs of batches that follow one another in the same segment."""
    runs: list[list[IndexedBatch]] = []
    for batch in batches:
        if runs and _are_neighbours(runs[-1][-1], batch):
            runs[-1].append(batch)
        else:
            runs.append([batch])
    return runs


def _are_neighbours(batch: IndexedBatch, following: IndexedBatch) -> bool:
    return (batch.slot, batch.position + batch.length) == (following.slot, following.position)
