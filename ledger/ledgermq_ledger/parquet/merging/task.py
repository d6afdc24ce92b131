"""Make one merged file of small ones: the same rows, in fewer row groups. A plain function of (task, store), without
Spark.

Each small file is read whole, and all its bytes are checked, because a damaged header of a page could hide records
from a reader that goes by the page's own checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ledgermq.errors import DataDamaged, Unavailable
from ledgermq.protocol.batches.records import SCHEMA as RECORDS
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.object_store.wrappers.payers import Payer, paid_by
from ledgermq_ledger.parquet.files.columns import APPENDED, FooterNote, ParquetBuilder
from ledgermq_ledger.parquet.files.footer_checksum import check_whole
from ledgermq_ledger.parquet.files.stored_file import StoredFile, describe, parse_footer
from ledgermq_ledger.parquet.merging.names import MergedName


@dataclass(frozen=True, slots=True)
class MergeTask:
    """A merge of one run. Picklable. `inputs`: each a ParquetFile of the list, ascending, without a gap."""

    store_url: str
    cluster_id: str
    bundle: int
    place: PartitionId
    topic: str
    number: int
    put_id: bytes
    table_of: str
    """The topic in whose folder the file lies, because of its table; "": none."""
    inputs: tuple[bytes, ...]
    bloom: bool
    row_group_bytes: int

    @property
    def files(self) -> list[fmt.ParquetFile]:
        return [fmt.ParquetFile.FromString(data) for data in self.inputs]

    @property
    def source_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def work(self) -> str:
        """Describe the work to operators."""
        return f"merge {len(self.inputs)} files of {self.topic}/{self.place.partition}"

    async def run(self, store: ObjectStore, sources: Sources, run_blocking: RunBlocking) -> StoredFile:
        """Make the file and put it. Raises ObjectMissing (a small file has expired), DataDamaged (naming the object),
        Unavailable, the store's errors.
        """
        with paid_by({Payer(self.place.topic_id): self.source_bytes}):
            return await _run(self, store, sources, run_blocking)


async def _run(task: MergeTask, store: ObjectStore, sources: Sources, run_blocking: RunBlocking) -> StoredFile:
    files = task.files
    first, last = files[0].first_offset, files[-1].last_offset
    planned = fmt.PlannedFile(
        topic_id=task.place.topic_id,
        topic=task.topic,
        partition=task.place.partition,
        first_offset=first,
        last_offset=last,
        key=MergedName(task.place, task.number, task.put_id, (first, last), task.table_of).key,
        bloom_columns=["key"] if task.bloom else [],
        has_appended=bool(files[0].appended_max_us),
        row_group_bytes=task.row_group_bytes,
    )
    builder = ParquetBuilder(planned)
    for file in files:
        data = await store.get(file.key)
        await run_blocking(partial(_add, builder, data, file))
    note = FooterNote(
        cluster=task.cluster_id,
        bundle=task.bundle,
        topic_id=task.place.topic_id,
        partition=task.place.partition,
        first_offset=first,
        last_offset=last,
        plan=task.number,
        plan_put_id=task.put_id.hex(),
    )
    made = await run_blocking(partial(builder.finish, note))
    outcome = await settle_put(store, planned.key, made.parts, sources=sources, is_data=True)
    if outcome is not PutOutcome.WON:
        raise Unavailable(f"{planned.key}: outcome of the conditional put is unknown; the next merge has another name")
    return describe(parse_footer(made.ending, planned.key), planned.key, made.size, note)


def _add(builder: ParquetBuilder, data: bytes, file: fmt.ParquetFile) -> None:
    """Add all rows of a small file. Blocking. Raises DataDamaged."""
    check_whole(data, file.key)
    at = file.first_offset
    try:
        whole = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        for number in range(whole.num_row_groups):
            table = whole.read_row_group(number, use_threads=False)
            table.validate(full=True)
            for batch, appended in _pieces(table, at):
                builder.add_runs(batch, at, appended)
                at += batch.num_rows
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DataDamaged(f"{file.key}: it cannot be read: {error}", object_key=file.key) from error
    if at != file.last_offset + 1:
        text = f"it has rows up to offset {at - 1}, but the file list says {file.last_offset}"
        raise DataDamaged(f"{file.key}: {text}", object_key=file.key)


def _pieces(table: pa.Table, first: int) -> Iterator[tuple[pa.RecordBatch, list[tuple[int, int]]]]:
    """Yield the records of a row group, whose first offset is `first`, with their times of appends: (rows, time) by
    runs; none if the file has no such column. Raises ValueError.
    """
    expected: Any = pa.chunked_array([pa.arange(first, first + table.num_rows)], pa.int64())
    if not table.column("offset").equals(expected):
        raise ValueError(f"its offsets do not run without a gap from {first} on")
    records = table.select(RECORDS.names).cast(RECORDS).combine_chunks()
    times = table.column(APPENDED).cast(pa.int64()) if APPENDED in table.schema.names else None
    at = 0
    for batch in records.to_batches():
        runs = [] if times is None else _runs_of(times.slice(at, batch.num_rows))
        yield batch, runs
        at += batch.num_rows


def _runs_of(times: pa.ChunkedArray) -> list[tuple[int, int]]:
    compute: Any = pc
    encoded = compute.run_end_encode(times.combine_chunks(), run_end_type=pa.int32())
    ends, values = encoded.run_ends.to_pylist(), encoded.values.to_pylist()
    return [(end - begin, value) for begin, end, value in zip([0, *ends[:-1]], ends, values, strict=True)]
