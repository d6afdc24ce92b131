"""Compute partitions of many keys at once: `partition_of_key` for a column, without Python code per
row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)


def partitions_of_keys(keys: pa.Array, partitions: int) -> npt.NDArray[np.int64]:
    """Return the partitions. `keys`: binary; the result for a null is meaningless.

    Keys of one length are hashed together.
    """
    count = len(keys)
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, keys.offset * 4).astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    lengths = np.diff(offsets)
    hashes = np.empty(count, np.uint32)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        hashes[rows] = _murmur2(data, offsets[:-1][rows], int(length))
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


def _murmur2(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.uint32]:
    """Hash as `ledgermq.client.settings.partitioner.murmur2`, column by column; uint32 wraps by itself."""
    h = np.full(len(starts), (_SEED ^ length) & 0xFFFFFFFF, np.uint32)
    whole = length & ~3
    for at in range(0, whole, 4):
        k = _word(data, starts + at, 4) * _M
        h = h * _M ^ (k ^ k >> np.uint32(24)) * _M
    if length & 3:
        h = (h ^ _word(data, starts + whole, length & 3)) * _M
    h = (h ^ h >> np.uint32(13)) * _M
    return h ^ h >> np.uint32(15)


def _word(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.uint32]:
    """Return `count` bytes from each start, little endian."""
    word = np.zeros(len(starts), np.uint32)
    for byte in range(count):
        word |= data[starts + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word
