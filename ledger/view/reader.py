"""`LedgerReader`: reads one ledger from the store alone, with no broker. Parquet where it is
compacted, segments behind that.

What is durable it knows as a `FollowedLedger`, and it finds each batch by offset: a caller sees
nothing but records in order. Of user topics: internal ones are snapshots
(`ledger.log.internal_topic`).

Must not know topics' names, brokers, groups, or what a record means.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from ledger.blocking import RunBlocking
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.keyed.reader import KeyedReader
from ledger.keys import PartitionId
from ledger.log.ledger_ref import LedgerRef
from ledger.log.stored_batch import StoredBatch
from ledger.log.time_search import Candidate, offset_at
from ledger.object_store.contract import ObjectMissing
from ledger.parquet.reader import ParquetCache, read_parquet
from ledger.view.cold_reader import ColdReader, choose_batches
from ledger.view.fetch_index import PartitionIndex, Place, Span
from ledger.view.followed_ledger import INDEX_BATCHES_MAX, FollowedLedger, Wanted
from ledgermq.errors import OffsetOutOfRange, Unavailable

ATTEMPTS_MAX = 10
COLD_READS = 8
READ_BYTES = 4 * 1024 * 1024
POLL_S = 0.2


class LedgerReader(FollowedLedger):
    """`open` first. Within one event loop; calls may run side by side. Partitions are (topic id,
    partition).

    `wanted`: only these partitions can be read, and only their batches take memory.
    `recent_bytes_max`: so much of the newest batches is kept, as far as it comes with the indexes;
    then reading it asks nobody.
    """

    def __init__(
        self,
        ledger: LedgerRef,
        *,
        wanted: Wanted = lambda key: True,
        run_blocking: RunBlocking = asyncio.to_thread,
        index_batches_max: int = INDEX_BATCHES_MAX,
        recent_bytes_max: int = 0,
    ) -> None:
        super().__init__(
            ledger,
            wanted=wanted,
            index_batches_max=index_batches_max,
            recent_bytes_max=recent_bytes_max,
        )
        self._run_blocking = run_blocking
        self._parquet = ParquetCache(ledger.store, run_blocking)
        self._keyed = KeyedReader(ledger.store, run_blocking)
        self._cold = ColdReader(ledger.store, ledger.bundle, asyncio.Semaphore(COLD_READS), self.recent_bytes.batches)

    async def read(self, key: PartitionId, offset: int, bytes_max: int = READ_BYTES) -> list[StoredBatch]:
        """Batches from the one that holds `offset` on, at least one, about `bytes_max` bytes; none
        where `offset` is the end.

        Below `parquet_start` offsets are left out, so the first batch may begin above `offset`.

        Raises OffsetOutOfRange (below the log start, or above the end), DataDamaged, Unavailable,
        the store's errors.
        """
        for _ in range(ATTEMPTS_MAX):
            known = self.checkpoint.number
            start, end = self.log_start(key), self.end(key)
            if not start <= offset <= end:
                raise OffsetOutOfRange(
                    f"topic id {key.topic_id} partition {key.partition}: offset {offset} is not within log start {start} and end {end}"
                )
            if offset == end:
                return []
            try:
                found = await self._read(key, offset, bytes_max)
            except ObjectMissing as missing:
                await self.look_for(missing, known)
                continue
            if found:
                assert offset < found[0].end, (key, offset)
                assert found[0].base_offset <= max(offset, self.parquet_start(key)), (key, offset)
                return found
        raise Unavailable(f"bundle {self.bundle}: its records move faster than they can be read", retry_after_ms=100)

    async def batches(self, spans: Mapping[PartitionId, Span]) -> dict[PartitionId, PartitionIndex]:
        """Where the batches of these offsets are, copies; fewer where they have moved to Parquet
        (look at `parquet_end` again).

        Raises DataDamaged, Unavailable, the store's errors.
        """
        await self.bring(spans)
        found: dict[PartitionId, PartitionIndex] = {}
        for key, (offset, end) in spans.items():
            found[key] = PartitionIndex()
            while offset < end and (place := await self.place(key, offset)) is not None:
                found[key].extend(place[0].between(offset, end))
                offset = found[key].end
            self.let_go(key, end)
        return found

    def recent(self, batches: PartitionIndex) -> dict[Place, bytes]:
        """What is at hand of these; not checked."""
        return self.recent_bytes.find(batches)

    async def parquet_files(self, key: PartitionId, offset: int) -> list[fmt.ParquetFile]:
        """Those that hold records at or above `offset`, ascending.

        Raises DataDamaged, Unavailable, the store's errors.
        """
        for _ in range(ATTEMPTS_MAX):
            known = self.checkpoint.number
            try:
                counters = self.counters(key)
                return await self._parquet.pages(self.bundle).files_from(counters, offset) if counters else []
            except ObjectMissing as missing:
                await self.look_for(missing, known)
        raise Unavailable(
            f"bundle {self.bundle}: its file lists change faster than they can be read", retry_after_ms=100
        )

    async def offset_at(self, key: PartitionId, timestamp_us: int) -> int | None:
        """The first record of this time or a later one, among those that are known to be durable.

        Raises as `read` does.
        """
        return await offset_at(_Searched(self, key), timestamp_us, self._run_blocking)

    async def candidate(self, key: PartitionId, offset: int, timestamp_us: int) -> Candidate | None:
        """As `ledger.log.time_search` asks. Raises as `read` does."""
        for _ in range(ATTEMPTS_MAX):
            known = self.checkpoint.number
            try:
                return await self._candidate(key, max(offset, self.log_start(key)), timestamp_us)
            except ObjectMissing as missing:
                await self.look_for(missing, known)
        raise Unavailable(
            f"bundle {self.bundle}: its records move faster than they can be searched", retry_after_ms=100
        )

    async def _candidate(self, key: PartitionId, offset: int, timestamp_us: int) -> Candidate | None:
        if offset < (border := self.parquet_start(key)):
            cleaned = await self._keyed.candidate(key, offset, border, timestamp_us)
            if cleaned is not None:
                return cleaned
            offset = border
        if offset < self.parquet_end(key):
            for file in await self.parquet_files(key, offset):
                if file.timestamp_max_us >= timestamp_us:
                    found = await self._parquet.first_at(file, max(offset, file.first_offset), timestamp_us)
                    if found is not None:
                        return found
            offset = max(offset, self.parquet_end(key))
        if offset >= self.end(key):
            return None
        place = await self.place(key, offset)
        if place is None:
            return offset, offset  # it has moved to Parquet: look there
        index, at = place
        later = index.first_at_or_after(timestamp_us, at)
        return (index.end, index.end) if later is None else (max(offset, index[later].base_offset), index[later].end)

    async def follow(
        self, positions: Mapping[PartitionId, int], *, bytes_max: int = READ_BYTES, poll_s: float = POLL_S
    ) -> AsyncIterator[tuple[PartitionId, list[StoredBatch]]]:
        """Everything from these offsets on, for ever: a partition, and batches of it, in turn.

        Raises as `read` does.
        """
        positions = dict(positions)
        while True:
            behind = [key for key, offset in positions.items() if offset < self.end(key)]
            for key in behind:
                batches = await self.read(key, positions[key], bytes_max)
                yield key, batches
                positions[key] = batches[-1].end
            if not behind and not await self.refresh():
                await asyncio.sleep(poll_s)

    # The records.

    async def _read(self, key: PartitionId, offset: int, bytes_max: int) -> list[StoredBatch]:
        """Nothing: it moved to Parquet while it was looked for."""
        if offset < (border := self.parquet_start(key)):
            cleaned = await self._keyed.read(key, offset, border, bytes_max)
            if cleaned:
                return cleaned
            offset = border
        if offset < self.parquet_end(key):
            return await read_parquet(
                self._store, self.bundle, self.checkpoint, *key, offset, bytes_max, cache=self._parquet
            )
        found = await self.place(key, offset)
        return [] if found is None else await self._cold.read(choose_batches(*found, bytes_max))


@dataclass(frozen=True, slots=True)
class _Searched:
    """One partition of a reader, for a search by time."""

    reader: LedgerReader
    key: PartitionId

    def log_start(self) -> int:
        return self.reader.log_start(self.key)

    async def candidate(self, offset: int, timestamp_us: int) -> Candidate | None:
        return await self.reader.candidate(self.key, offset, timestamp_us)

    async def read(self, offset: int, bytes_max: int) -> list[StoredBatch]:
        return await self.reader.read(self.key, offset, bytes_max)
