"""Schemas of each kind: what is read, which fields they have, what is compatible, what is hostile."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from ledgermq.errors import IncompatibleSchema, InvalidRequest
from ledgermq_broker.schemas.state.bounds import TEXT_BYTES_MAX
from ledgermq_broker.schemas.state.kinds import avro, json_schema, protobuf
from ledgermq_broker.schemas.state.kinds.parsed import Parsed
from ledgermq_ledger.schemas.fields import FIELDS_MAX, FIRST_ID, numbered

Proto = descriptor_pb2.FieldDescriptorProto


def record(*fields: Any, **more: Any) -> Parsed:
    named = [{"name": name, "type": type_, **extra} for name, type_, extra in fields]
    return avro.parse(json.dumps({"type": "record", "name": "R", "fields": named, **more}))


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def shown(found: Parsed) -> dict[str, str]:
    return {field.path: field.type for field in found.fields}


def message(*fields: tuple[str, int, int], name: str = "M", **more: Any) -> Parsed:
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="p", syntax="proto3")
    made = file.message_type.add(name=name)
    for field, number, type_ in fields:
        made.field.add(name=field, number=number, type=type_, label=more.get("label", Proto.LABEL_OPTIONAL))
    return protobuf.parse(encoded(file))


def encoded(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def test_fields_of_avro() -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "at", "type": "long"}]}
    found = record(
        ("plain", "int", {}),
        ("maybe", ["null", "string"], {"default": None}),
        ("amount", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, {}),
        ("when", {"type": "long", "logicalType": "timestamp-micros"}, {}),
        ("list", {"type": "array", "items": inner}, {}),
        ("again", {"type": "map", "values": "Inner"}, {}),
        ("either", ["int", "string"], {}),
        namespace="a.b",
    )
    assert shown(found) == {
        "/plain": "int",
        "/maybe": "string",
        "/amount": "decimal(9,2)",
        "/when": "timestamp",
        "/list": "list",
        "/list/[]": "struct",
        "/list/[]/at": "long",
        "/again": "map",
        "/again/{}": "struct",
        "/again/{}/at": "long",
        "/either": "struct",
        "/either/int": "int",
        "/either/string": "string",
    }


def test_fields_of_json_schema() -> None:
    found = json_schema.parse(
        json.dumps(
            schema(
                name={"type": "string"},
                count={"type": ["integer", "null"]},
                point={"$ref": "#/$defs/point"},
                tags={"type": "array", "items": {"type": "string"}},
                extra={"type": "object", "additionalProperties": {"type": "number"}},
                anything={},
                **{"a/b": {"enum": ["x", "y"]}},
            )
            | {"$defs": {"point": schema(x={"type": "number"})}}
        )
    )
    assert shown(found) == {
        "/name": "string",
        "/count": "long",
        "/point": "struct",
        "/point/x": "double",
        "/tags": "list",
        "/tags/[]": "string",
        "/extra": "map",
        "/extra/{}": "double",
        "/anything": "json",
        "/a~1b": "string",
    }


def test_fields_of_protobuf() -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name="m.proto", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    made = file.message_type.add(name="M")
    made.field.add(name="id", number=1, type=Proto.TYPE_SINT64, label=Proto.LABEL_OPTIONAL)
    made.field.add(name="names", number=2, type=Proto.TYPE_STRING, label=Proto.LABEL_REPEATED)
    time = ".google.protobuf.Timestamp"
    made.field.add(name="at", number=3, type=Proto.TYPE_MESSAGE, type_name=time, label=Proto.LABEL_OPTIONAL)
    made.field.add(name="child", number=4, type=Proto.TYPE_MESSAGE, type_name=".M", label=Proto.LABEL_OPTIONAL)
    found = shown(protobuf.parse(encoded(file)))
    assert found["/id"] == "long"
    assert (found["/names"], found["/names/[]"], found["/at"]) == ("list", "string", "timestamp")
    assert found["/child/child/child"] == "json", "a message within itself ends as text"
    assert "/child/child/child/id" not in found


def test_types_within_themselves_end() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    assert shown(avro.parse(json.dumps(node)))["/next/next/next"] == "json"
    tree = {"$ref": "#/$defs/t", "$defs": {"t": schema(kid={"$ref": "#/$defs/t"})}}
    found = shown(json_schema.parse(json.dumps(tree)))
    assert "json" in found.values()
    assert len(found) < 10


@pytest.mark.parametrize(
    ("kind", "text", "match"),
    [
        (avro, "{", "no valid JSON"),
        (avro, '{"type": "record", "name": "R"}', "cannot be read"),
        (avro, '{"type": "strin"}', "cannot be read"),
        (avro, "[" * 100_000, "brackets within one another"),
        (avro, '{"a": 1, "a": 2}', "stands twice"),
        (avro, '"' + "x" * TEXT_BYTES_MAX + '"', "at most 524288 bytes"),
        (json_schema, "[]", "is an object"),
        (json_schema, '{"type": "strin"}', "is not right"),
        (json_schema, '{"a": NaN}', "NaN is no JSON"),
        (json_schema, '{"$ref": "http://169.254.169.254/latest"}', "not right|not one within"),
        (json_schema, '{"$ref": "file:///etc/passwd"}', "not right|not one within"),
        (json_schema, '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}', "circle"),
        (json_schema, '{"$ref": "#/nowhere"}', "not right|nowhere"),
        (json_schema, '{"not":' * 70 + "{}" + "}" * 70, "brackets within"),
        (json_schema, '{"enum": [' + "1," * 30_000 + "1]}", "more than 20000 values"),
        (json_schema, '{"type": "string", "pattern": "("}', "is not right"),
        (protobuf, "no base64!", "in base64"),
        (protobuf, "", "has no message"),
        (protobuf, base64.b64encode(b"\x0a\x05x").decode(), "in base64"),
    ],
)
def test_what_is_refused(kind: Any, text: str, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        kind.parse(text)


def test_a_schema_whose_types_multiply_is_refused() -> None:
    """Each type has fifty fields of the type before: 50 ** 8 fields in a few kilobytes."""
    types: Any = {"type": "record", "name": "T0", "fields": [{"name": "a", "type": "int"}]}
    for number in range(1, 9):
        fields = [{"name": "f0", "type": types}] + [{"name": f"f{i}", "type": f"T{number - 1}"} for i in range(1, 50)]
        types = {"type": "record", "name": f"T{number}", "fields": fields}
    with pytest.raises(InvalidRequest, match=f"at most {FIELDS_MAX} fields"):
        avro.parse(json.dumps(types))
    defs: dict[str, Any] = {"t0": {"type": "string"}}
    for number in range(1, 9):
        defs[f"t{number}"] = schema(**{f"f{i}": {"$ref": f"#/$defs/t{number - 1}"} for i in range(50)})
    with pytest.raises(InvalidRequest, match=f"at most {FIELDS_MAX} fields"):
        json_schema.parse(json.dumps({"$ref": "#/$defs/t8", "$defs": defs}))


def test_a_comparison_that_multiplies_is_refused() -> None:
    def nested(depth: int, last: str) -> Any:
        return {"anyOf": [nested(depth - 1, last)] * 6} if depth else {"type": last}

    one, other = nested(5, "string"), nested(5, "integer")
    with pytest.raises(InvalidRequest, match="too large to be compared"):
        json_schema.refusals(one, other)


def test_a_hostile_pattern_costs_nothing() -> None:
    pattern = {"type": "string", "pattern": "^(a+)+$"}
    found = json_schema.parse(json.dumps(pattern))
    assert json_schema.refusals(found.model, found.model) == []


def test_equal_texts_have_one_digest_whatever_their_spacing() -> None:
    one, other = avro.parse('{"type": "string"}'), avro.parse('{ "type":\n"string" }')
    assert one.digest == other.digest
    assert one.digest != json_schema.parse('{"type": "string"}').digest


def test_compatibility_of_avro() -> None:
    old = record(("a", "int", {}))
    added = record(("a", "int", {}), ("b", "string", {"default": ""}))
    demanded = record(("a", "int", {}), ("b", "string", {}))
    assert avro.refusals(added.model, old.model) == []
    assert avro.refusals(old.model, added.model) == []
    [why] = avro.refusals(demanded.model, old.model)
    assert "b" in why


@pytest.mark.parametrize(
    ("new", "old", "fits"),
    [
        (schema(a={"type": "number"}), schema(a={"type": "integer"}), True),
        (schema(a={"type": "integer"}), schema(a={"type": "number"}), False),
        (schema(a={}, b={"type": "string"}), schema(a={}), True),
        (schema(a={}) | {"required": ["b"]}, schema(a={}), False),
        (schema(a={}) | {"required": ["a"]}, schema(a={}) | {"required": ["a"]}, True),
        (schema(a={}) | {"additionalProperties": False}, schema(a={}, b={}), False),
        ({"enum": [1, 2, 3]}, {"enum": [1, 2]}, True),
        ({"enum": [1]}, {"enum": [1, 2]}, False),
        ({"enum": [True]}, {"enum": [1]}, False),
        ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 9}, False),
        ({"type": "string", "maxLength": 9}, {"type": "string", "maxLength": 5}, True),
        ({"type": "string", "maxLength": 9}, {"type": "string"}, False),
        ({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}, False),
        ({"type": "string"}, {"type": "string", "pattern": "b"}, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "string"}, True),
        ({"anyOf": [{"type": "string"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}, False),
        ({"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "null"}}, False),
        ({"title": "new", "type": "string"}, {"title": "old", "type": "string"}, True),
        ({}, {"type": "string"}, True),
        ({"not": {"type": "string"}}, {}, False),
    ],
)
def test_compatibility_of_json_schema(new: dict[str, Any], old: dict[str, Any], fits: bool) -> None:
    assert (json_schema.refusals(new, old) == []) is fits


def test_schemas_that_refer_to_themselves_are_compared_to_the_end() -> None:
    def tree(type_: str) -> dict[str, Any]:
        return {"$ref": "#/$defs/t", "$defs": {"t": schema(kid={"$ref": "#/$defs/t"}, v={"type": type_})}}

    assert json_schema.refusals(tree("number"), tree("integer")) == []
    assert json_schema.refusals(tree("string"), tree("integer")) != []


def test_compatibility_of_protobuf() -> None:
    old = message(("a", 1, Proto.TYPE_INT32))
    assert protobuf.refusals(message(("b", 1, Proto.TYPE_INT64)).model, old.model) == [], (
        "a name is nothing on the wire"
    )
    assert protobuf.refusals(message(("a", 2, Proto.TYPE_INT32)).model, old.model) == []
    [why] = protobuf.refusals(message(("a", 1, Proto.TYPE_STRING)).model, old.model)
    assert "number 1 was int32, and is string" in why
    [why] = protobuf.refusals(message(("a", 1, Proto.TYPE_INT32), name="N").model, old.model)
    assert "the message is gone" in why
    [why] = protobuf.refusals(message(("a", 1, Proto.TYPE_INT32), label=Proto.LABEL_REPEATED).model, old.model)
    assert "was a list, or is one now" in why


def test_an_import_that_is_not_known_is_refused() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", dependency=["other.proto"])
    file.message_type.add(name="M")
    with pytest.raises(InvalidRequest, match=r"imports 'other.proto'"):
        protobuf.parse(encoded(file))


def test_field_ids_are_given_once_and_go_with_a_renamed_field() -> None:
    first, given = numbered((), record(("a", "int", {}), ("b", "string", {})).fields, 0)
    assert [field.id for field in first] == [FIRST_ID, FIRST_ID + 1]
    gone, given = numbered(first, record(("b", "string", {}), ("c", "int", {})).fields, given)
    assert [(field.id, field.path, field.removed) for field in gone] == [
        (FIRST_ID + 1, "/b", False),
        (FIRST_ID + 2, "/c", False),
        (FIRST_ID, "/a", True),
    ]
    renamed, given = numbered(gone, record(("z", "string", {"aliases": ["b"]}), ("a", "int", {})).fields, given)
    living = {field.path: field.id for field in renamed if not field.removed}
    assert living == {"/z": FIRST_ID + 1, "/a": FIRST_ID}, "an alias, and a field that comes back, keep their ids"
    assert given == FIRST_ID + 2


def test_a_field_of_protobuf_keeps_its_id_by_its_number() -> None:
    first, given = numbered((), message(("a", 1, Proto.TYPE_INT32)).fields, 0)
    second, _ = numbered(first, message(("b", 1, Proto.TYPE_INT64), ("a", 2, Proto.TYPE_INT32)).fields, given)
    assert [(field.id, field.path, field.type) for field in second] == [
        (FIRST_ID, "/b", "long"),
        (FIRST_ID + 1, "/a", "int"),
    ]


def test_what_a_table_cannot_follow_is_refused() -> None:
    first, given = numbered((), record(("a", "long", {})).fields, 0)
    narrower, _ = numbered(first, record(("a", "int", {})).fields, given)
    assert narrower[0].type == "long"
    with pytest.raises(IncompatibleSchema, match="field /a was long, and a table cannot make string of it"):
        numbered(first, record(("a", "string", {})).fields, given)
    money = {"type": "bytes", "logicalType": "decimal", "scale": 2}
    first, given = numbered((), record(("a", money | {"precision": 9}, {})).fields, 0)
    wider, _ = numbered(first, record(("a", money | {"precision": 12}, {})).fields, given)
    assert wider[0].type == "decimal(12,2)"
