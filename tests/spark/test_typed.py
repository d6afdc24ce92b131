"""Typed values of `format("ledgermq")` in Spark: SQL over the struct, in a batch and in a stream."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ledgermq.sources import Sources
from tests.spark.starting import started
from tests.stores.backends import file_store
from tests.worlds.roots import Root
from tests.worlds.typed_values import avro, framed, record, register

STOP = record(("name", "string"), ("at", {"type": "long", "logicalType": "timestamp-micros"}), name="Stop")
TRIP = record(
    ("id", "long"),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("stops", {"type": "array", "items": STOP}),
    ("tags", {"type": "map", "values": "string"}),
    ("note", ["null", "string"]),
)
AT = datetime(2026, 11, 30, 4, 20, tzinfo=UTC)
VALUE = {
    "id": 7,
    "price": Decimal("12.50"),
    "day": date(2026, 11, 30),
    "stops": [{"name": "Bonn", "at": AT}, {"name": "Ulm", "at": AT}],
    "tags": {"k": "v"},
    "note": None,
}


async def fill(folder: Path) -> None:
    """Two rows in Parquet, of which one is bad, and one in a segment."""
    async with file_store(folder) as store:
        root = await Root.open(store, Sources())
        await root.create_topic("trips", value_schema_subject="t-value")
        await register(root, TRIP)
        await root.produce("trips", (0, [framed(1, avro(TRIP, VALUE)), b"bad"]))
        assert not (await root.compact()).failures
        await root.produce("trips", (0, [framed(1, avro(TRIP, VALUE | {"id": 8, "note": "x"}))]))


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    found = frame.selectExpr(
        "offset", "value_typed.id", "value_typed.price", "value_typed.day", "value_typed.stops.name",
        "date_format(value_typed.stops[0].at, 'HH:mm')", "value_typed.tags['k']", "value_typed.note", "value_error",
    ).orderBy("offset")  # fmt: skip
    return [tuple(row) for row in found.collect()]


WANTED = [
    (0, 7, Decimal("12.50"), date(2026, 11, 30), ["Bonn", "Ulm"], "04:20", "v", None, None),
    (1, None, None, None, None, None, None, None, "the value names no schema"),
    (2, 8, Decimal("12.50"), date(2026, 11, 30), ["Bonn", "Ulm"], "04:20", "v", "x", None),
]


@pytest.mark.timeout(180)
def test_sql_over_typed_values_of_a_batch_and_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "root"))
    options = {"root": str(tmp_path / "root"), "topic": "trips", "typed": "true"}
    assert rows_of(spark.read.format("ledgermq").options(**options).load()) == WANTED
    part = spark.read.format("ledgermq").options(**options).schema("value_typed STRUCT<note: STRING>").load()
    assert sorted(row[0].note or "" for row in part.collect() if row[0] is not None) == ["", "x"]

    found: list[tuple[Any, ...]] = []
    stream = spark.readStream.format("ledgermq").options(**options).load()
    writer = stream.writeStream.foreachBatch(lambda frame, _: found.extend(rows_of(frame)))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query = started(writer.start)
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert sorted(found) == WANTED
