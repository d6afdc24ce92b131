"""Values of typed topics among good ones: each has a row or an error, none shifts the others, decoders of columns and
of rows agree. A process that dies here dies in compaction, too: the worker that runs this is such a child.
"""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pyarrow as pa

from ledgermq_ledger.typed.chunk import AT_ONCE_MIN, ChunkDecoder, Work
from ledgermq_ledger.typed.many.chosen import columns_of
from ledgermq_ledger.typed.rows.protobuf import message_class
from ledgermq_ledger.typed.shape import shape_of
from tests.fuzz.surface import Surface, Untyped
from tests.worlds.batches import mutate
from tests.worlds.typed_values import avro, record, schemas_of

AVRO = record(
    ("i", "int"),
    ("d", "double"),
    ("s", ["null", "string"]),
    ("l", {"type": "array", "items": "long"}),
    ("o", record(("b", "boolean"), ("raw", "bytes"), name="S")),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
)
AVRO_VALUES = [
    {"i": 1, "d": 0.5, "s": "x", "l": [1, -2], "o": {"b": True, "raw": b"\0"}, "e": "B", "at": 5},
    {"i": -1, "d": -1e300, "s": None, "l": [], "o": {"b": False, "raw": b""}, "e": "A", "at": -5},
]
JSON = {
    "type": "object",
    "properties": {
        "i": {"type": "integer"},
        "d": {"type": "number"},
        "s": {"type": "string"},
        "b": {"type": "boolean"},
        "l": {"type": "array", "items": {"type": "number"}},
        "o": {"type": "object", "properties": {"x": {"type": "string"}}},
    },
}
JSON_VALUES = [
    b'{"i": 1, "d": 0.5, "s": "x", "b": true, "l": [1, 2.5], "o": {"x": "y"}}',
    b'{"i": null, "d": 1e5, "s": "\\u00e9\\ud83d\\ude00", "l": []}',
    b"null",
    b"{}",
    b"",
    b"{} {}",
    b'{}}\n{"i":1,"v":{}',
    b'{},"z":{}',
    b'{"d": NaN}',
    b'{"a": [null, 1]}',
    b'{"i": 1, "i": 2}',
    b"[" * 2000,
]


@cache
def _decoders(kind: str) -> tuple[Work, ChunkDecoder, ChunkDecoder, bytes]:
    """Return the decoders of a kind, with columns and without, and a good value."""
    text: Any = {"avro": AVRO, "json": JSON, "protobuf": _proto()}[kind]
    shape = shape_of(versions := schemas_of(text, kind=kind))
    root = shape.versions[1]
    assert root is not None
    assert shape.type is not None
    work = Work(kind, versions[0].text, root, shape.type)
    return work, ChunkDecoder(work, columns_of(work)), ChunkDecoder(work), _seeds(kind)[0][1:]


def _proto() -> str:
    from tests.unit.typed.test_rows import PROTO

    return PROTO


def _seeds(kind: str) -> list[bytes]:
    letter = kind[:1].encode()
    if kind == "avro":
        return [letter + avro(AVRO, value) for value in AVRO_VALUES]
    if kind == "json":
        return [letter + value for value in JSON_VALUES]
    made: Any = message_class(_proto())
    value = made(i=1, u=2, s="x", raw=b"r", e=1, many=[1, 2])
    value.inner.s = "y"
    return [letter + value.SerializeToString(), letter]


KINDS = ("avro", "json", "protobuf")


def _spoil(rng: random.Random, data: bytes) -> bytes:
    kind = next(kind for kind in KINDS if kind[:1].encode() == data[:1])
    if kind == "json" and rng.random() < 0.5:
        return data[:1] + rng.choice((b"[%s]", b'{"o": %s}', b"%s %s", b'{"l": [%s]}')).replace(b"%s", data[1:])
    return data[:1] + mutate(rng, data[1:], rng.choice(_seeds(kind))[1:])


def _check(data: bytes) -> None:
    kind = next((kind for kind in KINDS if kind[:1].encode() == data[:1]), "json")
    _, columns, rows, good = _decoders(kind)
    values = [good] * AT_ONCE_MIN + [data[1:]] + [good] * AT_ONCE_MIN
    found, alone = columns.decode(pa.array(values, pa.binary())), rows.decode(pa.array([data[1:], good], pa.binary()))
    found.validate(full=True)
    typed, errors = (found.column(at).to_pylist() for at in range(2))
    if json.dumps(typed[AT_ONCE_MIN], default=str) != json.dumps(alone.column(0)[0].as_py(), default=str):
        raise Untyped("columns and rows make other values of it")
    if (errors[AT_ONCE_MIN] is None) != (alone.column(1)[0].as_py() is None):
        raise Untyped("columns and rows do not agree whether it is bad")
    expected = alone.column(0)[1].as_py()
    others = typed[:AT_ONCE_MIN] + typed[AT_ONCE_MIN + 1 :]
    if any(other != expected for other in others) or any(errors[:AT_ONCE_MIN] + errors[AT_ONCE_MIN + 1 :]):
        raise Untyped("it has changed the rows beside it")


def surfaces() -> list[Surface]:
    return [Surface("value of a typed topic", [seed for kind in KINDS for seed in _seeds(kind)], _check, _spoil)]
