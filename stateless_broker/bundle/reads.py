"""The read side of an owned bundle: tail cache, cold reads from segments, and Parquet, behind one
`fetch` by offset.

Nothing above the high watermark can be found here: what the owner knows (`KnownBundle`) was
acknowledged, and `fetch` asserts it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ledger.format import ledgermq_format_pb2 as fmt
from ledger.keys import PartitionId
from ledger.log.recovery import Recovered
from ledger.log.stored_batch import StoredBatch
from ledger.log.writer import LedgerWriter
from ledger.object_store.contract import Buffer, ObjectMissing
from ledger.parquet.reader import read_parquet
from ledger.topics.catalog import Topic
from ledger.view.cold_reader import ColdReader, choose_batches
from ledger.view.fetch_index import PartitionIndex
from ledgermq.errors import OffsetOutOfRange, Unavailable
from ledgermq.protocol.records import Compression
from stateless_broker.bundle.context import BundleContext
from stateless_broker.bundle.known_bundle import KnownBundle
from stateless_broker.bundle.located import LocatedBatch, located
from stateless_broker.bundle.waiters import Waiters

ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """`batches` begin with the one that holds the offset asked for; none: it is the high watermark."""

    high_watermark: int
    log_start: int
    batches: list[StoredBatch]
    located: list[LocatedBatch] = field(default_factory=list)
    """Instead of `batches`: nobody has read these."""


class BundleReads(KnownBundle):
    def __init__(self, context: BundleContext, writer: LedgerWriter, recovered: Recovered) -> None:
        super().__init__(context, writer, recovered)
        self.waiters = Waiters(writer.durable.end)
        self._cold = ColdReader(context.store, self.bundle, context.cold_reads)

    def on_durable(self, index: fmt.SegmentIndex, data: Sequence[Buffer]) -> None:
        self.index.add(index)
        self.context.tail_cache.add(index, data)
        self.waiters.wake({PartitionId(entry.topic_id, entry.partition) for entry in index.batches})

    def close(self) -> None:
        """Also wake who waits."""
        super().close()
        self.context.tail_cache.drop_bundle(self.bundle)
        self.context.segment_indexes.leave(self.bundle)
        self.waiters.close()

    async def fetch(
        self, topic: Topic, partition: int, offset: int, bytes_max: int, *, direct: bool = False
    ) -> PartitionFetch:
        """`direct`: of batches that lie in segments say where, if they can be read there.
        `bytes_max` 0: read no batch.

        Raises OffsetOutOfRange, DataDamaged, Unavailable, the store's errors.
        """
        key = PartitionId(topic.id, partition)
        for _ in range(ATTEMPTS_MAX):
            known = self.checkpoint.number
            high, start = self.high_watermark(key), self.log_start(topic, partition)
            if offset > high:
                await self._writer.check_fence()  # a zombie must not send a consumer back that is ahead of it
                high = self.high_watermark(key)
            if not start <= offset <= high:
                raise OffsetOutOfRange(
                    f"{topic.name}/{partition}: offset {offset} is not within log start {start} and end {high}"
                )
            if offset == high or bytes_max == 0:
                return PartitionFetch(high, start, [])
            try:
                if direct and (places := await self._locate(key, offset, bytes_max)):
                    return self._located_below_high_watermark(key, start, places)
                batches = await self._read(topic, partition, offset, bytes_max)
            except ObjectMissing as error:
                await self.look_for(error, known)
                continue
            assert offset < batches[0].end, (key, offset)
            assert batches[0].base_offset <= max(offset, self.parquet_start(key)), (
                key,
                offset,
            )  # only what was cleaned has gaps
            return self._below_high_watermark(key, start, batches)
        raise Unavailable(
            f"bundle {self.bundle}: its segments are trimmed faster than they can be read", retry_after_ms=100
        )

    def _below_high_watermark(self, key: PartitionId, start: int, batches: list[StoredBatch]) -> PartitionFetch:
        """Others may have brought to Parquet what has landed and is not acknowledged here yet, or
        what the next owner has written.
        """
        if self._writer.lost is not None:
            raise self._writer.lost
        high = self.high_watermark(key)
        readable = [batch for batch in batches if batch.end <= high]
        if not readable:
            raise Unavailable(
                f"bundle {self.bundle}: a segment that others have read is not acknowledged here yet", retry_after_ms=50
            )
        return PartitionFetch(high, start, readable)

    def _located_below_high_watermark(self, key: PartitionId, start: int, places: list[LocatedBatch]) -> PartitionFetch:
        if self._writer.lost is not None:
            raise self._writer.lost
        high = self.high_watermark(key)
        assert places[-1].batch.end <= high, "the index holds what was acknowledged, and nothing else"
        self.context.metrics.fetched(self.bundle, "direct", sum(each.batch.length for each in places))
        return PartitionFetch(high, start, [], places)

    async def _read(self, topic: Topic, partition: int, offset: int, bytes_max: int) -> list[StoredBatch]:
        key = PartitionId(topic.id, partition)
        if offset < (border := self.parquet_start(key)) and self.find(key, offset) is None:
            if cleaned := await self._from_version(topic, partition, offset, border, bytes_max):
                return self._told("keyed", cleaned)
            offset = border
        found = await self.in_segments(key, offset)
        if found is not None:
            index, place = found
            if cached := self._from_cache(index, place, bytes_max):
                return cached
            if self.is_kept(index[place], key, offset):
                return self._told("segment", await self._cold.read(choose_batches(index, place, bytes_max)))
        if topic.internal:  # it went into the snapshot while this looked for it
            raise OffsetOutOfRange(
                f"{topic.name}/{partition}: offset {offset} is in the snapshot by now, the log starts behind it"
            )
        return self._told("parquet", await self._from_parquet(topic, partition, offset, bytes_max))

    async def _locate(self, key: PartitionId, offset: int, bytes_max: int) -> list[LocatedBatch]:
        """Where the batches are that `_read` would read from segments; none where it would take
        them from elsewhere.
        """
        found = await self.in_segments(key, offset)
        if found is None:
            return []
        index, place = found
        first = index[place]
        if (
            not self.is_kept(first, key, offset)
            or self.context.tail_cache.get(self.bundle, first.slot, first.position) is not None
        ):
            return []
        return await located(self.context.store, self.bundle, choose_batches(index, place, bytes_max))

    async def candidate(self, topic: Topic, partition: int, offset: int, timestamp_us: int) -> tuple[int, int] | None:
        """The next run of offsets, from `offset` on, that may hold a record of this time or a later
        one: first and end.
        """
        for _ in range(ATTEMPTS_MAX):
            known = self.checkpoint.number
            try:
                return await self._candidate(PartitionId(topic.id, partition), offset, timestamp_us)
            except ObjectMissing as error:
                await self.look_for(error, known)
        raise Unavailable(
            f"bundle {self.bundle}: its file lists change faster than they can be read", retry_after_ms=100
        )

    async def _candidate(self, key: PartitionId, offset: int, timestamp_us: int) -> tuple[int, int] | None:
        counters = self.counters.get(key)
        if offset < (border := self.parquet_start(key)) and self.find(key, offset) is None:
            cleaned = await self.context.keyed_reader.candidate(key, offset, border, timestamp_us)
            if cleaned is not None:
                return cleaned
            offset = border
        if (
            counters is not None
            and max(offset, counters.parquet_start) < counters.parquet_end
            and self.find(key, offset) is None
        ):
            for file in await self.context.parquet_cache.pages(self.bundle).files_from(counters, offset):
                if file.timestamp_max_us >= timestamp_us:
                    return max(offset, file.first_offset), file.last_offset + 1
            offset = counters.parquet_end
        if offset >= self.high_watermark(key):
            return None
        found = await self.in_segments(key, offset)
        if found is None:  # moved to Parquet meanwhile
            return await self._candidate(key, offset, timestamp_us)
        index, place = found
        later = index.first_at_or_after(timestamp_us, place)
        if later is None:
            return None if index.end >= self.high_watermark(key) else (index.end, index.end)
        return max(offset, index[later].base_offset), index[later].end

    def _from_cache(self, index: PartitionIndex, place: int, bytes_max: int) -> list[StoredBatch]:
        """As many batches from `place` on as are in the tail cache and fit; the first may be larger
        than `bytes_max`.
        """
        batches: list[StoredBatch] = []
        size_bytes = 0
        for at in range(place, len(index)):
            batch = index[at]
            data = self.context.tail_cache.get(self.bundle, batch.slot, batch.position)
            size_bytes += batch.length
            if data is None or (batches and size_bytes > bytes_max):
                break
            batches.append(StoredBatch(batch.base_offset, batch.record_count, batch.crc, data))
        return self._told("cache", batches)

    async def _from_version(
        self, topic: Topic, partition: int, offset: int, border: int, bytes_max: int
    ) -> list[StoredBatch]:
        async with self.context.cold_reads:
            place = PartitionId(topic.id, partition)
            return await self.context.keyed_reader.read(place, offset, border, bytes_max, _compression_of(topic))

    async def _from_parquet(self, topic: Topic, partition: int, offset: int, bytes_max: int) -> list[StoredBatch]:
        context = self.context
        async with context.cold_reads:
            return await read_parquet(
                context.store,
                self.bundle,
                self.checkpoint,
                topic.id,
                partition,
                offset,
                bytes_max,
                compression=_compression_of(topic),
                cache=context.parquet_cache,
            )

    def _told(self, source: str, batches: list[StoredBatch]) -> list[StoredBatch]:
        if batches:
            self.context.metrics.fetched(self.bundle, source, sum(len(batch.data) for batch in batches))
        return batches


def _compression_of(topic: Topic) -> Compression:
    kind = topic.settings.compression_type
    return "lz4" if kind == "lz4" else "zstd" if kind == "zstd" else "none"
