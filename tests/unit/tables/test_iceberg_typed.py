"""Typed values in an Iceberg table: columns by their ids, of whatever shape; old files and new ones read as one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from ledgermq.sources import Sources
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.iceberg import fields
from ledgermq_ledger.parquet.files.columns import SCHEMA
from ledgermq_ledger.tables.drop import empty_table
from tests.stores.backends import file_store
from tests.worlds.iceberg_tables import NAMESPACE, configure, registrar, set_iceberg
from tests.worlds.roots import Root
from tests.worlds.typed_values import avro, framed, record, register

IDENTIFIER = (*NAMESPACE.split("."), "t")
ONE = record(("amount", "int"))
PLACE = record(("name", "string"), ("heights", {"type": "array", "items": "double"}), name="P")
LATER = record(("amount", "long"), ("place", ["null", PLACE]))


def with_id(number: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": b"%d" % number})


def values(*columns: pa.Field) -> pa.Schema:
    return SCHEMA.append(with_id(100, "value_typed", pa.struct(columns)))


def test_columns_are_found_by_id() -> None:
    one = fields.merged(fields.FULL, values(with_id(101, "amount", pa.int32()), with_id(102, "city", pa.string())))
    assert one.find_column_name(101) == "value_typed.amount"
    two = fields.merged(one, values(with_id(101, "total", pa.int64()), with_id(103, "at", pa.date32())))
    assert [two.find_column_name(number) for number in (101, 102, 103)] == [
        "value_typed.total",
        "value_typed.city",
        "value_typed.at",
    ]
    assert str(two.find_type("value_typed.total")) == "long", "a column is as wide as its widest file"
    assert fields.merged(two, values(with_id(101, "total", pa.int32()))).as_struct() == two.as_struct()


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (with_id(101, "amount", pa.string()), "two types: int and string"),
        (with_id(102, "amount", pa.int32()), "has id 102 in a file and 101 in the table"),
    ],
)
def test_what_contradicts_the_table_is_refused(column: pa.Field, why: str) -> None:
    table = fields.merged(fields.FULL, values(with_id(101, "amount", pa.int32())))
    with pytest.raises(ValueError, match=why):
        fields.merged(table, values(column))


def test_our_columns_keep_their_names() -> None:
    swapped = pa.schema([with_id(1, "value", pa.binary()), with_id(2, "key", pa.binary())])
    with pytest.raises(ValueError, match="has id 1 in a file and 2 in the table"):
        fields.merged(fields.FULL, swapped)
    with pytest.raises(ValueError, match="id 1 is the column other in a file, and key in the table"):
        fields.merged(fields.FULL, pa.schema([with_id(1, "other", pa.binary())]))


def test_a_file_of_a_former_release_has_no_ids() -> None:
    bare = pa.schema([pa.field(each.name, each.type) for each in SCHEMA if each.name != "appended"])
    assert fields.merged(fields.FULL, bare).as_struct() == fields.FULL.as_struct()


def test_a_map_is_refused() -> None:
    kind = pa.map_(pa.string(), with_id(102, "value", pa.string()))
    with pytest.raises(ValueError, match="its keys have no field id"):
        fields.merged(fields.FULL, values(with_id(101, "more", pa.list_(with_id(103, "element", kind)))))


async def test_readers_see_old_and_new_files_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog: SqlCatalog = configure(monkeypatch, tmp_path / "lake")
    place = {"name": "Bonn", "heights": [60.5, 61.0]}
    async with file_store(tmp_path / "root") as store:
        root = await Root.open(store, Sources())
        await root.create_topic("t", value_schema_subject="t-value")
        await register(root, ONE)
        await root.produce("t", (0, [framed(1, avro(ONE, {"amount": 1}))]))
        assert not (await root.compact()).failures
        await register(root, LATER)
        await root.produce("t", (0, [framed(2, avro(LATER, {"amount": 2**40, "place": place}))]))
        assert not (await root.compact()).failures
        await set_iceberg(root, 1)
        turn = await registrar(root).turn()
        assert not turn.stopped
        stored = catalog.load_table(IDENTIFIER)
        found = stored.scan().to_arrow().sort_by("offset")
        assert found["value_typed"].to_pylist() == [{"amount": 1, "place": None}, {"amount": 2**40, "place": place}]
        assert found["offset"].to_pylist() == [0, 1]
        assert stored.scan(row_filter="offset = 1").to_arrow()["offset"].to_pylist() == [1]
        assert len(list(stored.scan(row_filter="offset = 1").plan_files())) == 1, "bounds of the manifest prune"
        columns = stored.schema().as_struct()
        await set_iceberg(root, 0)
        await empty_table(root.store, root.cluster, root.topics["t"], root.sources, run_inline)
        stored = catalog.load_table(IDENTIFIER)
        assert stored.scan().to_arrow().num_rows == 0
        assert stored.schema().as_struct() == columns, "columns stay"
