"""From the rows of a range to the columns of the source: those of Spark's Kafka source in its order, then the tag."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.client.consuming.message import table_of
from spark.source.options import SourceOptions

BATCH_BYTES_MAX = 8 * 1024 * 1024
"""What the JVM gets at once; a larger row comes alone."""

_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT",
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "tag STRING",
)


def schema(options: SourceOptions) -> str:
    """As Spark's DDL."""
    return ", ".join(column for column in _COLUMNS if options.include_headers or not column.startswith("headers"))


def batches_of(rows: pa.RecordBatch, topic: str, partition: int, offset: int, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """`offset`: of the first row."""
    table = table_of(rows, topic, partition, offset)
    if options.tags:
        table = table.filter(pc.is_in(table.column("tag"), value_set=pa.array(sorted(options.tags), pa.string())))
    if not options.include_headers:
        table = table.drop_columns(["headers"])
    step = max(1, table.num_rows * BATCH_BYTES_MAX // max(1, table.nbytes))
    for at in range(0, table.num_rows, step):
        yield table.slice(at, step)
