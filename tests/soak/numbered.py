"""Records that say where they come from, and runs of them: so that hours of records compare
exactly, in little memory.

A value begins with its *counter*, which its producer draws for the partition, 0, 1, 2 …, and the
partition; the rest follows from the counter. Where a producer's batches all land, offset and
counter go in step: a *run* is (first offset, last offset, counter − offset). Each witness
(producer, stream, plain reader) writes down runs; they agree on a record if its runs have the same
shift there.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tests.judges.nothing_doubled import overlaps

Partition = tuple[str, int]
TIMED, JOBS = "timed", "left"
"""The topics of timed messages and of a queue group, which make no runs."""
HEAD_BYTES = 12
"""Counter and partition, big endian."""


class Run(NamedTuple):
    first: int
    last: int
    shift: int


def values(partition: int, counter: int, count: int, size: int) -> pa.Array:
    """Those of counters `counter` … `counter + count - 1`, of `size` bytes each; the filler
    compresses as text does.
    """
    rows = np.empty((count, size), dtype=np.uint8)
    numbers = np.arange(counter, counter + count, dtype=">u8")
    rows[:, :8] = numbers.view(np.uint8).reshape(count, 8)
    rows[:, 8:HEAD_BYTES] = np.frombuffer(partition.to_bytes(4, "big"), dtype=np.uint8)
    filler = np.resize(np.arange(32, 96, dtype=np.uint8), size - HEAD_BYTES)
    rows[:, HEAD_BYTES:] = filler ^ rows[:, 7:8]
    offsets = pa.py_buffer(np.arange(0, (count + 1) * size, size, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(rows)])


def heads(column: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """(counters, partitions) of values that `values` made."""
    import pyarrow.compute as pc

    cut = pc.binary_slice(column, 0, HEAD_BYTES)
    whole = cut.combine_chunks() if isinstance(cut, pa.ChunkedArray) else cut
    data = b"".join(value.as_py() for value in whole) if whole.null_count else _joined(whole)
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, HEAD_BYTES)
    counters = np.ascontiguousarray(rows[:, :8]).view(">u8").ravel().astype(np.int64)
    return counters, np.ascontiguousarray(rows[:, 8:]).view(">u4").ravel().astype(np.int64)


def _joined(column: pa.Array) -> memoryview:
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]


def runs_of(offsets: np.ndarray, counters: np.ndarray) -> list[Run]:
    """In the order of the rows: a run ends where offsets are not dense or the shift changes."""
    if not len(offsets):
        return []
    shifts = counters - offsets
    cuts = np.flatnonzero((np.diff(offsets) != 1) | (np.diff(shifts) != 0)) + 1
    begins, ends = np.concatenate(([0], cuts)), np.concatenate((cuts, [len(offsets)]))
    return [Run(int(offsets[b]), int(offsets[e - 1]), int(shifts[b])) for b, e in zip(begins, ends, strict=True)]


def joined(runs: Iterable[Run]) -> list[Run]:
    """Ascending, neighbours of one shift joined.

    Raises ValueError where two runs overlap: an offset is there twice.
    """
    found: list[Run] = []
    for run in sorted(runs):
        if found and run.first <= found[-1].last:
            raise ValueError(
                f"offsets {run.first} to {min(run.last, found[-1].last)} are there twice: {found[-1]} and {run}"
            )
        if found and found[-1].last + 1 == run.first and found[-1].shift == run.shift:
            found[-1] = Run(found[-1].first, run.last, run.shift)
        else:
            found.append(run)
    return found


def gaps(runs: list[Run]) -> list[tuple[int, int]]:
    """Offsets that are missing between `joined` runs: first and last."""
    return [(a.last + 1, b.first - 1) for a, b in itertools.pairwise(runs) if b.first != a.last + 1]


def differences(part: list[Run], whole: list[Run]) -> list[str]:
    """Where records of `part` are missing in `whole`, or others; both are `joined`."""
    firsts = [run.first for run in whole]
    found = []
    for run in part:
        at = run.first
        while at <= run.last:
            place = bisect_right(firsts, at) - 1
            there = whole[place] if place >= 0 else None
            if there is None or at > there.last:
                upto = min(run.last, firsts[place + 1] - 1 if place + 1 < len(firsts) else run.last)
                found.append(f"offsets {at} to {upto} are missing")
                at = upto + 1
                continue
            upto = min(run.last, there.last)
            if there.shift != run.shift:
                found.append(f"offset {at} has counter {at + there.shift}, not {at + run.shift}")
            at = upto + 1
    return found


def counters_doubled(runs: list[Run]) -> list[str]:
    """Records that are there at two offsets."""
    both = overlaps((run.first + run.shift, run.last + run.shift) for run in runs)
    return [f"counters {first} to {last} are there twice" for first, last in both]
