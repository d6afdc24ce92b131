"""Find the last offset of each key in the dirty part of a log, and the records that survive it.

Blocking; keys are compared as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class LatestOffsets:
    """`keys`: without duplicates, large binary; `offsets`: that of each key's last record, in the
    same order.
    """

    keys: pa.Array
    offsets: pa.Array

    def survivors(self, keys: pa.ChunkedArray, offsets: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return True for each record that has no later one of its key in the dirty part, and for
        each without a key.
        """
        compute: Any = pc
        place = compute.index_in(keys.cast(pa.large_binary()), value_set=self.keys, skip_nulls=True)
        last = compute.take(self.offsets, place)
        return compute.fill_null(compute.less_equal(last, offsets), True)


def latest_of(parts: Sequence[pa.Table]) -> LatestOffsets:
    """Return the last offset of each key. `parts`: columns key (binary) and offset (int64)."""
    schema = pa.schema([("key", pa.large_binary()), ("offset", pa.int64())])
    whole = (
        pa.concat_tables([part.select(["key", "offset"]).cast(schema) for part in parts])
        if parts
        else schema.empty_table()
    )
    known = whole.filter(pc.is_valid(whole.column("key")))
    last = known.group_by("key", use_threads=False).aggregate([("offset", "max")])
    return LatestOffsets(_one(last.column("key")), _one(last.column("offset_max")))


def _one(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
