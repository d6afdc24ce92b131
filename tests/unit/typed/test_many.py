"""Decoders of columns make the same rows as those of single values, or leave them to these."""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from ledgermq_ledger.typed.chunk import AT_ONCE_MIN, ChunkDecoder, Work
from ledgermq_ledger.typed.many.chosen import columns_of
from ledgermq_ledger.typed.many.layout import check_finite
from ledgermq_ledger.typed.rows.protobuf import message_class
from ledgermq_ledger.typed.shape import shape_of
from tests.worlds.typed_values import avro, record, schemas_of

JSON = {
    "type": "object",
    "properties": {
        "i": {"type": "integer"},
        "d": {"type": "number"},
        "s": {"type": "string"},
        "b": {"type": "boolean"},
        "l": {"type": "array", "items": {"type": "number"}},
        "o": {"type": "object", "properties": {"x y": {"type": "string"}, "n": {"type": "array", "items": {}}}},
    },
}
JSON["properties"]["o"]["properties"]["n"]["items"] = {"type": "integer"}  # type: ignore[index]
ODD = [
    b"null",
    b"{}",
    b"",
    b"{} {}",
    b'{}}\n{"i":1,"v":{}',
    b'{},"z":{}',
    b'{},"i":7',
    b'{},"v":{}',
    b'{"d": NaN}',
    b'{"d": -Infinity}',
    b'{"d": 1e999}',
    b'{"i": 1e3}',
    b'{"i": 1, "i": 2}',
    b'{"i": 9223372036854775808}',
    b'{"s": "\\udc00"}',
    b'{"s": "\\u0000"}',
    b'{"s": "\xff"}',
    b'{"unknown": [null, 1]}',
    b'{"o": {"x y": "z"}}',
    b'{"l": [null, 1, 2.5]}',
    b'{"l": [1, true]}',
    b"[" * 5000,
    b"/* c */ {}",
    b"{\n}\n",
    b"\xef\xbb\xbf{}",
]


def decoders(text: Any, kind: str) -> tuple[ChunkDecoder, ChunkDecoder]:
    versions = schemas_of(text, kind=kind)
    shape = shape_of(versions)
    root = shape.versions[1]
    assert root is not None
    assert shape.type is not None
    work = Work(kind, versions[0].text, root, shape.type)
    columns = columns_of(work)
    assert columns is not None
    return ChunkDecoder(work, columns), ChunkDecoder(work)


def same(one: ChunkDecoder, other: ChunkDecoder, values: list[bytes]) -> None:
    found, wanted = (each.decode(pa.array(values, pa.binary())) for each in (one, other))
    found.validate(full=True)
    assert found.equals(wanted), [
        (value, a, b)
        for value, a, b in zip(values, found.to_pylist(), wanted.to_pylist(), strict=True)
        if str(a) != str(b)
    ]


def json_value(r: random.Random) -> bytes:
    value: dict[str, Any] = {
        "i": r.choice([None, 0, -1, 2**63 - 1, r.randrange(10**6)]),
        "d": r.choice([None, 0, 0.1, -1e-300, r.random(), 10**25]),
        "s": r.choice([None, "", "é\u0000😀", "x" * r.randrange(50)]),
        "b": r.choice([None, True, False]),
        "l": r.choice([None, [], [1, 2.5, None]]),
        "o": r.choice([None, {}, {"x y": "z", "n": [1, None]}]),
    }
    return json.dumps({name: each for name, each in value.items() if r.random() < 0.8}, ensure_ascii=False).encode()


def test_json_in_columns_is_as_in_rows() -> None:
    columns, rows = decoders(JSON, "json")
    r = random.Random(1)
    same(columns, rows, [json_value(r) for _ in range(500)])
    assert columns._failures == 0, "none went row by row"


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_value_changes_nothing_beside_it(odd: bytes) -> None:
    columns, rows = decoders(JSON, "json")
    r = random.Random(2)
    good = [json_value(r) for _ in range(2 * AT_ONCE_MIN)]
    same(columns, rows, [*good[:70], odd, *good[70:]])


def test_two_odd_values_that_would_make_up_for_one_another() -> None:
    """Two objects in one value and none in another have the right number of rows, all of them shifted."""
    columns, rows = decoders(JSON, "json")
    r = random.Random(3)
    good = [json_value(r) for _ in range(2 * AT_ONCE_MIN)]
    same(columns, rows, [*good[:10], b"{} {}", *good[10:100], b"", *good[100:]])


def test_numbers_that_json_does_not_have() -> None:
    check_finite(pa.array([[1.0], None, [2.0]]))
    with pytest.raises(ValueError, match="not finite"):
        check_finite(pa.array([{"a": [float("inf")]}]))


AVRO = record(
    ("i", "int"),
    ("l", ["null", "long"]),
    ("f", "float"),
    ("d", "double"),
    ("s", ["string", "null"]),
    ("b", "boolean"),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("ints", {"type": "array", "items": "int"}),
    ("o", ["null", record(("x_y", "int"), ("at", {"type": "long", "logicalType": "timestamp-millis"}), name="S")]),
    ("many", {"type": "array", "items": record(("x", {"type": "array", "items": ["null", "int"]}), name="T")}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("us", {"type": "long", "logicalType": "timestamp-micros"}),
    ("t", {"type": "long", "logicalType": "time-micros"}),
)


def avro_value(r: random.Random) -> bytes:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    value = {
        "i": r.choice([0, -(2**31), 2**31 - 1]),
        "l": r.choice([None, 2**63 - 1]),
        "f": 1.5,
        "d": r.random(),
        "s": r.choice([None, "", "é\u0000😀"]),
        "b": r.random() < 0.5,
        "e": r.choice("AB"),
        "ints": [1] * r.randrange(3),
        "o": r.choice([None, {"x_y": 1, "at": at}]),
        "many": r.choice([[], [{"x": [None, 1]}, {"x": []}]]),
        "day": at.date(),
        "us": at,
        "t": dt.time(1),
    }
    return avro(AVRO, value)


ODD_AVRO = [
    lambda good: b"",
    lambda good: good + b"x",
    lambda good: good[:-1],
    lambda good: b"\x80\x80\x80\x80\x20" + good[1:],
    lambda good: bytes(reversed(good)),
    lambda good: good * 2,
]


def test_avro_in_columns_is_as_in_rows() -> None:
    pytest.importorskip("pyruhvro")
    columns, rows = decoders(AVRO, "avro")
    r = random.Random(1)
    good = [avro_value(r) for _ in range(300)]
    same(columns, rows, good)
    assert columns._failures == 0, "none went row by row"
    for odd in ODD_AVRO:
        same(columns, rows, [*good[:70], odd(good[0]), *good[70:140]])


@pytest.mark.parametrize("kind", ["bytes", {"type": "map", "values": "int"}, ["int", "string"]])
def test_what_pyruhvro_does_not_read_goes_row_by_row(kind: Any) -> None:
    pytest.importorskip("pyruhvro")
    versions = schemas_of(record(("f", kind)))
    shape = shape_of(versions)
    assert shape.root is not None
    assert shape.type is not None
    assert columns_of(Work("avro", versions[0].text, shape.root, shape.type)) is None


def message(*, with_enum: bool = False) -> str:
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="q", syntax="proto3")
    inner, outer = file.message_type.add(name="M"), file.message_type.add(name="In")
    t = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        [("l", t.TYPE_INT64), ("s", t.TYPE_STRING), ("d", t.TYPE_DOUBLE), ("b", t.TYPE_BOOL), ("u", t.TYPE_UINT64)], 1
    ):
        inner.field.add(name=name, number=number, type=kind, label=t.LABEL_OPTIONAL)  # type: ignore[arg-type]
    inner.field.add(name="many", number=6, type=t.TYPE_SINT32, label=t.LABEL_REPEATED)
    inner.field.add(name="o", number=7, type=t.TYPE_MESSAGE, type_name=".q.In", label=t.LABEL_OPTIONAL)
    inner.field.add(name="os", number=8, type=t.TYPE_MESSAGE, type_name=".q.In", label=t.LABEL_REPEATED)
    inner.field.add(name="raw", number=9, type=t.TYPE_BYTES, label=t.LABEL_OPTIONAL)
    inner.oneof_decl.add(name="_maybe")
    inner.field.add(
        name="maybe", number=10, type=t.TYPE_FIXED32, label=t.LABEL_OPTIONAL, proto3_optional=True, oneof_index=0
    )
    outer.field.add(name="x", number=1, type=t.TYPE_FLOAT, label=t.LABEL_OPTIONAL)
    if with_enum:
        file.enum_type.add(name="E").value.add(name="ZERO", number=0)
        inner.field.add(name="e", number=11, type=t.TYPE_ENUM, type_name=".q.E", label=t.LABEL_OPTIONAL)
    return base64.b64encode(file.SerializeToString()).decode()


def test_protobuf_in_columns_is_as_in_rows() -> None:
    pytest.importorskip("ptars")
    text = message()
    columns, rows = decoders(text, "protobuf")
    kind: Any = message_class(text)
    r = random.Random(1)

    def value() -> bytes:
        made = kind(l=r.choice([0, -1, 2**63 - 1]), s=r.choice(["", "é😀"]), d=r.random(), b=r.random() < 0.5)
        made.u = r.choice([0, 2**64 - 1])
        made.many.extend([-1] * r.randrange(3))
        made.raw = b"\xff\0"
        if r.random() < 0.5:
            made.maybe = r.choice([0, 2**32 - 1])
            made.o.x = 1.5
            made.os.add(x=2.5)
        return bytes(made.SerializeToString())

    good = [value() for _ in range(300)]
    same(columns, rows, good)
    assert columns._failures == 0, "none went row by row"
    for odd in (b"", b"\x0a\xff", b"\x12\x02\xff\xff", good[0][:-1], good[0] * 2, b"\x99\x99", b"\x08" + b"\xff" * 12):
        same(columns, rows, [*good[:70], odd, *good[70:140]])


def test_what_ptars_makes_otherwise_goes_row_by_row() -> None:
    pytest.importorskip("ptars")
    versions = schemas_of(message(with_enum=True), kind="protobuf")
    shape = shape_of(versions)
    assert shape.root is not None
    assert shape.type is not None
    assert columns_of(Work("protobuf", versions[0].text, shape.root, shape.type)) is None
