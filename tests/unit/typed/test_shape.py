"""The columns that the versions of a subject make: names, ids, types that never change again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ledgermq_ledger.typed.shape import FIELD_ID, shape_of
from tests.worlds.typed_values import record, schemas_of


def columns(*texts: Any, kind: str = "avro") -> dict[str, tuple[int, str]]:
    """Return the columns of all versions: ids and types, by paths."""
    found = shape_of(schemas_of(*texts, kind=kind)).type
    assert found is not None
    into: dict[str, tuple[int, str]] = {}
    _add(pa.field("", found), "", into)
    return into


def _add(field: pa.Field, path: str, into: dict[str, tuple[int, str]]) -> None:
    if path:
        into[path] = (int((field.metadata or {}).get(FIELD_ID, b"0")), str(field.type))
    kind = field.type
    if pa.types.is_struct(kind):
        into.update({path: (into[path][0], "struct")} if path else {})
        for inner in kind:
            _add(inner, f"{path}.{inner.name}".lstrip("."), into)
    elif pa.types.is_list(kind):
        into[path] = (into[path][0], "list")
        _add(kind.value_field, f"{path}.element", into)
    elif pa.types.is_map(kind):
        into[path] = (into[path][0], "map")
        _add(kind.item_field, f"{path}.value", into)


def test_columns_have_the_ids_of_the_registry() -> None:
    inner = record(("sku", "string"), name="Line")
    assert columns(record(("amount", "double"), ("lines", {"type": "array", "items": inner}))) == {
        "amount": (101, "double"),
        "lines": (102, "list"),
        "lines.element": (103, "struct"),
        "lines.element.sku": (104, "string"),
    }


def test_a_column_is_as_wide_as_it_may_become() -> None:
    narrow = record(("a", "int"), ("b", "float"), ("c", _decimal(5)))
    wide = record(("a", "long"), ("b", "double"), ("c", _decimal(20)))
    assert columns(narrow) == columns(wide) == columns(narrow, wide)
    assert columns(narrow)["c"] == (103, "decimal128(38, 2)")


def _decimal(precision: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 2}


def test_a_removed_field_keeps_its_column() -> None:
    assert columns(record(("a", "int"), ("b", "int")), record(("b", "int"))) == {
        "a": (101, "int64"),
        "b": (102, "int64"),
    }


def test_a_renamed_field_keeps_its_id_and_gets_its_new_name() -> None:
    renamed = record(("b", "int"))
    renamed["fields"][0]["aliases"] = ["a"]
    assert columns(record(("a", "int")), renamed) == {"b": (101, "int64")}


def test_a_name_is_of_one_field_forever() -> None:
    """By-name readers would else show values of one field as those of another."""
    renamed = record(("b", "int"), ("a", "int"))
    renamed["fields"][0]["aliases"] = ["a"]
    versions = schemas_of(record(("a", "int")), record(("b", "int")) | {"fields": [renamed["fields"][0]]}, renamed)
    shape = shape_of(versions)
    assert shape.root is not None
    assert {(each.id, each.name) for each in shape.root.children} == {(101, "b"), (102, "a_2")}


def test_names_that_differ_in_capitals_only_are_two_columns_for_readers_that_ignore_them() -> None:
    assert set(columns(record(("a", "int"), ("A", "int")))) == {"a", "A_2"}


def test_names_that_parquet_and_delta_cannot_take_are_changed() -> None:
    schema = {"type": "object", "properties": {"a b": {"type": "integer"}, "a/b": {"type": "string"}}}
    assert columns(schema, kind="json") == {"a_b": (101, "int64"), "a/b": (102, "string")}


def test_values_that_are_no_records_have_no_columns() -> None:
    for text in ('"string"', {"type": "array", "items": "int"}):
        shape = shape_of(schemas_of(text))
        assert (shape.root, shape.versions) == (None, {1: None})
        assert [field.name for field in shape.fields] == ["value_error"]


def test_a_type_within_itself_ends_as_json() -> None:
    node = record(("v", "int"), name="N")
    node["fields"].append({"name": "next", "type": ["null", "N"]})
    found = columns(node)
    assert found["next.next.next"] == (found["next.next.next"][0], "string")


def test_a_subject_without_schemas_has_no_columns() -> None:
    assert [field.name for field in shape_of([]).fields] == ["value_error"]
