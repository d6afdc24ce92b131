"""Read a topic as it was at a cut: `client.read_arrow(…, cut=…)`. Any broker reads it from the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import pyarrow as pa

from ledgermq.client.consuming.message import TABLE_SCHEMA, table_of
from ledgermq.client.context import ClientContext
from ledgermq.errors import ResourceExhausted, UnknownPartition
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import decode_batch

NO_OFFSET = 2**62
"""Above every offset: an answer has no records, but the number of partitions."""


async def read_table(
    context: ClientContext, cut: str, topic: str, partitions: Iterable[int] | None, bytes_max: int
) -> pa.Table:
    """Return the records of a topic at a cut as one table, by partition and offset."""
    tables, size = [TABLE_SCHEMA.empty_table()], 0
    chosen = None if partitions is None else sorted(set(partitions))
    async for rows in _rows(context, cut, topic, chosen):
        tables.append(rows)
        size += rows.nbytes
        if size > bytes_max:
            raise ResourceExhausted(
                f"topic {topic!r} has more than {bytes_max} bytes at cut {cut!r}: read some of its partitions, raise"
                " bytes_max, or read it with Spark's option cut"
            )
    return pa.concat_tables(tables)


async def _rows(context: ClientContext, cut: str, topic: str, partitions: list[int] | None) -> AsyncIterator[pa.Table]:
    count = (await _read(context, cut, topic, 0, NO_OFFSET)).partitions
    wanted = range(count) if partitions is None else partitions
    for partition in wanted:
        if not 0 <= partition < count:
            raise UnknownPartition(f"topic {topic!r} has partitions 0 to {count - 1} at cut {cut!r}, not {partition!r}")
    for partition in wanted:
        offset = 0
        while True:
            found = await _read(context, cut, topic, partition, offset)
            for batch in found.batches:
                check_crc(batch.data, batch.crc)
                rows, skip = decode_batch(batch.data), max(0, max(offset, found.start) - batch.base_offset)
                table = table_of(rows.slice(skip), topic, partition, batch.base_offset + skip)
                yield pa.Table.from_batches([table])
            offset = found.next_offset
            if offset >= found.end:
                break


async def _read(context: ClientContext, cut: str, topic: str, partition: int, offset: int) -> pb.ReadCutResponse:
    request = pb.ReadCutRequest(name=cut, topic=topic, partition=partition, offset=offset)
    return await context.connections.ask(lambda at: at.read_cut(request), context.connections.deadline())
