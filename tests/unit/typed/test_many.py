"""Decoders of columns make the same rows as those of single values, or leave them to these."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from ledgermq_ledger.typed.chunk import AT_ONCE_MIN, ChunkDecoder, Work
from ledgermq_ledger.typed.many.chosen import columns_of
from ledgermq_ledger.typed.many.layout import check_finite
from ledgermq_ledger.typed.shape import shape_of
from tests.worlds.typed_values import schemas_of

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
