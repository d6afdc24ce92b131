"""Search by time in a partition of an owned bundle: `ledger.log.time_search` over its reads."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.log import time_search
from ledger.log.stored_batch import StoredBatch
from ledger.topics.catalog import Topic
from stateless_broker.bundle.reads import BundleReads


@dataclass(frozen=True, slots=True)
class _Partition:
    reads: BundleReads
    topic: Topic
    partition: int

    def log_start(self) -> int:
        return self.reads.log_start(self.topic, self.partition)

    async def candidate(self, offset: int, timestamp_us: int) -> tuple[int, int] | None:
        return await self.reads.candidate(self.topic, self.partition, offset, timestamp_us)

    async def read(self, offset: int, bytes_max: int) -> list[StoredBatch]:
        return (await self.reads.fetch(self.topic, self.partition, offset, bytes_max)).batches


async def offset_at(reads: BundleReads, topic: Topic, partition: int, timestamp_us: int) -> int | None:
    """None where there is no such record."""
    return await time_search.offset_at(_Partition(reads, topic, partition), timestamp_us, reads.context.run_blocking)
