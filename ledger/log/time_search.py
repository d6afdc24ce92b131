"""The first offset at or after a time: candidates by the times that file lists and the fetch index
hold, then the rows themselves.

Times need not ascend within a partition; the answer is the lowest offset whose record has that time
or a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ledger.blocking import RunBlocking
from ledger.log.stored_batch import StoredBatch
from ledger.object_store.contract import Buffer
from ledgermq.errors import InvalidRequest
from ledgermq.protocol.records import decode_batch

READ_BYTES = 1024 * 1024
Candidate = int | tuple[int, int]
"""Where a record of a time or a later one is: its offset; or where one may be: first and end of a
run of offsets, which may be empty.
"""


class SearchedPartition(Protocol):
    """One partition, as whoever reads it sees it."""

    def log_start(self) -> int: ...

    async def candidate(self, offset: int, timestamp_us: int) -> Candidate | None:
        """The next one from `offset` on."""
        ...

    async def read(self, offset: int, bytes_max: int) -> Sequence[StoredBatch]:
        """Batches from the one that holds `offset` on; one at least."""
        ...


async def offset_at(searched: SearchedPartition, timestamp_us: int, run_blocking: RunBlocking) -> int | None:
    """None where there is no such record."""
    offset = searched.log_start()
    while (candidate := await searched.candidate(offset, timestamp_us)) is not None:
        if isinstance(candidate, int):
            return candidate
        offset, end = candidate
        while offset < end:
            offset = max(offset, searched.log_start())  # it may have moved
            for batch in await searched.read(offset, READ_BYTES):
                row = await run_blocking(
                    partial(first_row_at, batch.data, timestamp_us, max(0, offset - batch.base_offset))
                )
                if row is not None:
                    return batch.base_offset + int(row)
                offset = batch.end
    return None


def first_row_at(data: Buffer, timestamp_us: int, from_row: int) -> int | None:
    """A batch that its producer garbled counts from its first record on: nobody can read its times."""
    try:
        times = decode_batch(data).column("timestamp").cast(pa.int64())
    except InvalidRequest:
        return from_row
    return first_time_at(times, timestamp_us, from_row)


def first_time_at(times: pa.Array | pa.ChunkedArray, timestamp_us: int, from_row: int) -> int | None:
    """The first row from `from_row` on of this time or a later one.

    `times`: in microseconds, as numbers.
    """
    row = pc.index(pc.greater_equal(times[from_row:], timestamp_us), pa.scalar(True)).as_py()
    return from_row + int(row) if row >= 0 else None
