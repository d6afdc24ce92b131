"""Convert the rows of a range to the columns of the source: those of Spark's Kafka source in its
order, then the tag, and with `typed` what `typed` makes of the value.

A query with its own schema, `.schema("offset LONG, value BINARY")`, gets only these columns, and
only they are read from Parquet files. This matters because the transfer into the JVM is most of the
cost of reading, and Spark does not pass the columns that a query needs to a Python source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

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
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.typed.shape import VALUE_ERROR, VALUE_TYPED
from ledgermq_spark.source.options import SourceOptions
from ledgermq_spark.source.typed import TypedRows, is_typed, part_of, spark_type

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
    names = (*options.columns, *(name for name in (VALUE_TYPED, VALUE_ERROR) if name in _typed(options)))
    types = _TYPES | _typed(options)
    return StructType([StructField(name, types[name]) for name in names])


def _typed(options: SourceOptions) -> dict[str, DataType]:
    """Return the columns that only a query with `typed` has."""
    if not options.typed:
        return {}
    found: dict[str, DataType] = {} if options.value_type is None else {VALUE_TYPED: spark_type(options.value_type)}
    return found | {VALUE_ERROR: StringType()}


def with_columns(options: SourceOptions, given: StructType) -> SourceOptions:
    """Return the options with the columns of a query's schema, in its order.

    Raises InvalidConfig, naming the first column that the source does not have.
    """
    known = _TYPES | _typed(options)
    types = {name: kind.simpleString() for name, kind in known.items()}
    value_type = None
    for field in given.fields:
        if field.name not in types:
            raise InvalidConfig(
                f"the schema has a column {field.name!r}, which the source does not have;"
                f" {_remedy(field.name, types, options)}"
            )
        if field.name == VALUE_TYPED and isinstance(field.dataType, StructType) and field.dataType.fields:
            value_type = part_of(field.dataType, known[VALUE_TYPED])
            continue
        if field.dataType.simpleString() != types[field.name]:
            raise InvalidConfig(
                f"the schema says that {field.name} is {field.dataType.simpleString()}, it is {types[field.name]}"
            )
    names = tuple(given.fieldNames())
    if not names or len(set(names)) < len(names):
        raise InvalidConfig(f"the schema has {'one column twice' if names else 'no column'}: {', '.join(names)}")
    return replace(options, columns=names, value_type=value_type)


def _remedy(name: str, types: Mapping[str, str], options: SourceOptions) -> str:
    if name in (VALUE_TYPED, VALUE_ERROR):
        return "no schema of the topics has a column" if options.typed else "give the option typed=true"
    return did_you_mean(name, types)


def record_columns(options: SourceOptions) -> list[str]:
    """Return the columns to read of each record: at least one, which gives the number of records."""
    wanted = parse_filter(options.filter)
    decoded = ["value", "headers"] if is_typed(options) else []
    needed = {
        *options.columns,
        *decoded,
        *(["tag"] if options.tags else []),
        *(wanted.columns if wanted is not None else []),
    }
    return [name for name in SCHEMA.names if name in needed] or ["timestampType"]


def batches_of(
    rows: pa.RecordBatch,
    topic: str,
    key: PartitionId,
    offset: int,
    options: SourceOptions,
    typed: TypedRows | None = None,
) -> Iterator[pa.RecordBatch]:
    """`rows`: of `record_columns`. `offset`: of the first row. `typed`: for a query that `is_typed`."""
    plain = [name for name in options.columns if name in _TYPES]
    table = table_of(rows, topic, key.partition, offset, plain or ["offset"])
    if options.tags:
        chosen = pc.is_in(rows.column("tag"), value_set=pa.array(sorted(options.tags), pa.string()))
        rows, table = rows.filter(chosen), table.filter(chosen)
    if (wanted := parse_filter(options.filter)) is not None:
        chosen = wanted.passes(rows)
        rows, table = rows.filter(chosen), table.filter(chosen)
    if typed is not None:
        columns = typed.of(topic, key.topic_id, rows)
        found = [table.column(name) if name in plain else columns[name] for name in options.columns]
        table = pa.RecordBatch.from_arrays(found, list(options.columns))
    step = max(1, table.num_rows * BATCH_BYTES_MAX // max(1, table.nbytes))
    for at in range(0, table.num_rows, step):
        yield table.slice(at, step)
