"""Encode the columns of a record batch as Kafka records, all rows at once with numpy and Arrow.

It costs a third of a millisecond for any batch, and a fraction of a microsecond for each row.
It pays from some hundred rows on. The format is drawn in `strict`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]
_Varints = tuple[npt.NDArray[np.uint8], Numbers]
"""A row of bytes for each number, and how many of them count."""

_BITS = 7
_MORE = 0x80
_NO_ATTRIBUTES = 1


def encode_columns(records: pa.RecordBatch, offset_deltas: Numbers, timestamp_deltas_ms: Numbers) -> memoryview:
    """Return the records of a Kafka batch, uncompressed, each with its length.

    `records`: of the record schema; its tag is left out. `offset_deltas`, `timestamp_deltas_ms`: one for each row.
    """
    keys, values = records.column("key"), records.column("value")
    key_bytes, value_bytes = _lengths(keys), _lengths(values)
    headers, header_bytes = _headers(records.column("headers"))
    key_length, value_length = _varints(key_bytes), _varints(value_bytes)
    timestamps, offsets = _varints(timestamp_deltas_ms), _varints(offset_deltas)
    content = np.maximum(key_bytes, 0) + np.maximum(value_bytes, 0) + header_bytes
    numbers = timestamps[1] + offsets[1] + key_length[1] + value_length[1]
    no_attributes = np.zeros((len(keys), 1), np.uint8), np.ones(len(keys), np.int64)
    head = _joined(_varints(_NO_ATTRIBUTES + numbers + content), no_attributes, timestamps, offsets, key_length)
    middle = _joined(value_length)
    return _content(
        pc.binary_join_element_wise(head, pc.fill_null(keys, b""), middle, pc.fill_null(values, b""), *headers, b"")
    )


def _headers(headers: pa.ListArray) -> tuple[tuple[pa.Array, ...], Numbers]:
    """Return what each row has for its headers, as arrays to be joined, and how many bytes that is."""
    if headers.null_count == len(headers):
        return (pa.repeat(pa.scalar(b"\0", pa.binary()), len(headers)),), np.ones(len(headers), np.int64)
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    names, values = pc.list_flatten(headers).flatten()
    names = pc.fill_null(names, "").cast(pa.binary())
    pairs = pc.binary_join_element_wise(
        _joined(_varints(_lengths(names))), names, _joined(_varints(_lengths(values))), pc.fill_null(values, b""), b""
    )
    up_to = _offsets(pairs)[np.concatenate(([0], np.cumsum(counts)))]
    rows = pa.BinaryArray.from_buffers(
        pa.binary(), len(headers), [None, pa.py_buffer((up_to - up_to[0]).astype(np.int32)), _content_buffer(pairs)]
    )
    announced = _varints(counts)
    return (_joined(announced), rows), announced[1] + np.diff(up_to)


def _lengths(column: pa.Array) -> Numbers:
    """Return the length of each value; -1: it is null."""
    lengths = pc.fill_null(pc.binary_length(column), -1)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def _varints(numbers: Numbers) -> _Varints:
    raw = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    widest = max(1, -(-int(raw.max(initial=0)).bit_length() // _BITS))
    lengths = np.ones(len(numbers), np.int64)
    for place in range(1, widest):
        lengths += raw >= np.uint64(1 << (_BITS * place))
    places = np.arange(widest)
    found = ((raw[:, None] >> (_BITS * places).astype(np.uint64)) & np.uint64(_MORE - 1)).astype(np.uint8)
    found |= np.where(places[None, :] < lengths[:, None] - 1, np.uint8(_MORE), np.uint8(0))
    return found, lengths


def _joined(*numbers: _Varints) -> pa.BinaryArray:
    """Return one value for each row: the bytes of its numbers, one after the other."""
    counts = [np.arange(found.shape[1])[None, :] < lengths[:, None] for found, lengths in numbers]
    data = np.hstack([found for found, _ in numbers])[np.hstack(counts)]
    offsets = np.concatenate(([0], np.cumsum(sum(lengths for _, lengths in numbers)))).astype(np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def _offsets(values: pa.BinaryArray) -> npt.NDArray[np.int32]:
    return np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]


def _content_buffer(values: pa.BinaryArray) -> pa.Buffer:
    offsets = _offsets(values)
    data = values.buffers()[2]
    return pa.py_buffer(b"") if data is None else data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _content(values: pa.BinaryArray) -> memoryview:
    return memoryview(_content_buffer(values)).cast("B")
