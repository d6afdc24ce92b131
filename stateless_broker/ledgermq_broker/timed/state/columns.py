"""Read the values of Arrow's arrays of integers in place, without nulls and without a copy."""

from __future__ import annotations

import pyarrow as pa


def int64_view(array: pa.Int64Array) -> memoryview[int]:
    """Return the values of an array: for single reads and bisection."""
    return bytes_view(array, 8).cast("q")


def bytes_view(array: pa.Array, width: int) -> memoryview[int]:
    """Return the bytes of an array whose values take `width` bytes each, in the order of this machine."""
    assert not array.null_count
    if not len(array):
        return memoryview(b"")
    start = array.offset * width
    return memoryview(array.buffers()[1])[start : start + len(array) * width].cast("B")
