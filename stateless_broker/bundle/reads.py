"""The read side of an owned bundle: fetch index, tail cache, cold reads and Parquet behind one `fetch`.

Nothing above the high watermark can be found here: the index is fed by acknowledged segments only, and `fetch` asserts it again.
What is below `trim_slot` of the newest known checkpoint may vanish at any moment; ObjectMissing therefore means "look at the newest
checkpoint and continue by offset", and only where that shows nothing new it means damage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ledger.catalog import Topic
from ledger.checkpoint import newest_checkpoint, partitions_by_key
from ledger.cold_reader import ColdReader, choose_batches
from ledger.fetch_index import FetchIndex, IndexedBatch, PartitionIndex, far_index
from ledger.fold import PartitionKey
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.history import read_history
from ledger.keys import KeyedPlace
from ledger.object_store.contract import Buffer, ObjectMissing
from ledger.parquet.reader import read_parquet
from ledger.recovery import Recovered
from ledger.shared_run import SharedRun
from ledger.stored_batch import StoredBatch
from ledger.writer import LedgerWriter
from ledgermq.errors import DataDamaged, NotOwner, OffsetOutOfRange, Unavailable
from ledgermq.protocol.records import Compression
from stateless_broker.bundle.context import BundleContext
from stateless_broker.bundle.located import LocatedBatch, located
from stateless_broker.bundle.waiters import Waiters

ATTEMPTS_MAX = 5
FAR_PARTITIONS_MAX = 8
FAR_BATCHES_MAX = 20_000


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """`batches` begin with the one that holds the offset asked for; none: it is the high watermark."""

    high_watermark: int
    log_start: int
    batches: list[StoredBatch]
    located: list[LocatedBatch] = field(default_factory=list)
    """Instead of `batches`: nobody has read these."""


class BundleReads:
    def __init__(self, context: BundleContext, writer: LedgerWriter, recovered: Recovered) -> None:
        self.bundle = writer.bundle
        self.waiters = Waiters(writer.durable.end)
        self.checkpoint = recovered.checkpoint
        self.counters = partitions_by_key(recovered.checkpoint)
        self.index = FetchIndex(context.limits.index_batches_max, recovered.checkpoint.state.slot + 1)
        for slot in recovered.tail:
            self.index.add(slot.index)
        self.parked = _parked(recovered.checkpoint)
        self.context = context
        self._writer = writer
        self._cold = ColdReader(context.store, self.bundle, context.cold_reads)
        self._loading = asyncio.Lock()
        self._looking = SharedRun(self._look)
        self._far: dict[PartitionKey, PartitionIndex] = {}
        self._too_many = False

    def on_durable(self, index: fmt.SegmentIndex, data: Sequence[Buffer]) -> None:
        self.index.add(index)
        self.context.tail_cache.add(index, data)
        self.waiters.wake({(entry.topic_id, entry.partition) for entry in index.batches})

    def close(self) -> None:
        """The term is over: drop what it knew, wake who waits."""
        self.index = FetchIndex(self.index.batches_max, self.index.covered_from)
        self._far.clear()
        self.context.tail_cache.drop_bundle(self.bundle)
        self.context.segment_indexes.leave(self.bundle)
        self.waiters.close()

    def high_watermark(self, key: PartitionKey) -> int:
        return self._writer.durable.end(*key)

    def parquet_end(self, key: PartitionKey) -> int:
        counters = self.counters.get(key)
        return counters.parquet_end if counters else 0

    def parquet_start(self, key: PartitionKey) -> int:
        """What is below, down to the log start, was cleaned: it is in a version of the partition."""
        counters = self.counters.get(key)
        return counters.parquet_start if counters else 0

    def log_start(self, topic: Topic, partition: int) -> int:
        """Of an internal topic only what is behind its snapshot can be fetched: who needs more begins with the snapshot."""
        counters = self.counters.get((topic.id, partition))
        if counters is None:
            return 0
        return max(counters.log_start, counters.parquet_end) if topic.internal else counters.log_start

    async def fetch(self, topic: Topic, partition: int, offset: int, bytes_max: int, *, direct: bool = False) -> PartitionFetch:
        """`direct`: of batches that lie in segments say where, if they can be read there.

        Raises OffsetOutOfRange, DataDamaged, Unavailable, the store's errors.
        """
        key = (topic.id, partition)
        for _ in range(ATTEMPTS_MAX):
            known = self.checkpoint.number
            high, start = self.high_watermark(key), self.log_start(topic, partition)
            if offset > high:
                await self._writer.check_fence()  # a zombie must not send a consumer back that is ahead of it
                high = self.high_watermark(key)
            if not start <= offset <= high:
                raise OffsetOutOfRange(f"{topic.name}-{partition}: offset {offset} is not within log start {start} and end {high}")
            if offset == high:
                return PartitionFetch(high, start, [])
            try:
                if direct and (places := await self._locate(key, offset, bytes_max)):
                    return self._located_below_high_watermark(key, start, places)
                batches = await self._read(topic, partition, offset, bytes_max)
            except ObjectMissing as error:
                await self.look_for(error, known)
                continue
            assert offset < batches[0].end, (key, offset)
            assert batches[0].base_offset <= max(offset, self.parquet_start(key)), (key, offset)  # only what was cleaned has gaps
            return self._below_high_watermark(key, start, batches)
        raise Unavailable(f"bundle {self.bundle}: its segments are trimmed faster than they can be read", retry_after_ms=100)

    def _below_high_watermark(self, key: PartitionKey, start: int, batches: list[StoredBatch]) -> PartitionFetch:
        """Others may have brought to Parquet what has landed and is not acknowledged here yet, or what the next owner has written."""
        if self._writer.lost is not None:
            raise self._writer.lost
        high = self.high_watermark(key)
        readable = [batch for batch in batches if batch.end <= high]
        if not readable:
            raise Unavailable(f"bundle {self.bundle}: a segment that others have read is not acknowledged here yet", retry_after_ms=50)
        return PartitionFetch(high, start, readable)

    def _located_below_high_watermark(self, key: PartitionKey, start: int, places: list[LocatedBatch]) -> PartitionFetch:
        if self._writer.lost is not None:
            raise self._writer.lost
        high = self.high_watermark(key)
        assert places[-1].batch.end <= high, "the index holds what was acknowledged, and nothing else"
        self.context.metrics.fetched(self.bundle, "direct", sum(each.batch.length for each in places))
        return PartitionFetch(high, start, [], places)

    async def look(self) -> bool:
        """Take in the newest checkpoint; all who are surprised at the same time share one look. True: it is newer than the one known."""
        known = self.checkpoint.number
        await self._looking.run()
        return self.checkpoint.number > known

    async def _look(self) -> None:
        self.see(await newest_checkpoint(self.context.store, self.bundle, self.checkpoint))

    async def stop(self) -> None:
        """Leave no task behind."""
        await self._looking.close()

    def see(self, checkpoint: fmt.Checkpoint) -> bool:
        if checkpoint.number <= self.checkpoint.number:
            return False
        self.checkpoint = checkpoint
        self.counters = partitions_by_key(checkpoint)
        self.parked = _parked(checkpoint)
        if checkpoint.state.epoch > self._writer.epoch:
            self._writer.end(NotOwner(f"bundle {self.bundle}: checkpoint {checkpoint.number} knows epoch {checkpoint.state.epoch}"))
        cached = self.context.tail_cache.first_slot(self.bundle)
        self._too_many = False
        self.index.drop_below(min(checkpoint.trim_slot, cached or checkpoint.trim_slot))
        self._far.clear()
        return True

    async def _read(self, topic: Topic, partition: int, offset: int, bytes_max: int) -> list[StoredBatch]:
        key = (topic.id, partition)
        if offset < (border := self.parquet_start(key)) and self._find(key, offset) is None:
            if cleaned := await self._from_version(topic, partition, offset, border, bytes_max):
                return self._told("keyed", cleaned)
            offset = border
        found = await self._in_segments(key, offset)
        if found is not None:
            index, place = found
            if cached := self._from_cache(index, place, bytes_max):
                return cached
            if self._is_kept(index[place], key, offset):
                return self._told("segment", await self._cold.read(choose_batches(index, place, bytes_max)))
        if topic.internal:  # it went into the snapshot while this looked for it
            raise OffsetOutOfRange(f"{topic.name}-{partition}: offset {offset} is in the snapshot by now, the log starts behind it")
        return self._told("parquet", await self._from_parquet(topic, partition, offset, bytes_max))

    async def _locate(self, key: PartitionKey, offset: int, bytes_max: int) -> list[LocatedBatch]:
        """Where the batches are that `_read` would read from segments; none where it would take them from elsewhere."""
        found = await self._in_segments(key, offset)
        if found is None:
            return []
        index, place = found
        first = index[place]
        if not self._is_kept(first, key, offset) or self.context.tail_cache.get(self.bundle, first.slot, first.position) is not None:
            return []
        return await located(self.context.store, self.bundle, choose_batches(index, place, bytes_max))

    async def _in_segments(self, key: PartitionKey, offset: int) -> tuple[PartitionIndex, int] | None:
        """As `_find`, and in segments whose index is not loaded yet, where Parquet has not got so far."""
        found = self._find(key, offset)
        if found is None and offset >= self.parquet_end(key):
            found = await self._find_older(key, offset)
        return found

    def _is_kept(self, batch: IndexedBatch, key: PartitionKey, offset: int) -> bool:
        """Its segment is there. One that is trimmed may be gone at any moment, and Parquet has what was in it."""
        return batch.slot >= self.checkpoint.trim_slot or offset >= self.parquet_end(key)

    def _find(self, key: PartitionKey, offset: int) -> tuple[PartitionIndex, int] | None:
        found = self.index.find(key, offset)
        far = self._far.get(key)
        if found is None and far is not None and (place := far.at(offset)) is not None:
            return far, place
        return found

    async def _find_older(self, key: PartitionKey, offset: int) -> tuple[PartitionIndex, int] | None:
        """Load the index of the segments below those that are covered. None: the offset is in Parquet by now."""
        async with self._loading:
            found = self._find(key, offset)
            if found is not None:
                return found
            await self._load_older(key, offset)
        found = self._find(key, offset)
        if found is None and offset >= self.parquet_end(key):
            raise DataDamaged(f"bundle {self.bundle}: offset {offset} of topic {key[0]} partition {key[1]} is in no segment")
        return found

    @property
    def has_older_segments(self) -> bool:
        """Segments that are not trimmed and not in the index."""
        return self.checkpoint.trim_slot < self.index.covered_from and not self.is_partial

    @property
    def is_partial(self) -> bool:
        """The segments that are not trimmed have more batches than the index holds."""
        return self._too_many

    async def load_all(self) -> None:
        """Bring what is missing into the index, if it has room for it."""
        async with self._loading:
            if self.has_older_segments:
                await self._load_older(None, 0)

    async def candidate(self, topic: Topic, partition: int, offset: int, timestamp_us: int) -> tuple[int, int] | None:
        """The next run of offsets, from `offset` on, that may hold a record of this time or a later one: first and end."""
        for _ in range(ATTEMPTS_MAX):
            known = self.checkpoint.number
            try:
                return await self._candidate((topic.id, partition), offset, timestamp_us)
            except ObjectMissing as error:
                await self.look_for(error, known)
        raise Unavailable(f"bundle {self.bundle}: its file lists change faster than they can be read", retry_after_ms=100)

    async def look_for(self, missing: ObjectMissing, known: int) -> None:
        """An object was gone that checkpoint `known` needs: there must be a newer one that does not. Raises DataDamaged else."""
        if self.checkpoint.number == known:
            await self.look()
        if self.checkpoint.number == known:
            raise DataDamaged(f"{missing.message}, and no checkpoint says so", object_key=missing.object_key) from missing

    async def _candidate(self, key: PartitionKey, offset: int, timestamp_us: int) -> tuple[int, int] | None:
        counters = self.counters.get(key)
        if offset < (border := self.parquet_start(key)) and self._find(key, offset) is None:
            cleaned = await self.context.keyed_reader.candidate(KeyedPlace(*key), offset, border, timestamp_us)
            if cleaned is not None:
                return cleaned
            offset = border
        if counters is not None and max(offset, counters.parquet_start) < counters.parquet_end and self._find(key, offset) is None:
            for file in await self.context.parquet_cache.pages(self.bundle).files_from(counters, offset):
                if file.timestamp_max_us >= timestamp_us:
                    return max(offset, file.first_offset), file.last_offset + 1
            offset = counters.parquet_end
        if offset >= self.high_watermark(key):
            return None
        found = self._find(key, offset) or await self._find_older(key, offset)
        if found is None:  # moved to Parquet meanwhile
            return await self._candidate(key, offset, timestamp_us)
        index, place = found
        later = index.first_at_or_after(timestamp_us, place)
        if later is None:
            return None if index.end >= self.high_watermark(key) else (index.end, index.end)
        return max(offset, index[later].base_offset), index[later].end

    async def _load_older(self, key: PartitionKey | None, offset: int) -> None:
        context = self.context
        history = await read_history(context.store, self.bundle, context.cluster.producer_states_max, known=context.segment_indexes)
        self.see(history.checkpoint)
        older = [slot.index for slot in history.segments if slot.index.slot < self.index.covered_from]
        if self.index.batches + sum(len(index.batches) for index in older) <= self.index.batches_max:
            self.index.prepend(older, history.checkpoint.trim_slot)
            return
        self._too_many = True
        if key is None:
            return
        while len(self._far) >= FAR_PARTITIONS_MAX:
            self._far.pop(next(iter(self._far)))
        self._far[key] = far_index(older, key, offset, FAR_BATCHES_MAX)

    def _from_cache(self, index: PartitionIndex, place: int, bytes_max: int) -> list[StoredBatch]:
        """As many batches from `place` on as are in the tail cache and fit; the first may be larger than `bytes_max`."""
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

    async def _from_version(self, topic: Topic, partition: int, offset: int, border: int, bytes_max: int) -> list[StoredBatch]:
        async with self.context.cold_reads:
            place = KeyedPlace(topic.id, partition)
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


def _parked(checkpoint: fmt.Checkpoint) -> list[fmt.PartitionCheckpoint]:
    return [part for part in checkpoint.partitions if part.HasField("parked")]
