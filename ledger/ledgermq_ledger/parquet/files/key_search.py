"""Search the key column of a row group for one key: which rows have it, and how much was read for that.

Files of partitions and of versions (keyed topics) have the same columns, so both are searched by this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ledgermq.protocol.batches.records import FEW_ROWS_MAX
from ledgermq_ledger.parquet.files.columns import SCHEMA

_KEY = SCHEMA.get_field_index("key")


@dataclass(frozen=True, slots=True)
class KeyMatches:
    """What was searched: offsets from `first` up to, without, `end`. `offsets`: those of the records with the
    key, ascending. `read_bytes`: size of what was fetched and decoded.
    """

    first: int
    end: int
    offsets: Sequence[int] = ()
    read_bytes: int = 0


def may_hold_key(footer: pq.FileMetaData, number: int, key: bytes) -> bool:
    """Return False if the statistics of a row group say that it does not hold the key."""
    keys = footer.row_group(number).column(_KEY).statistics
    if keys is None:
        return True
    if keys.has_null_count and keys.null_count == footer.row_group(number).num_rows:
        return False
    return not keys.has_min_max or keys.min <= key <= keys.max


def key_bytes(footer: pq.FileMetaData, number: int) -> int:
    """Return the bytes of the key column of a row group, as they are stored."""
    return int(footer.row_group(number).column(_KEY).total_compressed_size)


def rows_with_key(keys: pa.Array | pa.ChunkedArray, key: bytes) -> list[int]:
    """Return the numbers of the rows that have the key, ascending."""
    if len(keys) <= FEW_ROWS_MAX:
        return [row for row, each in enumerate(keys.to_pylist()) if each == key]
    found: list[int] = pc.indices_nonzero(pc.equal(keys, pa.scalar(key, pa.binary()))).to_pylist()
    return found
