"""Append records to an internal topic of a copy, before it is a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pyarrow as pa
from crc32c import crc32c

from ledgermq.errors import NotOwner, Unavailable
from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq.sources import Sources
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.writing.in_flight import Append
from ledgermq_ledger.log.writing.writer import LedgerWriter, claim

WRITER = "ledgermq-restore"
RECORDS_AT_ONCE = 1000


async def append_records(
    ledger: LedgerRef, place: PartitionId, decide: Callable[[], Awaitable[Sequence[LogRecord]]]
) -> int:
    """Claim the bundle, append what `decide` says then, let go, and return the number of records. What another process
    has appended before the claim, `decide` finds.

    Raises Unavailable if another process claims the bundle meanwhile, DataDamaged, the store's errors.
    """
    try:
        writer = LedgerWriter(ledger, WRITER, await claim(ledger, WRITER))
        records = await decide()
        for first in range(0, len(records), RECORDS_AT_ONCE):
            batch = _batch(place, records[first : first + RECORDS_AT_ONCE], ledger.sources)
            append = Append(batch, asyncio.get_running_loop().create_future())
            writer.write([append])
            await append.done
        await writer.release()
    except NotOwner as error:
        raise Unavailable(
            f"{ledger.store.url}: another process, such as a second restore, has claimed bundle {ledger.bundle}; repeat"
            " the call"
        ) from error
    return len(records)


def _batch(place: PartitionId, records: Sequence[LogRecord], sources: Sources) -> Batch:
    now_us, rows = sources.now_us(), len(records)
    written, values = [record.key for record in records], [record.value for record in records]
    columns = [written, values, [None] * rows, [now_us] * rows, [1] * rows, [None] * rows]
    arrays = [pa.array(column, each.type) for column, each in zip(columns, SCHEMA, strict=True)]
    data = encode_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    return Batch(place.topic_id, place.partition, rows, crc32c(data), now_us, now_us, data)
