"""Filters: any text is a filter whose uniform text means the same, or a typed refusal. It judges a batch with
strange headers in a bounded time.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from ledgermq.filters.columns import VALUE_BYTES_MAX
from ledgermq.filters.filter import parse_filter
from tests.fuzz.surface import Surface, Untyped
from tests.worlds.batches import batch_of

SEEDS = [
    b"TagA || TagB",
    b"region IN ('eu', 'us') AND price > 5.25e1 OR NOT (vip) AND \"content-type\" = 'json'",
    b"a NOT BETWEEN -1 AND +2.5 AND b IS NOT NULL AND c <> TRUE AND a < b",
    b"a LIKE '%a_b!%%' ESCAPE '!' OR b CONTAINS 'x''y' OR c NOT STARTSWITH '' OR TAGS ENDSWITH 'z'",
    b"NOT NOT NOT ((((a = 1))))",
    "é = 'ü' OR \"\u2028\" = '\\'".encode(),
    b"a IN (" + b"1, " * 1000 + b"2)",
    b"a LIKE '" + b"%a_" * 80 + b"'",
    b"FUNCTION('a.b') AND price > 5 AND (vip OR a = 1)",
    b"(" * 4000,
    b"a = 1 OR " * 400 + b"a = 2",
]


@cache
def rows() -> pa.RecordBatch:
    """Few rows, and many."""
    values = [
        None,
        b"",
        b"1",
        b"-2.5e1",
        b"true",
        b"\xff",
        b"eu",
        b"a%b",
        b"a" * VALUE_BYTES_MAX,
        b"9" * 5000,
        "é\n".encode(),
    ]
    made: list[dict[str, object]] = [
        {"tag": tag, "headers": [{"key": key, "value": value} for key in ("a", "b", "price", None, "a")]}
        for value in values
        for tag in (None, "TagA", "z")
    ]
    return batch_of([*made, {"headers": None}, {"headers": []}])


def check_filter(data: bytes) -> None:
    found = parse_filter(data.decode("utf-8", "surrogateescape"))
    if found is None:
        return
    batch = rows()
    passes = found.passes(batch)
    again = parse_filter(found.text)
    if passes.null_count or len(passes) != len(batch):
        raise Untyped(f"{len(passes)} answers, {passes.null_count} of them null")
    if again is None or again.text != found.text or again.passes(batch) != passes or again.function != found.function:
        raise Untyped(f"{found.text!r} is not what it was made from")
    if found.passes(batch.slice(3, 5)).to_pylist() != passes.to_pylist()[3:8]:
        raise Untyped("a row is judged by the rows beside it")


def surfaces() -> list[Surface]:
    return [Surface("filter", SEEDS, check_filter, weight=0.3)]
