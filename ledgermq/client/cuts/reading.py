"""Read a topic as it was at a cut: `client.read_arrow(…, cut=…)`. Any broker reads it from the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial

import pyarrow as pa

from ledgermq.client.consuming.message import TABLE_SCHEMA, table_of
from ledgermq.client.context import ClientContext
from ledgermq.errors import ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.batches.batch_header import check_crc
from ledgermq.protocol.batches.records import decode_batch


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


async def _read(request: pb.ReadCutRequest, line: BrokerApi) -> pb.ReadCutResponse:
    return await line.read_cut(request)


async def _rows(context: ClientContext, cut: str, topic: str, partitions: list[int] | None) -> AsyncIterator[pa.Table]:
    connections = context.connections
    partition, at = (partitions or [0])[0], 0
    while True:
        request, offset = pb.ReadCutRequest(name=cut, topic=topic, partition=partition), 0
        while True:
            request.offset = offset
            found = await connections.ask(partial(_read, request), connections.deadline())
            for batch in found.batches:
                check_crc(batch.data, batch.crc)
                rows, skip = decode_batch(batch.data), max(0, offset - batch.base_offset)
                table = table_of(rows.slice(skip), topic, partition, batch.base_offset + skip)
                yield pa.Table.from_batches([table])
            offset = found.next_offset
            if offset >= found.end:
                break
        at += 1
        wanted = partitions if partitions is not None else range(found.partitions)
        if at >= len(wanted):
            return
        partition = wanted[at]
