"""The option `typed`: values as a struct, for rows in Parquet files and in segments alike, without Spark."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ledgermq.errors import InvalidConfig
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_spark.source.batch import BatchReader
from ledgermq_spark.source.data_source import LedgerMQDataSource
from ledgermq_spark.source.streaming.stream import StreamReader
from tests.unit.spark_source.streamed import Query
from tests.worlds.cuts import take_cut
from tests.worlds.roots import Root
from tests.worlds.source_readers import batch_reader
from tests.worlds.typed_values import avro, framed, record, register

ONE = record(("amount", "int"))
TWO = record(("amount", "long"), ("city", ["null", "string"]))
NESTED = record(
    ("amount", "long"),
    ("stops", {"type": "array", "items": record(("x", "long"), ("y", "string"), name="S")}),
    ("tags", {"type": "map", "values": "double"}),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
)
AT = datetime(2026, 11, 30, tzinfo=UTC)
Step = Callable[[Root], Awaitable[Any]]


def within(folder: Path, *steps: Step) -> None:
    """Do these steps in the root of a folder."""

    async def main() -> None:
        sources = Sources()
        async with FileStore(folder, sources) as store:
            root = await Root.open(store, sources)
            root.topics |= {topic.name: topic for topic in (await root.catalog()).living_topics()}
            for step in steps:
                await step(root)

    asyncio.run(main())


def topic(name: str = "t", **settings: str) -> Step:
    return lambda root: root.create_topic(name, **({"value_schema_subject": "t-value"} | settings))


def schema(text: Any, **named: str) -> Step:
    return lambda root: register(root, text, **named)


def sent(*values: bytes, name: str = "t") -> Step:
    return lambda root: root.produce(name, (0, list(values)))


async def compacted(root: Root) -> None:
    assert not (await root.compact()).failures


def one(amount: int, id_: int = 1) -> bytes:
    return framed(id_, avro(ONE, {"amount": amount}))


def two(amount: int, city: str | None) -> bytes:
    return framed(2, avro(TWO, {"amount": amount, "city": city}))


def fill(folder: Path) -> None:
    """Rows of two versions and bad ones, the first half of them in Parquet."""
    within(folder, topic(), schema(ONE), sent(one(1), b"bad"), compacted, schema(TWO), sent(two(2, "Bonn"), one(3)))


WANTED = [
    ({"amount": 1, "city": None}, None),
    (None, "the value names no schema"),
    ({"amount": 2, "city": "Bonn"}, None),
    ({"amount": 3, "city": None}, None),
]


def rows(reader: BatchReader) -> list[dict[str, Any]]:
    tasks = [pickle.loads(pickle.dumps(task)) for task in reader.partitions()]
    found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row.get("offset", 0))


def typed(folder: Path, **options: str) -> list[tuple[Any, str | None]]:
    found = rows(batch_reader({"root": str(folder), "topic": "t", "typed": "true", **options}))
    return [(row["value_typed"], row["value_error"]) for row in found]


def struct(*fields: tuple[str, Any]) -> StructType:
    return StructType([StructField(name, kind, nullable=False) for name, kind in fields])


def source(folder: Path, **options: str) -> LedgerMQDataSource:
    return LedgerMQDataSource({"root": str(folder), "topic": "t", "typed": "true", **options})


def test_rows_in_parquet_and_in_segments_are_typed_alike(tmp_path: Path) -> None:
    fill(tmp_path)
    assert typed(tmp_path) == WANTED
    within(tmp_path, compacted)
    assert typed(tmp_path) == WANTED
    [first, second] = sorted((tmp_path / "parquet/topic=t/partition=0").glob("*.parquet"))
    files = [row for path in (first, second) for row in pq.read_table(path, partitioning=None).to_pylist()]
    assert [row["value_error"] for row in files] == [error for _, error in WANTED], "as compaction says it"


def test_the_query_has_the_types_of_all_versions(tmp_path: Path) -> None:
    fill(tmp_path)
    found = source(tmp_path).schema()
    assert found.fieldNames()[8:] == ["tag", "value_typed", "value_error"]
    assert found["value_typed"].dataType.simpleString() == "struct<amount:bigint,city:string>"
    assert "value_typed" not in LedgerMQDataSource({"root": str(tmp_path), "topic": "t"}).schema().fieldNames()


def test_a_query_may_name_a_part_of_the_fields_in_any_depth(tmp_path: Path) -> None:
    value = {"amount": 7, "stops": [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}], "tags": {"k": 0.5}, "at": AT}
    within(tmp_path, topic(), schema(NESTED), sent(framed(1, avro(NESTED, value)), b"bad"))
    stops = ArrayType(struct(("y", StringType())))
    fields = struct(("tags", MapType(StringType(), DoubleType())), ("at", TimestampType()), ("stops", stops))
    wanted = struct(("value_typed", fields), ("offset", LongType()))
    assert rows(source(tmp_path).reader(wanted)) == [
        {"value_typed": {"tags": [("k", 0.5)], "at": AT, "stops": [{"y": "a"}, {"y": "b"}]}, "offset": 0},
        {"value_typed": None, "offset": 1},
    ]
    alone = rows(source(tmp_path).reader(struct(("value_error", StringType()))))
    assert [row["value_error"] for row in alone] == [None, "the value names no schema"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (struct(("value_typed", struct(("amuont", LongType())))), r"value_typed\.amuont, which no schema"),
        (struct(("value_typed", struct(("city", LongType())))), r"value_typed\.city is bigint, it is string"),
        (struct(("value_typed", StringType())), "value_typed is string, it is struct"),
        (struct(("value_error", BinaryType())), "value_error is binary, it is string"),
    ],
)
def test_fields_that_no_schema_has_are_refused(tmp_path: Path, given: StructType, error: str) -> None:
    fill(tmp_path)
    for reader in (source(tmp_path).reader, source(tmp_path).streamReader):
        with pytest.raises(InvalidConfig, match=error):
            reader(given)


def test_a_query_without_the_option_is_told_of_it(tmp_path: Path) -> None:
    fill(tmp_path)
    plain = LedgerMQDataSource({"root": str(tmp_path), "topic": "t"})
    with pytest.raises(InvalidConfig, match="give the option typed=true"):
        plain.reader(struct(("value_error", StringType())))


def test_topics_without_a_subject_are_refused_if_they_are_named(tmp_path: Path) -> None:
    within(tmp_path, topic(), schema(ONE), sent(one(1)), topic("u", value_schema_subject=""), sent(b"x", name="u"))
    with pytest.raises(InvalidConfig, match="topic 'u' has no value"):
        source(tmp_path, topic="", topics="t,u").schema()
    with pytest.raises(InvalidConfig, match="no topic that matches has a value"):
        source(tmp_path, topic="", topicsPattern="u").schema()
    found = rows(batch_reader({"root": str(tmp_path), "topicsPattern": ".*", "typed": "true"}))
    assert {(row["topic"], row["value_error"]) for row in found} == {
        ("t", None),
        ("u", "topic u has no value.schema.subject"),
    }


def test_several_topics_have_the_columns_of_all_or_are_refused(tmp_path: Path) -> None:
    other = record(("city", "string"), name="O")
    within(
        tmp_path, topic(), schema(ONE), sent(one(1)), topic("u", value_schema_subject="u-value"),
        schema(other, subject="u-value"), sent(framed(2, avro(other, {"city": "Bonn"})), name="u"),
    )  # fmt: skip
    found = rows(batch_reader({"root": str(tmp_path), "topics": "t,u", "typed": "true"}))
    values = {row["topic"]: row["value_typed"] for row in found}
    assert values == {"t": {"amount": 1, "city": None}, "u": {"amount": None, "city": "Bonn"}}
    clash = record(("amount", "string"), name="C")
    within(tmp_path, topic("v", value_schema_subject="v-value"), schema(clash, subject="v-value"))
    with pytest.raises(InvalidConfig, match="value_typed of topic 'v' has a column with another type"):
        source(tmp_path, topic="", topics="t,v").schema()


def test_a_topic_whose_subject_has_no_schema_yet_has_reasons_only(tmp_path: Path) -> None:
    within(tmp_path, topic(value_schema_framing="none"), sent(b"a"))
    found = rows(batch_reader({"root": str(tmp_path), "topic": "t", "typed": "true"}))
    assert [row["value_error"] for row in found] == ["subject t-value has no schema"]
    assert "value_typed" not in found[0]


def test_tags_and_filters_choose_before_values_are_decoded(tmp_path: Path) -> None:
    fill(tmp_path)
    assert typed(tmp_path, filter="TAGS IS NOT NULL") == []
    assert typed(tmp_path, filter="TAGS IS NULL") == WANTED


def test_a_schema_that_came_after_the_query_was_begun_is_read_without_its_new_field(tmp_path: Path) -> None:
    within(tmp_path, topic(), schema(ONE), sent(one(1)))
    begun = source(tmp_path)
    reader = begun.reader(begun.schema())
    within(tmp_path, schema(TWO), sent(two(2, "Bonn")))
    assert [row["value_typed"] for row in rows(reader)] == [{"amount": 1}, {"amount": 2}]


def test_another_subject_with_another_type_ends_the_query_with_a_reason(tmp_path: Path) -> None:
    within(tmp_path, topic(), schema(ONE), sent(one(1)))
    begun = source(tmp_path)
    reader = begun.reader(begun.schema())
    clash = record(("amount", "string"))
    within(
        tmp_path,
        schema(clash, subject="other"),
        lambda root: root.alter_topic("t", value_schema_subject="other"),
    )
    with pytest.raises(InvalidConfig, match=r"has string as value_typed\.amount by now, the query began with bigint"):
        reader.partitions()


def test_a_cut_has_the_schemas_of_its_instant(tmp_path: Path) -> None:
    within(tmp_path, topic(), schema(ONE), sent(one(1)), lambda root: take_cut(root, "eod"))
    within(tmp_path, schema(TWO), sent(two(2, "Bonn")))
    assert typed(tmp_path, cut="eod") == [({"amount": 1}, None)]


def test_a_stream_reads_values_of_schemas_that_come_while_it_runs(tmp_path: Path) -> None:
    within(tmp_path, topic(), schema(ONE), sent(one(1)))
    query = Query(tmp_path, typed="true", failOnDataLoss="false")
    executor = pickle.loads(pickle.dumps(StreamReader(query.reader.options)))
    found: list[Any] = []

    def batch() -> list[Any]:
        query.batch()
        tasks = query.reader.partitions(query.begin, query.at) if query.at is not None else []
        found[:] = [row for task in tasks for rows in executor.read(task) for row in rows.to_pylist()]
        return [(row["value_typed"], row["value_error"]) for row in found]

    assert batch() == [({"amount": 1}, None)]
    within(tmp_path, schema(record(("amount", "long"), ("zip", ["null", "int"]))), sent(framed(2, b"\x08\x00")))
    assert batch() == [({"amount": 4}, None)], "its type is that of the query's begin"
    query.reader.stop()
