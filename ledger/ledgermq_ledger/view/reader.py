"""`LedgerReader`: reads records of one ledger by offset, and finds offsets by time.

Bytes that are at hand come first, then versions of keyed topics, then segments that are not trimmed
(one range GET for neighbouring batches), then Parquet. A caller sees nothing but records in order.
The same reader serves the owner of a bundle and processes without a broker: what they know of the
ledger is in their `LedgerView`.

Nothing at or above `LedgerView.readable_end` is ever returned. Must not know brokers, groups, or
what a record means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from types import MappingProxyType

from ledgermq.errors import OffsetOutOfRange, Unavailable
from ledgermq.protocol.batches.records import Compression
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keyed.reader import KeyedReader
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from ledgermq_ledger.log.segments.time_search import Candidate, first_row_at
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.parquet.reader import ParquetCache, read_parquet
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.cold_reader import ColdReader, choose_batches
from ledgermq_ledger.view.partition_index import IndexedBatch, Masks, PartitionIndex, Place
from ledgermq_ledger.view.view import LedgerView

READ_BYTES = 4 * 1024 * 1024
SEARCH_BYTES = 1024 * 1024
"""Of one read where the rows themselves are searched for a time."""
SHARED_MAX = 16
"""Segments of one partition that an answer names to a caller that reads them itself."""
SHARED_MS = 15 * 60 * 1000
"""How long the URL of a segment is good, where URLs expire."""

CountRead = Callable[[str, int], None]
"""Called with the source of batches (cache, segment, parquet, keyed, direct) and their bytes."""


@dataclass(frozen=True, slots=True)
class LocatedBatch:
    """A batch that its reader fetches itself. `url`: of the segment."""

    batch: IndexedBatch
    url: str


@dataclass(slots=True)
class PartitionRead:
    """`batches` begin with the one that holds the offset asked for; none: it is the readable end."""

    high_watermark: int
    log_start: int
    batches: list[StoredBatch]
    located: list[LocatedBatch] = field(default_factory=list)
    """Instead of `batches`: these were not read here."""
    next_offset: int = 0
    """Where only records with some tags were asked for, and there are no batches: those below it have none of
    them; 0: it is not known.
    """


class LedgerReader:
    """Within one event loop; calls may run side by side.

    `pool`: bounds the reads of versions, Parquet and segments that run at the same time.
    `at_hand`: bytes that came along with indexes, to be checked as those of the store are.
    """

    def __init__(
        self,
        ledger: LedgerRef,
        view: LedgerView,
        *,
        parquet: ParquetCache,
        keyed: KeyedReader,
        pool: asyncio.Semaphore,
        run_blocking: RunBlocking,
        at_hand: Mapping[Place, Buffer] = MappingProxyType({}),
        count: CountRead = lambda source, size_bytes: None,
    ) -> None:
        self.view = view
        self.at_hand = at_hand
        self._store = ledger.store
        self._parquet = parquet
        self._keyed = keyed
        self._pool = pool
        self._run_blocking = run_blocking
        self._cold = ColdReader(ledger.store, ledger.bundle, pool, at_hand)
        self._count = count

    @property
    def bundle(self) -> int:
        return self.view.bundle

    def log_start(self, key: PartitionId) -> int:
        return self.view.log_start(key)

    def end(self, key: PartitionId) -> int:
        return self.view.readable_end(key)

    # By offset.

    async def read(
        self, key: PartitionId, offset: int, bytes_max: int = READ_BYTES, topic: Topic | None = None
    ) -> list[StoredBatch]:
        """Return batches from the one that holds `offset` on, at least one, about `bytes_max`
        bytes; none where `offset` is the end.

        Below `LedgerView.parquet_start` offsets are left out, so the first batch may begin above
        `offset`. Raises as `fetch` does.
        """
        return (await self.fetch(key, offset, bytes_max, topic)).batches

    async def fetch(
        self,
        key: PartitionId,
        offset: int,
        bytes_max: int,
        topic: Topic | None = None,
        *,
        direct: bool = False,
        masks: Masks = None,
    ) -> PartitionRead:
        """Read as `read` does, and return what is known of the partition with it.

        `masks`: leave out batches that surely have none of these tags.

        `topic`: for its name, its compression, and where its log starts. `direct`: of batches that
        lie in segments return where they are, if they can be read there. `bytes_max` 0: read none.

        Raises OffsetOutOfRange (below the log start, or above the end), DataDamaged, Unavailable,
        the store's errors.
        """
        view = self.view
        end, start = view.readable_end(key), view.log_start(key, topic)
        if start <= offset <= end:  # the warm path: nothing is awaited
            if offset == end or bytes_max == 0:
                return PartitionRead(end, start, [])
            found = view.find(key, offset)
            if masks is not None and found is not None:
                offset = min(end, found[0].past_unwanted(offset, masks))
                if offset == end:
                    return PartitionRead(end, start, [], next_offset=end)
                found = view.find(key, offset)
            if found is not None and (held := self._held(*found, bytes_max, masks)) and held[-1].end <= end:
                return PartitionRead(end, start, held)
        return await view.reread(partial(self._fetch, key, offset, bytes_max, topic, direct, masks))

    async def _fetch(
        self, key: PartitionId, offset: int, bytes_max: int, topic: Topic | None, direct: bool, masks: Masks
    ) -> PartitionRead:
        view = self.view
        if offset > view.readable_end(key):
            await view.source.check_end()  # a zombie must not send a consumer back that is ahead of it
        end, start = view.readable_end(key), view.log_start(key, topic)
        if not start <= offset <= end:
            raise OffsetOutOfRange(
                f"{_name(key, topic)}: offset {offset} is not between log start {start} and end {end}"
            )
        if offset == end or bytes_max == 0:
            return PartitionRead(end, start, [])
        if direct and (places := await self._locate(key, offset, bytes_max, masks)):
            self._count("direct", sum(each.batch.length for each in places))
            return PartitionRead(view.readable_end(key), start, [], places)
        batches = await self._read(key, offset, bytes_max, topic, masks)
        assert offset < batches[0].end, (key, offset)
        # only what was cleaned has gaps
        assert batches[0].base_offset <= max(offset, view.parquet_start(key)), (key, offset)
        end = view.readable_end(key)
        # others may have brought to Parquet what has landed and is not acknowledged here yet
        readable = [batch for batch in batches if batch.end <= end]
        if not readable:
            raise Unavailable(
                f"bundle {self.bundle}: this process has not acknowledged a segment yet that others have read; retry",
                retry_after_ms=50,
            )
        return PartitionRead(end, start, readable)

    async def _read(
        self, key: PartitionId, offset: int, bytes_max: int, topic: Topic | None, masks: Masks
    ) -> list[StoredBatch]:
        view, compression = self.view, _compression_of(topic)
        if offset < (border := view.parquet_start(key)) and view.find(key, offset) is None:
            async with self._pool:
                cleaned = await self._keyed.read(key, offset, border, bytes_max, compression)
            if cleaned:
                return self._counted("keyed", cleaned)
            offset = border
        found = await view.place(key, offset)
        if found is not None:
            if held := self._held(*found, bytes_max, masks):
                return held
            index, place = found
            if view.is_kept(index[place], key, offset):
                return self._counted("segment", await self._cold.read(choose_batches(index, place, bytes_max, masks)))
        if topic is not None and topic.internal and not topic.hidden:  # a round took it while this looked for it
            raise OffsetOutOfRange(
                f"{_name(key, topic)}: offset {offset} has left the segments, so the log starts after it"
            )
        async with self._pool:
            read = await read_parquet(
                self._store, self.bundle, view.checkpoint, *key, offset, bytes_max,
                compression=compression, cache=self._parquet,
            )  # fmt: skip
        return self._counted("parquet", read)

    def _held(self, index: PartitionIndex, place: int, bytes_max: int, masks: Masks) -> list[StoredBatch]:
        """Return as many batches from `place` on as are held and fit; the first may be larger than
        `bytes_max`. Behind it, only those that may have one of the tags.
        """
        batches: list[StoredBatch] = []
        size_bytes = 0
        for at in chain((place,), index.wanted(place + 1, masks)):
            batch = index[at]
            data = self.view.held_bytes(batch)
            if data is None or (batches and size_bytes + batch.length > bytes_max):
                break
            size_bytes += batch.length
            batches.append(StoredBatch(batch.base_offset, batch.record_count, batch.crc, data))
        if batches:
            self._count("cache", size_bytes)
        return batches

    def _counted(self, source: str, batches: list[StoredBatch]) -> list[StoredBatch]:
        self._count(source, sum(len(batch.data) for batch in batches))
        return batches

    async def _locate(self, key: PartitionId, offset: int, bytes_max: int, masks: Masks) -> list[LocatedBatch]:
        """Return where the batches are that `_read` would read from segments; none where it would
        take them from elsewhere.
        """
        view = self.view
        found = await view.place(key, offset)
        if found is None:
            return []
        index, place = found
        first = index[place]
        if not view.is_kept(first, key, offset) or view.held_bytes(first) is not None:
            return []
        chosen = choose_batches(index, place, bytes_max, masks)
        assert chosen[-1].end <= view.durable_end(key), "the index holds acknowledged records only"
        end = view.readable_end(key)
        return await _located(self._store, self.bundle, [batch for batch in chosen if batch.end <= end])

    async def parquet_files(self, key: PartitionId, offset: int) -> list[fmt.ParquetFile]:
        """Return the files that hold records at or above `offset`, ascending.

        Raises DataDamaged, Unavailable, the store's errors.
        """
        return await self.view.reread(partial(self._parquet_files, key, offset), "listed")

    async def _parquet_files(self, key: PartitionId, offset: int) -> list[fmt.ParquetFile]:
        counters = self.view.counters.get(key)
        return await self._parquet.pages(self.bundle).files_from(counters, offset) if counters else []

    async def readable_files(self, key: PartitionId, offset: int) -> list[fmt.ParquetFile]:
        """Return the files to read for records at or above `offset`: merged ones in the place of those that they stand
        for. Raises what `parquet_files` raises.
        """
        return await self.view.reread(partial(self._readable_files, key, offset), "listed")

    async def _readable_files(self, key: PartitionId, offset: int) -> list[fmt.ParquetFile]:
        files, counters = await self._parquet_files(key, offset), self.view.counters.get(key)
        return files if counters is None else await self._parquet.merged.over(files, counters)

    # By time.

    async def offset_at(
        self, key: PartitionId, timestamp_us: int, topic: Topic | None = None, *, begin: int = 0
    ) -> int | None:
        """Return the offset of the first readable record of this time or a later one, in
        microseconds since the epoch; None if there is none. `begin`: the least offset that this ledger has.

        Times need not ascend. Candidates come from the times that versions, Parquet and the index
        hold. Raises as `read` does.
        """
        view = self.view
        offset = max(begin, view.log_start(key, topic))
        while True:
            candidate = await view.reread(partial(self._candidate, key, offset, timestamp_us, topic), "searched")
            if candidate is None or isinstance(candidate, int):
                return candidate
            offset, end = candidate
            while offset < end:
                offset = max(offset, view.log_start(key, topic))  # it may have moved
                for batch in await self.read(key, offset, SEARCH_BYTES, topic):
                    from_row = max(0, offset - batch.base_offset)
                    row = await self._run_blocking(partial(first_row_at, batch.data, timestamp_us, from_row))
                    if row is not None:
                        return batch.base_offset + int(row)
                    offset = batch.end

    async def _candidate(
        self, key: PartitionId, offset: int, timestamp_us: int, topic: Topic | None
    ) -> Candidate | None:
        """Return the next candidate from `offset` on."""
        view = self.view
        offset = max(offset, view.log_start(key, topic))
        if offset < (border := view.parquet_start(key)) and view.find(key, offset) is None:
            cleaned = await self._keyed.candidate(key, offset, border, timestamp_us)
            if cleaned is not None:
                return cleaned
            offset = border
        if offset < (border := view.parquet_end(key)) and view.find(key, offset) is None:
            found = await self._first_in_parquet(key, offset, timestamp_us)
            if found is not None:
                # Parquet may hold what is not acknowledged here yet
                return found if found < view.readable_end(key) else None
            offset = border
        if offset >= view.readable_end(key):
            return None
        place = await view.place(key, offset)
        if place is None:
            return offset, offset  # it has moved to Parquet: look there
        index, at = place
        later = index.first_at_or_after(timestamp_us, at)
        return (index.end, index.end) if later is None else (max(offset, index[later].base_offset), index[later].end)

    async def _first_in_parquet(self, key: PartitionId, offset: int, timestamp_us: int) -> int | None:
        for file in await self._parquet_files(key, offset):
            if file.timestamp_max_us >= timestamp_us:
                async with self._pool:
                    found = await self._parquet.first_at(file, max(offset, file.first_offset), timestamp_us)
                if found is not None:
                    return found
        return None


async def _located(store: ObjectStore, bundle: int, batches: Iterable[IndexedBatch]) -> list[LocatedBatch]:
    """Return the first of these with the URLs of their segments, as many as an answer may name;
    none where the store's objects cannot be shared.
    """
    urls: dict[int, str] = {}
    found: list[LocatedBatch] = []
    for batch in batches:
        if batch.slot not in urls:
            if len(urls) == SHARED_MAX:
                break
            url = await store.share(keys.segment(bundle, batch.slot), SHARED_MS)
            if url is None:
                break
            urls[batch.slot] = url
        found.append(LocatedBatch(batch, urls[batch.slot]))
    return found


def _name(key: PartitionId, topic: Topic | None) -> str:
    return f"topic id {key.topic_id} partition {key.partition}" if topic is None else f"{topic.name}/{key.partition}"


def _compression_of(topic: Topic | None) -> Compression:
    kind = "none" if topic is None else topic.settings.compression_type
    return "lz4" if kind == "lz4" else "zstd" if kind == "zstd" else "none"
