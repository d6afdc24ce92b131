"""Rows of values: each kind of schema, each type, what is wrong with a bad value. Real child processes decode them."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from ledgermq_ledger.typed.rows.protobuf import message_class
from tests.worlds.typed_values import avro, decoded, framed, record, schemas_of

NOW = dt.datetime(2026, 11, 30, 1, 2, 3, 456789, dt.UTC)


def row_of(schema: Any, value: Any) -> dict[str, Any]:
    [(found, error)] = decoded(schemas_of(schema), [framed(1, avro(schema, value))])
    assert error is None
    return found


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("boolean", True, True),
        ("int", -5, -5),
        ("long", -(2**63), -(2**63)),
        ("float", 1.5, 1.5),
        ("double", -0.1, -0.1),
        ("string", "naïve", "naïve"),
        ("bytes", b"\0\xff", b"\0\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
        ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
        (["null", "int"], None, None),
        (["null", "int"], 7, 7),
        (["int", "string"], "x", {"int": None, "string": "x"}),
        ({"type": "int", "logicalType": "date"}, NOW.date(), NOW.date()),
        ({"type": "long", "logicalType": "timestamp-micros"}, NOW, NOW),
        ({"type": "long", "logicalType": "timestamp-millis"}, NOW, NOW.replace(microsecond=456000)),
        ({"type": "int", "logicalType": "time-millis"}, dt.time(0, 0, 1), 1_000_000),
        ({"type": "long", "logicalType": "time-micros"}, dt.time(0, 0, 1), 1_000_000),
        ({"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}, Decimal("-1.05"), Decimal("-1.05")),
        (record(("x", "int"), name="S"), {"x": 1}, {"x": 1}),
        ("null", None, None),
    ],
)
def test_avro_types(kind: Any, value: Any, wanted: Any) -> None:
    assert row_of(record(("f", kind)), {"f": value}) == {"f": wanted}


def test_a_record_within_itself_becomes_json_at_depth_three() -> None:
    node = record(("v", "int"), name="N")
    node["fields"].append({"name": "next", "type": ["null", "N"]})
    value: dict[str, Any] | None = None
    for depth in range(5, 0, -1):
        value = {"v": depth, "next": value}
    found = row_of(node, value)
    assert found["next"]["next"]["v"] == 3
    assert json.loads(found["next"]["next"]["next"]) == {"v": 4, "next": {"v": 5, "next": None}}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "f: it ends too early"),
        (b"\x80", "f: it ends too early"),
        (b"\x02\x02", "1 bytes follow the value"),
        (b"\xff" * 11, "f: a number has too many bytes"),
    ],
)
def test_bad_avro(body: bytes, why: str) -> None:
    assert decoded(schemas_of(record(("f", "long"))), [framed(1, body)]) == [(None, why)]


def test_ten_bytes_do_not_become_gigabytes() -> None:
    """An array of NULLs says in ten bytes that it has a billion items."""
    schema = record(("f", {"type": "array", "items": "null"}))
    billion = b"\x80\xa8\xd6\xb9\x07" + b"\0"
    assert decoded(schemas_of(schema), [framed(1, billion)]) == [
        (None, "f: it would decode to more than 16 times its size")
    ]


JSON = {
    "type": "object",
    "properties": {
        "i": {"type": "integer"},
        "d": {"type": "number"},
        "s": {"type": "string"},
        "b": {"type": "boolean"},
        "l": {"type": "array", "items": {"type": "integer"}},
        "m": {"type": "object", "additionalProperties": {"type": "integer"}},
        "o": {"type": "object", "properties": {"x": {"type": ["null", "string"]}}},
        "any": {},
    },
}


def of_json(*values: str | bytes) -> list[tuple[Any, str | None]]:
    data = [value if isinstance(value, bytes) else value.encode() for value in values]
    return decoded(schemas_of(JSON, kind="json"), data, "none")


def test_json_types() -> None:
    text = (
        '{"i": 1.0, "d": 2, "s": "x", "b": true, "l": [1], "m": {"k": 3}, "o": {"x": null}, "any": [1, {"y": 2}],'
        ' "new": 1}'
    )
    [(found, error)] = of_json(text)
    assert error is None
    assert found == {
        "i": 1,
        "d": 2.0,
        "s": "x",
        "b": True,
        "l": [1],
        "m": [("k", 3)],
        "o": {"x": None},
        "any": '[1,{"y":2}]',
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"i": "1"}', "i: string, an integer is needed"),
        ('{"i": 1.5}', "i: the number 1.5, an integer is needed"),
        ('{"i": true}', "i: boolean, an integer is needed"),
        ('{"i": 1e400}', "i: the number inf, an integer is needed"),
        ('{"i": 99999999999999999999}', "i: the number does not fit into 64 bits"),
        ('{"d": "x"}', "d: string, a number is needed"),
        ('{"s": 1}', "s: number, a string is needed"),
        ('{"s": "\\ud800"}', "s: half of a surrogate pair, which is no text"),
        ('{"o": {"x": 5}}', "o.x: number, a string is needed"),
        ('{"i": 1, "i": 2}', "a name stands twice in one object"),
        ('{"d": NaN}', "NaN is no JSON"),
        ("[]", "array, an object is needed"),
        ("", "it is no JSON"),
        ("{} {}", "it is no JSON"),
        ("\x00", "it is no JSON"),
        (b"\xff", "it is not UTF-8"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_bad_json(text: str | bytes, why: str) -> None:
    [(found, error)] = of_json(text)
    assert found is None
    assert error is not None
    assert error.startswith(why)


def test_null_at_the_top_is_null_without_an_error() -> None:
    assert of_json("null", '{"i": 1}')[0] == (None, None)


def proto() -> descriptor_pb2.FileDescriptorProto:
    """A message with a field of each kind."""
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="p", syntax="proto3")
    file.dependency.extend(
        ["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto", "google/protobuf/struct.proto"]
    )
    enum = file.enum_type.add(name="E")
    enum.value.add(name="ZERO", number=0)
    enum.value.add(name="ONE", number=1)
    message = file.message_type.add(name="Order")
    t = descriptor_pb2.FieldDescriptorProto
    kinds: list[tuple[str, int, str, int]] = [
        ("i", t.TYPE_INT32, "", t.LABEL_OPTIONAL),
        ("u", t.TYPE_UINT64, "", t.LABEL_OPTIONAL),
        ("s", t.TYPE_STRING, "", t.LABEL_OPTIONAL),
        ("raw", t.TYPE_BYTES, "", t.LABEL_OPTIONAL),
        ("e", t.TYPE_ENUM, ".p.E", t.LABEL_OPTIONAL),
        ("many", t.TYPE_INT64, "", t.LABEL_REPEATED),
        ("at", t.TYPE_MESSAGE, ".google.protobuf.Timestamp", t.LABEL_OPTIONAL),
        ("boxed", t.TYPE_MESSAGE, ".google.protobuf.Int32Value", t.LABEL_OPTIONAL),
        ("free", t.TYPE_MESSAGE, ".google.protobuf.Struct", t.LABEL_OPTIONAL),
        ("inner", t.TYPE_MESSAGE, ".p.Order", t.LABEL_OPTIONAL),
    ]
    for number, (name, kind, type_name, label) in enumerate(kinds, 1):
        named = {"type_name": type_name} if type_name else {}
        message.field.add(name=name, number=number, type=kind, label=label, **named)  # type: ignore[arg-type]
    return file


PROTO = base64.b64encode(proto().SerializeToString()).decode()


def test_protobuf_types() -> None:
    kind: Any = message_class(PROTO)
    value = kind(i=-1, u=2**64 - 1, s="x", raw=b"\xff", e=1, many=[1, 2])
    value.at.seconds, value.at.nanos = 1, 1999
    value.boxed.value = 0
    value.boxed.SetInParent()
    value.free.update({"k": 1})
    value.inner.s = "y"
    data = [framed(1, b"\0" + value.SerializeToString()), framed(1, b"\0"), framed(1, b"\x02\x02")]
    (found, error), (empty, none), (other, why) = decoded(schemas_of(PROTO, kind="protobuf"), data)
    assert error is None
    inner = found.pop("inner")
    assert found == {
        "i": -1,
        "u": Decimal(2**64 - 1),
        "s": "x",
        "raw": b"\xff",
        "e": "ONE",
        "many": [1, 2],
        "at": dt.datetime(1970, 1, 1, 0, 0, 1, 1, dt.UTC),
        "boxed": 0,
        "free": '{"k":1.0}',
    }
    assert (inner["s"], inner["inner"]) == ("y", None)
    assert none is None
    assert (empty["i"], empty["e"], empty["many"], empty["at"], empty["boxed"]) == (0, "ZERO", [], None, None)
    assert (other, why) == (None, "it is another message than the first one of schema 1")


def test_bad_protobuf() -> None:
    data = [framed(1, b"\0\x0a\xff")]
    assert decoded(schemas_of(PROTO, kind="protobuf"), data) == [(None, "it is no p.Order")]
