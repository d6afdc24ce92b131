"""Record batches for tests: drawn ones that pyarrow encodes, and surgery on the header of an
encoded one.

The flatbuffer is read here by code of its own, so that a mistake of the product's walker is not
repeated by its tests.
"""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from ledgermq.protocol.batches.records import END_OF_STREAM, SCHEMA

Path = tuple[int, ...]
"""Numbers of flatbuffer fields, from the Message inward."""

VERSION: Path = (0,)
HEADER_TYPE: Path = (1,)
BODY_LENGTH: Path = (3,)
ROWS: Path = (2, 0)
NODES: Path = (2, 1)
BUFFERS: Path = (2, 2)
COMPRESSION: Path = (2, 3)
CODEC: Path = (2, 3, 0)

PAIR = struct.Struct("<qq")
COLUMNS = len(SCHEMA.names)

_headers = st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=5) | st.none(), "value": st.binary(max_size=5) | st.none()}),
    max_size=3,
)
_timestamps = st.integers(0, 4_000_000_000_000_000)
rows_of_records = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.binary(max_size=20) | st.none(),
            "value": st.binary(max_size=60) | st.none(),
            "headers": _headers | st.none(),
            "timestamp": _timestamps | st.none(),
            "timestampType": st.sampled_from([0, 1, None]),
            "tag": st.text(max_size=5) | st.none(),
        }
    ),
    min_size=1,
    max_size=20,
)


@st.composite
def record_batches(draw: st.DrawFn) -> pa.RecordBatch:
    """At least one row; often a slice of a longer batch, sometimes with columns of nothing but
    nulls.
    """
    batch = batch_of(draw(rows_of_records))
    for column in draw(st.sets(st.integers(0, COLUMNS - 1), max_size=2)):
        batch = batch.set_column(column, SCHEMA.field(column), pa.nulls(batch.num_rows, SCHEMA.field(column).type))
    first = draw(st.integers(0, batch.num_rows - 1))
    return batch.slice(first, draw(st.integers(1, batch.num_rows - first)))


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """`timestamp` in microseconds."""
    columns = {field.name: [row.get(field.name) for row in rows] for field in SCHEMA}
    times = pa.array(columns.pop("timestamp"), pa.int64()).cast(SCHEMA.field("timestamp").type)
    arrays = [times if field.name == "timestamp" else pa.array(columns[field.name], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def nulls_with_content() -> pa.RecordBatch:
    """Three rows with bytes behind their nulls, which validity bitmaps alone hide."""

    def hide(array: pa.Array, valid: list[bool]) -> pa.Array:
        bits = pa.py_buffer(bytes([sum(1 << i for i, shown in enumerate(valid) if shown)]))
        children = (
            [array.values]
            if pa.types.is_list(array.type)
            else [array.field(0), array.field(1)]
            if array.type.num_fields
            else []
        )
        own = array.buffers()[1 : array.type.num_buffers]
        return pa.Array.from_buffers(array.type, len(array), [bits, *own], children=children)

    keys = hide(pa.array(["h", "g", "f", "e"]), [True, True, True, False])
    pairs = hide(
        pa.StructArray.from_arrays([keys, pa.array([b"12", b"34", b"78", b"56"])], ["key", "value"]),
        [True, False, True, True],
    )
    headers = hide(pa.ListArray.from_arrays(pa.array([0, 2, 3, 4], pa.int32()), pairs), [True, False, True])
    values = hide(pa.array([b"v", b"v", b"hidden"]), [True, True, False])
    batch = batch_of([{"tag": "t"}, {}, {"key": b"k"}])
    return batch.set_column(2, SCHEMA.field("headers"), headers).set_column(1, SCHEMA.field("value"), values)


def seeded_batch(rng: random.Random, rows_max: int = 30) -> pa.RecordBatch:
    """Like `record_batches`, without hypothesis."""

    def maybe(value: Any) -> Any:
        return value if rng.random() < 0.8 else None

    def row() -> dict[str, Any]:
        pairs = [{"key": maybe("h"), "value": maybe(rng.randbytes(3))} for _ in range(rng.randrange(3))]
        return {
            "key": maybe(rng.randbytes(rng.randrange(8))),
            "value": maybe(rng.randbytes(rng.randrange(40))),
            "headers": maybe(pairs),
            "timestamp": maybe(rng.randrange(1 << 50)),
            "timestampType": maybe(0),
            "tag": maybe("ä" * rng.randrange(4)),
        }

    return batch_of([row() for _ in range(rng.randrange(1, rows_max))])


def serialize(batch: pa.RecordBatch, metadata: dict[str, str] | None = None, **options: Any) -> bytes:
    """One record batch message by pyarrow itself, of any schema, any number of rows and any
    `IpcWriteOptions`.
    """
    written = pa.ipc.IpcWriteOptions(**options)
    streams = []
    for batches in ([], [batch]):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=written) as writer:
            for each in batches:
                writer.write_batch(each, custom_metadata=metadata)
        streams.append(sink.getvalue().to_pybytes())
    ending = 4 if options.get("use_legacy_format") else len(END_OF_STREAM)
    return streams[1][len(streams[0]) - ending : -ending]


def position(message: bytes | bytearray, path: Path) -> int:
    """Where the value of a field of the header stands.

    Raises KeyError where it is absent (it has its default).
    """
    at = 8 + struct.unpack_from("<I", message, 8)[0]
    for depth, number in enumerate(path):
        entry = vtable_entry(message, at, number)
        at += struct.unpack_from("<H", message, entry)[0]
        if depth < len(path) - 1:
            at += struct.unpack_from("<I", message, at)[0]
    return at


def vtable_entry(message: bytes | bytearray, table: int, number: int) -> int:
    vtable = table - struct.unpack_from("<i", message, table)[0]
    entry = vtable + 4 + 2 * number
    if (
        entry >= vtable + struct.unpack_from("<H", message, vtable)[0]
        or not struct.unpack_from("<H", message, entry)[0]
    ):
        raise KeyError(number)
    return entry


def pair_position(message: bytes | bytearray, path: Path, index: int) -> int:
    at = position(message, path)
    return at + struct.unpack_from("<I", message, at)[0] + 4 + PAIR.size * index


def get_pair(message: bytes, path: Path, index: int) -> tuple[int, int]:
    return PAIR.unpack_from(message, pair_position(message, path, index))


def with_pair(message: bytes, path: Path, index: int, first: int, second: int) -> bytes:
    """A node (rows, nulls) or a buffer (offset, length) replaced."""
    changed = bytearray(message)
    PAIR.pack_into(changed, pair_position(message, path, index), first, second)
    return bytes(changed)


def with_value(message: bytes, path: Path, form: str, value: int) -> bytes:
    changed = bytearray(message)
    struct.pack_into(form, changed, position(message, path), value)
    return bytes(changed)


def without_field(message: bytes, path: Path) -> bytes:
    """The field is absent now, as if it had never been written."""
    changed = bytearray(message)
    parent = position(message, path[:-1])
    table = parent + struct.unpack_from("<I", message, parent)[0]
    struct.pack_into("<H", changed, vtable_entry(message, table, path[-1]), 0)
    return bytes(changed)


def mutate(rng: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """A few random edits: bits, bytes, numbers at their edges, pieces cut out, doubled, or taken
    from `other`.
    """
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if not out:
            break
        _edit(rng, out, other)
    return bytes(out)


_EDGES = (
    0,
    1,
    -1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**31 - 1,
    -(2**31),
    2**32 - 1,
    2**62,
    2**63 - 1,
    -(2**63),
)


def _edit(rng: random.Random, out: bytearray, other: bytes) -> None:
    at = rng.randrange(len(out))
    length = min(len(out) - at, rng.choice((1, 2, 4, 8, 16, 64)))
    match rng.randrange(7):
        case 0:
            out[at] ^= 1 << rng.randrange(8)
        case 1:
            out[at] = rng.randrange(256)
        case 2:
            size = rng.choice((2, 4, 8))
            edge = (rng.choice(_EDGES) % (1 << 8 * size)).to_bytes(size, "little")
            out[at : at + size] = edge[: len(out) - at]
        case 3:
            del out[at : at + length]
        case 4:
            out[at:at] = out[at : at + length]
        case 5:
            del out[at:]
        case 6:
            begin = rng.randrange(len(other) or 1)
            out[at : at + length] = other[begin : begin + length]
