"""Convert the rows of a range to the columns of the source: those of Spark's Kafka source in its
order, then the tag.

A query with its own schema, `.schema("offset LONG, value BINARY")`, gets only these columns, and
only they are read from Parquet files. This matters because the transfer into the JVM is most of the
cost of reading, and Spark does not pass the columns that a query needs to a Python source.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ledgermq.client.consuming.message import table_of
from ledgermq.errors import InvalidConfig
from ledgermq.filters.filter import parse_filter
from ledgermq.hints import did_you_mean
from ledgermq.protocol.batches.records import SCHEMA
from ledgermq_spark.source.options import SourceOptions

BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Bytes that the JVM gets at once; a larger row comes alone."""

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    "tag": StringType(),
}


def schema(options: SourceOptions) -> StructType:
    """Return the schema of a query that gives none."""
    return StructType([StructField(name, _TYPES[name]) for name in options.columns])


def columns_of(given: StructType) -> tuple[str, ...]:
    """Return the columns of a query's schema, in its order.

    Raises InvalidConfig, naming the first column that the source does not have.
    """
    types = {name: kind.simpleString() for name, kind in _TYPES.items()}
    for field in given.fields:
        if field.name not in types:
            raise InvalidConfig(
                f"the schema has a column {field.name!r}, which the source does not have;"
                f" {did_you_mean(field.name, types)}"
            )
        if field.dataType.simpleString() != types[field.name]:
            raise InvalidConfig(
                f"the schema says that {field.name} is {field.dataType.simpleString()}, it is {types[field.name]}"
            )
    names = tuple(given.fieldNames())
    if not names or len(set(names)) < len(names):
        raise InvalidConfig(f"the schema has {'one column twice' if names else 'no column'}: {', '.join(names)}")
    return names


def record_columns(options: SourceOptions) -> list[str]:
    """Return the columns to read of each record: at least one, which gives the number of records."""
    wanted = parse_filter(options.filter)
    needed = {*options.columns, *(["tag"] if options.tags else []), *(wanted.columns if wanted is not None else [])}
    return [name for name in SCHEMA.names if name in needed] or ["timestampType"]


def batches_of(
    rows: pa.RecordBatch, topic: str, partition: int, offset: int, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """`rows`: of `record_columns`. `offset`: of the first row."""
    table = table_of(rows, topic, partition, offset, options.columns)
    if options.tags:
        chosen = pc.is_in(rows.column("tag"), value_set=pa.array(sorted(options.tags), pa.string()))
        rows, table = rows.filter(chosen), table.filter(chosen)
    if (wanted := parse_filter(options.filter)) is not None:
        table = table.filter(wanted.passes(rows))
    step = max(1, table.num_rows * BATCH_BYTES_MAX // max(1, table.nbytes))
    for at in range(0, table.num_rows, step):
        yield table.slice(at, step)
