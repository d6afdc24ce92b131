"""What the owner of a bundle knows of it: its newest checkpoint, and where the batches are that lie
in segments.

The index is fed by acknowledged segments only, so nothing above the high watermark is found here.
What is below `trim_slot` of the newest known checkpoint may vanish at any moment; ObjectMissing
therefore means "look at the newest checkpoint and continue by offset", and only where that shows
nothing new it means damage.
"""

from __future__ import annotations

import asyncio

from ledger.format import ledgermq_format_pb2 as fmt
from ledger.keys import PartitionId
from ledger.log.checkpoint import newest_checkpoint, partitions_by_key
from ledger.log.history import read_history
from ledger.log.recovery import Recovered
from ledger.log.shared_run import SharedRun
from ledger.log.writer import LedgerWriter
from ledger.object_store.contract import ObjectMissing
from ledger.topics.catalog import Topic
from ledger.view.fetch_index import FetchIndex, IndexedBatch, PartitionIndex, far_index
from ledgermq.errors import DataDamaged, NotOwner
from stateless_broker.bundle.context import BundleContext

FAR_PARTITIONS_MAX = 8
FAR_BATCHES_MAX = 20_000


class KnownBundle:
    """`index`, `checkpoint`, `counters` and `parked` (partitions that are) are for reading."""

    def __init__(self, context: BundleContext, writer: LedgerWriter, recovered: Recovered) -> None:
        self.bundle = writer.bundle
        self.context = context
        self.checkpoint = recovered.checkpoint
        self.counters = partitions_by_key(recovered.checkpoint)
        self.parked = _parked(recovered.checkpoint)
        self.index = FetchIndex(context.limits.index_batches_max, recovered.checkpoint.state.slot + 1)
        for slot in recovered.tail:
            self.index.add(slot.index)
        self._writer = writer
        self._loading = asyncio.Lock()
        self._looking = SharedRun(self._look)
        self._far: dict[PartitionId, PartitionIndex] = {}
        self._too_many = False

    def close(self) -> None:
        """The term is over: drop what it knew."""
        self.index = FetchIndex(self.index.batches_max, self.index.covered_from)
        self._far.clear()

    async def stop(self) -> None:
        """Leave no task behind."""
        await self._looking.close()

    def high_watermark(self, key: PartitionId) -> int:
        return self._writer.durable.end(*key)

    def parquet_end(self, key: PartitionId) -> int:
        counters = self.counters.get(key)
        return counters.parquet_end if counters else 0

    def parquet_start(self, key: PartitionId) -> int:
        """What is below, down to the log start, was cleaned: it is in a version of the partition."""
        counters = self.counters.get(key)
        return counters.parquet_start if counters else 0

    def log_start(self, topic: Topic, partition: int) -> int:
        """Of an internal topic only what is behind its snapshot can be fetched: who needs more
        begins with the snapshot.
        """
        counters = self.counters.get(PartitionId(topic.id, partition))
        if counters is None:
            return 0
        return max(counters.log_start, counters.parquet_end) if topic.internal else counters.log_start

    async def look(self) -> bool:
        """Take in the newest checkpoint; all who are surprised at the same time share one look.

        True: it is newer than the one known.
        """
        known = self.checkpoint.number
        await self._looking.run()
        return self.checkpoint.number > known

    async def _look(self) -> None:
        self.see(await newest_checkpoint(self.context.store, self.bundle, self.checkpoint))

    def see(self, checkpoint: fmt.Checkpoint) -> bool:
        """False: it is not newer than the one known.

        A checkpoint of a later epoch ends the term.
        """
        if checkpoint.number <= self.checkpoint.number:
            return False
        self.checkpoint = checkpoint
        self.counters = partitions_by_key(checkpoint)
        self.parked = _parked(checkpoint)
        if checkpoint.state.epoch > self._writer.epoch:
            self._writer.end(
                NotOwner(f"bundle {self.bundle}: checkpoint {checkpoint.number} knows epoch {checkpoint.state.epoch}")
            )
        cached = self.context.tail_cache.first_slot(self.bundle)
        self._too_many = False
        self.index.drop_below(min(checkpoint.trim_slot, cached or checkpoint.trim_slot))
        self._far.clear()
        return True

    async def look_for(self, missing: ObjectMissing, known: int) -> None:
        """An object was gone that checkpoint `known` needs: there must be a newer one that does
        not. Raises DataDamaged else.
        """
        if self.checkpoint.number == known:
            await self.look()
        if self.checkpoint.number == known:
            raise DataDamaged(
                f"{missing.message}, and no checkpoint says so", object_key=missing.object_key
            ) from missing

    async def in_segments(self, key: PartitionId, offset: int) -> tuple[PartitionIndex, int] | None:
        """As `find`, and in segments whose index is not loaded yet, where Parquet has not got so
        far.
        """
        found = self.find(key, offset)
        if found is None and offset >= self.parquet_end(key):
            found = await self._find_older(key, offset)
        return found

    def is_kept(self, batch: IndexedBatch, key: PartitionId, offset: int) -> bool:
        """Its segment is there.

        One that is trimmed may be gone at any moment, and Parquet has what was in it.
        """
        return batch.slot >= self.checkpoint.trim_slot or offset >= self.parquet_end(key)

    def find(self, key: PartitionId, offset: int) -> tuple[PartitionIndex, int] | None:
        """The index that has a batch, and its place there; None: not in segments, as far as their
        indexes are loaded.
        """
        found = self.index.find(key, offset)
        far = self._far.get(key)
        if found is None and far is not None and (place := far.at(offset)) is not None:
            return far, place
        return found

    async def _find_older(self, key: PartitionId, offset: int) -> tuple[PartitionIndex, int] | None:
        """Load the index of the segments below those that are covered.

        None: the offset is in Parquet by now.
        """
        async with self._loading:
            found = self.find(key, offset)
            if found is not None:
                return found
            await self._load_older(key, offset)
        found = self.find(key, offset)
        if found is None and offset >= self.parquet_end(key):
            raise DataDamaged(
                f"bundle {self.bundle}: offset {offset} of topic {key.topic_id} partition {key.partition} is in no segment"
            )
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

    async def _load_older(self, key: PartitionId | None, offset: int) -> None:
        context = self.context
        history = await read_history(context.ledger(self.bundle))
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


def _parked(checkpoint: fmt.Checkpoint) -> list[fmt.PartitionCheckpoint]:
    return [part for part in checkpoint.partitions if part.HasField("parked")]
