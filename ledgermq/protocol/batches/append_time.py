"""Write the broker's time into the records of a batch, without decoding it.

Only two columns change: `timestamp` holds the one time, `timestampType` holds 1. The bytes of all other
columns are copied as they are, compressed or not; so this costs two copies of memory and one checksum,
whatever the records are. The header of the message is made from one of Arrow's own, so nothing that a
producer has written into its header survives but the lengths that were checked.

    | key, value, headers: as they were | timestamp | timestampType | tag: as it was |
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import chain

import pyarrow as pa

from ledgermq.buffers import Buffer
from ledgermq.protocol.batches.batch_header import ALIGNMENT, HeaderPlaces, header_places, read_layout
from ledgermq.protocol.batches.records import SCHEMA, Compression, encode_batch

BROKERS_TYPE = 1
"""`timestampType` of records whose timestamp is the broker's."""
_TIMESTAMP_NODE, _TYPE_NODE = 6, 7
_FIRST, _LAST = 15, 18
"""The buffers of the two columns: a validity bitmap and values of each."""
_I64 = struct.Struct("<q")
_NODES, _BUFFERS = struct.Struct("<18q"), struct.Struct("<44q")


def with_append_time(data: Buffer, append_us: int) -> bytes:
    """Return a batch that `decode_batch` has accepted, with one timestamp in all its records.

    `append_us`: microseconds since the epoch.
    """
    layout = read_layout(data)
    body = memoryview(data)[layout.body_start :]
    head, tail = layout.buffers[:_FIRST], layout.buffers[_LAST + 1 :]
    head_end = _padded(max((at + length for at, length in head if length), default=0))
    tail_start = min((at for at, length in tail if length), default=len(body))
    times = _column(_I64.pack(append_us), layout.rows, layout.codec)
    types = _types(layout.rows, layout.codec)
    types_at = head_end + _padded(len(times))
    tail_at = types_at + _padded(len(types))
    buffers = [(at if length else 0, length) for at, length in head]
    buffers += [(head_end, 0), (head_end, len(times)), (types_at, 0), (types_at, len(types))]
    buffers += [(tail_at + at - tail_start if length else tail_at, length) for at, length in tail]
    nodes = list(layout.nodes)
    nodes[_TIMESTAMP_NODE] = nodes[_TYPE_NODE] = (layout.rows, 0)
    pieces = (body[:head_end], times, _padding(times), types, _padding(types), body[tail_start:])
    header, places = _template(layout.codec)
    made = bytearray(header)
    _I64.pack_into(made, places.body_length, sum(map(len, pieces)))
    _I64.pack_into(made, places.rows, layout.rows)
    _NODES.pack_into(made, places.nodes, *chain.from_iterable(nodes))
    _BUFFERS.pack_into(made, places.buffers, *chain.from_iterable(buffers))
    return b"".join((made, *pieces))


def _column(value: bytes, rows: int, codec: str) -> bytes:
    """Return the buffer of a column of one value. Compressed buffers begin with their decoded length."""
    plain = value * rows
    return plain if codec == "none" else _I64.pack(len(plain)) + pa.compress(plain, codec=codec, asbytes=True)


@lru_cache(64)
def _types(rows: int, codec: str) -> bytes:
    return _column(struct.pack("<i", BROKERS_TYPE), rows, codec)


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def _padding(piece: bytes) -> bytes:
    return bytes(_padded(len(piece)) - len(piece))


@lru_cache
def _template(codec: Compression) -> tuple[bytes, HeaderPlaces]:
    """Return the header of some batch with this codec, as Arrow writes it, and where its numbers are."""
    row = {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"v"}], "tag": "t"}
    rows = pa.RecordBatch.from_pylist([row], schema=SCHEMA)
    data = encode_batch(rows, codec)
    return data[: read_layout(data).body_start], header_places(data)
