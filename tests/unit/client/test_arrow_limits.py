"""Arrow data whose rows are larger than they look: views, categories and 64-bit offsets.

Each case runs in a process of its own, because its mistake is a crash. The data repeats one text, or
pages of zeros that occupy nothing, so that gigabytes of rows need little memory.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ROWS = 65_536
TEXT_BYTES = 66_000
"""More than 4 GiB in all, where 32-bit offsets come round to valid ones."""
SMALLER_TEXT_BYTES = 34_000
"""More than 2 GiB in all."""
MEMORY_BYTES_MAX = 1_500_000_000

PROGRAM = """
import mmap, json, resource, struct, sys
import pyarrow as pa
from ledgermq.client.producing.arrow.rows import Pieces, conform
from ledgermq.errors import LedgerMQError
from ledgermq.protocol.batches.records import encode_batch

ROWS, TEXT_BYTES = {rows}, {text_bytes}
CASE = {case!r}

def views(kind, rows=ROWS, size=TEXT_BYTES):
    view = struct.pack("<i4sii", size, b"aaaa", 0, 0)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(view * rows), pa.py_buffer(b"a" * size)])

def zeros(kind, rows=ROWS, size=TEXT_BYTES):
    data = mmap.mmap(-1, rows * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    offsets = pa.array(range(0, (rows + 1) * size, size), pa.int64()).buffers()[1]
    return pa.Array.from_buffers(kind, rows, [None, offsets, pa.py_buffer(data)])

def categories(texts):
    return pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), texts)

def lists(names, values, kind=pa.list_):
    fields = [pa.field("key", names.type), pa.field("value", values.type)]
    pairs = pa.StructArray.from_arrays([names, values], fields=fields)
    offsets = pa.array(range(len(values) + 1), pa.int64() if kind is pa.large_list else pa.int32())
    made = pa.LargeListArray if kind is pa.large_list else pa.ListArray
    return made.from_arrays(offsets, pairs)

small = pa.repeat(pa.scalar("n"), ROWS)
CASES = {{
    "string_view": lambda: dict(value=views(pa.string_view())),
    "binary_view": lambda: dict(value=views(pa.binary_view())),
    "string_view key": lambda: dict(key=views(pa.string_view()), value=small),
    "string_view tag": lambda: dict(tag=views(pa.string_view()), value=small),
    "large_binary": lambda: dict(value=zeros(pa.large_binary())),
    "large_string": lambda: dict(value=zeros(pa.large_string())),
    "dictionary of string": lambda: dict(value=categories(pa.array(["a" * TEXT_BYTES]))),
    "dictionary of string_view": lambda: dict(value=categories(views(pa.string_view(), 1))),
    "a dictionary above 4 GiB": lambda: dict(
        value=pa.DictionaryArray.from_arrays(pa.array([0, ROWS - 1], pa.int32()), views(pa.string_view()))
    ),
    "headers of string_view": lambda: dict(value=small, headers=lists(small, views(pa.string_view()))),
    "headers of large_binary": lambda: dict(value=small, headers=lists(small, zeros(pa.large_binary()), pa.large_list)),
    "a map of string_view": lambda: dict(
        value=small,
        headers=pa.MapArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), small, views(pa.string_view())),
    ),
    "names of string_view": lambda: dict(value=small, headers=lists(views(pa.string_view()), small)),
    "run ends": lambda: dict(
        value=pa.RunEndEncodedArray.from_arrays(pa.array([ROWS], pa.int32()), pa.array(["a" * TEXT_BYTES]))
    ),
    "one large row": lambda: dict(value=views(pa.string_view(), 3, 2**30)),
    "a batch for conform": lambda: dict(value=views(pa.string_view())),
    "views of twenty bytes": lambda: dict(value=views(pa.string_view(), ROWS, 20)),
}}
table = pa.table(CASES[CASE]())
rows = size = 0
result = "rows"
try:
    if CASE == "a batch for conform":
        conform(table.to_batches()[0], 0)
    else:
        for piece in Pieces(table, 0):
            piece.rows.validate(full=True)
            rows += piece.rows.num_rows
            size = max(size, piece.rows.nbytes)
        if rows:
            encode_batch(piece.rows)
except LedgerMQError as error:
    result = f"{{type(error).__name__}}: {{error.message}}"
kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([result, rows, size, kilobytes * 1024]))
"""


def outcome(case: str, text_bytes: int = TEXT_BYTES) -> tuple[str, int, int]:
    program = PROGRAM.format(rows=ROWS, text_bytes=text_bytes, case=case)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result, rows, piece_bytes, memory_bytes = json.loads(done.stdout)
    assert memory_bytes < MEMORY_BYTES_MAX
    return result, rows, piece_bytes


@pytest.mark.slow
@pytest.mark.parametrize("case", ["string_view", "large_binary", "dictionary of string", "headers of string_view"])
def test_rows_of_more_than_four_gigabytes_come_in_pieces(case: str) -> None:
    result, rows, piece_bytes = outcome(case)
    assert (result, rows) == ("rows", ROWS)
    assert piece_bytes < 40_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "binary_view",
        "string_view key",
        "string_view tag",
        "large_string",
        "dictionary of string_view",
        "headers of large_binary",
        "a map of string_view",
        "names of string_view",
    ],
)
def test_rows_of_more_than_two_gigabytes_come_in_pieces(case: str) -> None:
    result, rows, piece_bytes = outcome(case, SMALLER_TEXT_BYTES)
    assert (result, rows) == ("rows", ROWS)
    assert piece_bytes < 40_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "result"),
    [
        ("run ends", "InvalidRecord: the column value has type run_end_encoded"),
        ("one large row", "MessageTooLarge: row 0 has 10737"),
        ("a batch for conform", "MessageTooLarge: the batch has 43"),
        ("views of twenty bytes", "rows"),
        ("a dictionary above 4 GiB", "rows"),
    ],
)
def test_one_process_survives(case: str, result: str) -> None:
    assert outcome(case)[0].startswith(result)
