"""Which schema a value says it has: by Confluent's frame in front of it, by a header of the record, or neither. Pure.

confluent   00 | id, 4 bytes, big-endian | Protobuf: message indexes | value
header      the header `ledgermq.schema-id`, a decimal number; the last one counts
none        bare values, of one version of the subject
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.protocol.naming.schema_ids import CONFLUENT, HEAD_BYTES, HEADER, MAGIC

compute: Any = pc
ID_MAX = 2**32 - 1
INT32_MAX = 2**31 - 1


def ids_of(framing: str, values: pa.Array, headers: pa.Array) -> pa.Array:
    """Return the id of each value's schema as int64; NULL where it says none, and of a NULL value."""
    found = _in_frames(values) if framing == CONFLUENT else _in_headers(headers)
    return compute.if_else(compute.is_valid(values), found, pa.scalar(None, pa.int64()))


def bodies_of(framing: str, values: pa.Array) -> pa.Array:
    """Return values without their frames."""
    return without(values, HEAD_BYTES) if framing == CONFLUENT else values


def without(values: pa.Array, size: int) -> pa.Array:
    """Return values without their first bytes."""
    return compute.binary_slice(values, size, INT32_MAX)  # without an end, pyarrow 26 counts past the largest number


def _in_frames(values: pa.Array) -> pa.Array:
    heads = compute.binary_slice(values, 0, HEAD_BYTES).dictionary_encode()
    if isinstance(heads, pa.ChunkedArray):
        heads = heads.combine_chunks()
    known = [
        int.from_bytes(head[1:], "big") if len(head) == HEAD_BYTES and head[:1] == MAGIC else None
        for head in heads.dictionary.to_pylist()
    ]
    return pa.array(known, pa.int64()).take(heads.indices)


def _in_headers(headers: pa.Array) -> pa.Array:
    rows, found = len(headers), headers.flatten()
    if not len(found):
        return pa.nulls(rows, pa.int64())
    owners = compute.list_parent_indices(headers)
    mine = compute.equal(found.field(0), HEADER)
    owners, texts = owners.filter(mine), found.field(1).filter(mine)
    ids: list[int | None] = [None] * rows
    for owner, text in zip(owners.to_pylist(), texts.to_pylist(), strict=True):
        ids[owner] = _number(text)
    return pa.array(ids, pa.int64())


def _number(text: bytes | None) -> int | None:
    if text is None or not text.isdigit() or len(text) > 10 or int(text) > ID_MAX:
        return None
    return int(text)
