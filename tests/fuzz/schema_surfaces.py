"""Texts of schemas of each kind, and the records of schemas in `__metadata`."""

from __future__ import annotations

import base64
import json
import random

from google.protobuf import struct_pb2, wrappers_pb2

from ledgermq_broker.schemas.state.kinds.parsed import Parsed
from ledgermq_broker.schemas.state.registry import KINDS, Registry, parsed, put, registry_of
from ledgermq_ledger.schemas.fields import numbered
from ledgermq_ledger.schemas.records import Counts, Subject, encode_counts, encode_subject, schema_key
from tests.fuzz.lake_surfaces import spoil_value
from tests.fuzz.surface import Surface, Untyped
from tests.worlds.batches import mutate

AVRO = {
    "type": "record",
    "name": "R",
    "namespace": "a.b",
    "fields": [
        {"name": "x", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "list", "type": {"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["A", "B"]}}},
        {"name": "map", "type": {"type": "map", "values": ["E", "R", {"type": "fixed", "name": "F", "size": 4}]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}, "aliases": ["when"], "default": 0},
    ],
}
JSON = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["x"],
    "properties": {
        "x": {"type": ["integer", "null"], "minimum": 3, "x-field-id": 4},
        "tree": {"$ref": "#/$defs/t"},
        "any": {"anyOf": [{"type": "string", "pattern": "^a+$"}, {"enum": [1, "b"]}, {"not": {"const": 1}}]},
        "map": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}},
    },
    "$defs": {"t": {"type": "object", "properties": {"kid": {"$ref": "#/$defs/t"}}}},
}
LETTERS = {"a": "avro", "j": "json", "p": "protobuf"}
SEEDS = (
    b"a" + json.dumps(AVRO).encode(),
    b'a"int"',
    b"along",
    b"j" + json.dumps(JSON).encode(),
    b"j{}",
    b"p" + struct_pb2.DESCRIPTOR.serialized_pb,
    b"p" + wrappers_pb2.DESCRIPTOR.serialized_pb,
)


def _spoil(rng: random.Random, data: bytes) -> bytes:
    kind, text = data[:1], data[1:]
    if kind == b"p" or rng.random() < 0.3:
        return kind + mutate(rng, text, rng.choice(SEEDS)[1:])
    try:
        value = json.loads(text)
    except ValueError:
        return kind + mutate(rng, text, text)
    for _ in range(rng.randrange(1, 4)):
        value = spoil_value(rng, value)
    return kind + json.dumps(value).encode(errors="surrogatepass")


def _read(data: bytes) -> Parsed:
    kind = LETTERS.get(data[:1].decode("latin-1"), "none")
    text = data[1:].decode(errors="replace")
    return parsed(kind, base64.b64encode(data[1:]).decode() if kind == "protobuf" else text)


def _check_text(data: bytes) -> None:
    """What is read is compatible with itself, has field ids, and is the same when it is stored and read again."""
    found = _read(data)
    if why := KINDS[found.kind].refusals(found.model, found.model):
        raise Untyped(f"a schema is not compatible with itself: {why}")
    fields, given = numbered((), found.fields, 0)
    if numbered(fields, found.fields, given)[0] != fields:
        raise Untyped("the same fields get other ids")
    schema, records = put(Registry(), "s", found, "", 0, "")
    stored = {key: (number, value) for number, (key, value) in enumerate(records) if value is not None}
    if registry_of(stored).version("s", 0) != schema:
        raise Untyped("a schema that was stored is another one")


RECORDS = (
    b"0" + put(Registry(), "s", _read(SEEDS[0]), "full", 5, "user:a")[1][0][1],  # type: ignore[operator]  # it has a value
    b"1" + encode_subject(Subject("full", 3, frozenset({1}), frozenset({2}))),
    b"2" + encode_counts(Counts(7, 104, (b"nonce",))),
)


def _check_record(data: bytes) -> None:
    """A record is read, or is unreadable and stops changes of its subject: no other error comes of it."""
    keys = {b"0": schema_key("s", 3), b"1": b"subject/s", b"2": b"schemas"}
    found = registry_of({keys.get(data[:1], b"schema/" + data[:9]): (1, data[1:])})
    for subject in ("s", "t"):
        found.check_readable(subject)
        found.living(subject, deleted=True)
        found.mode(subject)


def surfaces() -> list[Surface]:
    return [
        Surface("text of a schema", SEEDS, _check_text, _spoil),
        Surface("record of a schema", RECORDS, _check_record),
    ]
