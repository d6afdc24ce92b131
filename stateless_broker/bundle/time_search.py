"""The first offset at or after a time: candidates by the times that file lists and the fetch index hold, then the rows themselves.

Times need not ascend within a partition; the answer is the lowest offset whose record has that time or a later one.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from ledger.catalog import Topic
from ledger.object_store.contract import Buffer
from ledgermq.errors import InvalidRequest
from ledgermq.protocol.records import decode_batch
from stateless_broker.bundle.reads import BundleReads

READ_BYTES = 1024 * 1024


async def offset_at(reads: BundleReads, topic: Topic, partition: int, timestamp_us: int) -> int | None:
    """None where there is no such record."""
    offset = reads.log_start(topic, partition)
    while (candidate := await reads.candidate(topic, partition, offset, timestamp_us)) is not None:
        offset, end = candidate
        while offset < end:
            offset = max(offset, reads.log_start(topic, partition))  # it may have moved
            fetched = await reads.fetch(topic, partition, offset, READ_BYTES)
            for batch in fetched.batches:
                row = await reads.context.run_blocking(partial(first_row_at, batch.data, timestamp_us, max(0, offset - batch.base_offset)))
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
    row = pc.index(pc.greater_equal(times[from_row:], timestamp_us), pa.scalar(True)).as_py()
    return from_row + int(row) if row >= 0 else None
