"""Search rows for the first one of a time or later. Times need not ascend within a partition.

The times in file lists and in the fetch index decide which rows are searched
(`ledgermq_ledger.view.reader`).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.errors import InvalidRequest
from ledgermq.protocol.batches.records import decode_batch
from ledgermq_ledger.object_store.contract import Buffer

Candidate = int | tuple[int, int]
"""Where a record of this time or later is: its offset. Or where one may be: first and end of a run
of offsets, which may be empty.
"""


def first_row_at(data: Buffer, timestamp_us: int, from_row: int) -> int | None:
    """Return the first row of a batch at this time or later.

    In a batch that its producer garbled, whose times cannot be read, the first record counts.
    """
    try:
        times = decode_batch(data).column("timestamp").cast(pa.int64())
    except InvalidRequest:
        return from_row
    return first_time_at(times, timestamp_us, from_row)


def first_time_at(times: pa.Array | pa.ChunkedArray, timestamp_us: int, from_row: int) -> int | None:
    """Return the first row, from `from_row` on, of this time or later.

    `times`: in microseconds, as numbers.
    """
    row = pc.index(pc.greater_equal(times[from_row:], timestamp_us), pa.scalar(True)).as_py()
    return from_row + int(row) if row >= 0 else None
