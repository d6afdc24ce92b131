"""Implement the batch half of the data source: the driver plans, executors read their ranges from
the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cuts.reading.root import open_named
from ledgermq_ledger.cuts.reading.store import CutStore
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.parquet.archiving.archive import Archives
from ledgermq_ledger.parquet.archiving.reading import ArchiveReader
from ledgermq_ledger.root.open import open_store
from ledgermq_ledger.topics.catalog import read_catalog
from ledgermq_ledger.typed.column import Subject
from ledgermq_ledger.view.ranges.range_read import RangeReader
from ledgermq_ledger.view.ranges.shared_slots import SharedSlots
from ledgermq_spark.shared_root import cluster_of
from ledgermq_spark.source.options import SourceOptions
from ledgermq_spark.source.ranges.planning import TopicRange, plan_query
from ledgermq_spark.source.rows import batches_of, record_columns
from ledgermq_spark.source.typed import Subjects, TypedRows, is_typed, subjects_of
from ledgermq_spark.worker import drain, kept_store


class TaskPartition(InputPartition):
    """The ranges of one task, the id of the cut that they are of, 0: of none, and what values are decoded by."""

    def __init__(self, ranges: list[TopicRange], cut_id: int = 0, subjects: Subjects | None = None) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.cut_id = cut_id
        self.subjects = subjects or {}


class BatchReader(DataSourceReader):
    """`options.root` is a root URL."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks, in the driver. Raises what `plan_query` and `subjects_of` raise."""
        return asyncio.run(self._plan())

    async def _plan(self) -> list[InputPartition]:
        async with await open_store(self.options.root, sources=Sources()) as store:
            cluster, cut_id, seen = await cluster_of(store), 0, store
            if self.options.cut:
                at = await open_named(store, cluster, self.options.cut)
                cluster, cut_id, seen = at.cluster, at.store.cut.id, at.store
            tasks, subjects = await plan_query(seen, self.options), dict[int, Subject]()
            if is_typed(self.options):
                catalog = await read_catalog(LedgerRef(seen, keys.METADATA_BUNDLE, cluster, Sources()))
                subjects |= subjects_of(catalog, tasks, self.options)
            return [TaskPartition(ranges, cut_id, subjects) for ranges in tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Read a task, in an executor, in its worker's event loop.

        Spark passes None if there is no partition.
        """
        if not isinstance(partition, TaskPartition):
            return iter(())
        return drain(read_ranges(self.options, partition))


async def read_ranges(options: SourceOptions, task: TaskPartition) -> AsyncGenerator[pa.RecordBatch, None]:
    sources, ranges = Sources(), task.ranges
    typed = TypedRows(task.subjects, options) if is_typed(options) else None
    async with kept_store(options.root) as kept, Archives(kept, sources) as archives:
        store = await CutStore.open(kept, task.cut_id) if task.cut_id else kept
        shared = SharedSlots(store, (wanted.range for wanted in ranges))
        reader = RangeReader(shared, run_inline, ArchiveReader(store, archives.store, run_inline))
        for wanted in ranges:
            async with aclosing(
                reader.read(wanted.range, record_columns(options), skip_lost=not options.fail_on_data_loss)
            ) as parts:
                async for first, rows in parts:
                    for batch in batches_of(rows, wanted.topic, wanted.range.key, first, options, typed):
                        yield batch
