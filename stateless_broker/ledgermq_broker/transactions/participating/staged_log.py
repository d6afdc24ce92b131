"""Write and read one partition of `__staged`: batches of open transactions, as producers sent them.

Only this object appends there, through the bundle's log. So it counts the offsets itself, and has
them before a batch is durable; `check_end` compares them with those of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

from crc32c import crc32c

from ledgermq.errors import DataDamaged
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.internal.bundle_log import BundleLog
from ledgermq_broker.transactions.state.types import Reference
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from ledgermq_ledger.topics.topic import Topic

READS_MAX = 8
"""Concurrent reads of one completion."""
RUN_BYTES_MAX = 4 * 1024 * 1024


class StagedLog:
    """Make it when no append of the bundle's former log is under way."""

    def __init__(self, owner: BundleOwner, log: BundleLog, topic: Topic, partition: int) -> None:
        self.owner = owner
        self._log = log
        self.topic = topic
        self.place = PartitionId(topic.id, partition)
        self.next_offset = owner.durable_end(topic, partition)
        """Offset of the next batch that is appended."""

    def issue(self, batches: Sequence[Batch]) -> list[Batch]:
        """Return the batches as they have to be appended, in order, and reserve their offsets."""
        self.next_offset += sum(batch.record_count for batch in batches)
        return [
            replace(batch, topic_id=self.place.topic_id, partition=self.place.partition, producer=None)
            for batch in batches
        ]

    def check_end(self, expected: int) -> None:
        """Assert that a durable append ended at the offset `expected`."""
        end = self.owner.durable_end(self.topic, self.place.partition)
        assert end >= expected, f"{self.topic.name}/{self.place.partition} ends at {end}, not at {expected} or above"
        assert expected < self.next_offset or end == expected, (
            f"{self.topic.name}/{self.place.partition} ends at {end}, though only {expected} were appended"
        )

    def _is_under_way(self, references: Sequence[Reference]) -> bool:
        """Return whether any of these batches is not durable yet: it was staged, or carried forward, just now."""
        end = self.owner.durable_end(self.topic, self.place.partition)
        return any(reference.offset + reference.record_count > end for reference in references)

    async def read(self, references: Sequence[Reference]) -> list[Batch]:
        """Return the staged batches in the order of `references`, each with its target partition; wait
        until they are durable.

        Raises DataDamaged, which names the object; NotOwner, Unavailable, the store's errors.
        """
        if self._is_under_way(references):
            await self._log.durable()
        pool = asyncio.Semaphore(READS_MAX)
        runs = list(_runs(references))
        if len(runs) == 1:
            return await self._read_run(runs[0], pool)
        try:
            async with asyncio.TaskGroup() as group:
                reads = [group.create_task(self._read_run(run, pool)) for run in runs]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [batch for read in reads for batch in read.result()]

    async def _read_run(self, run: Sequence[Reference], pool: asyncio.Semaphore) -> list[Batch]:
        """Read batches with consecutive offsets."""
        found: list[Batch] = []
        async with pool:
            while len(found) < len(run):
                left = run[len(found) :]
                size_bytes = sum(reference.length for reference in left)
                read = await self.owner.fetch(self.topic, self.place.partition, left[0].offset, size_bytes)
                if not read.batches:
                    raise self._damaged(left[0], "nothing")
                found += [
                    self._as_meant(reference, batch) for reference, batch in zip(left, read.batches, strict=False)
                ]
        return found

    def _as_meant(self, reference: Reference, batch: StoredBatch) -> Batch:
        """Return a staged batch for its target partition. Raises DataDamaged if another batch was read."""
        is_same = (batch.base_offset, batch.record_count, batch.crc, len(batch.data)) == (
            reference.offset,
            reference.record_count,
            reference.crc,
            reference.length,
        )
        if not is_same or crc32c(batch.data) != reference.crc:
            raise self._damaged(reference, f"another batch, of {len(batch.data)} bytes at {batch.base_offset}")
        stream = reference.stream
        times_us = reference.timestamp_min_us, reference.timestamp_max_us
        return Batch(stream.topic_id, stream.partition, reference.record_count, reference.crc, *times_us, batch.data)

    async def move_log_start(self, begin: int) -> None:
        """Free the offsets below `begin`. Raises NotOwner, Unavailable, the store's errors."""
        await self.owner.move_internal_log_starts({self.place: begin})

    def _damaged(self, reference: Reference, what: str) -> DataDamaged:
        return DataDamaged(
            f"{self.topic.name}/{self.place.partition} should have a staged batch of {reference.length} bytes at offset"
            f" {reference.offset}, but has {what}; run `ledgermq fsck`, and restore the bundle's ledger"
        )


def _runs(references: Sequence[Reference]) -> Iterator[list[Reference]]:
    """Split references into runs of consecutive offsets, of bounded size."""
    run: list[Reference] = []
    size_bytes = 0
    for reference in references:
        follows = run and reference.offset == run[-1].offset + run[-1].record_count
        if run and (not follows or size_bytes + reference.length > RUN_BYTES_MAX):
            yield run
            run, size_bytes = [], 0
        run.append(reference)
        size_bytes += reference.length
    if run:
        yield run
