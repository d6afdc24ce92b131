"""Filter functions, which operators install beside brokers: `FUNCTION('name')` in a filter calls one.

A function is an entry point of the group `ledgermq.filters`. It gets a `FilterMessage` and returns whether to
keep it:

    def vip(message: FilterMessage) -> bool:
        return message.headers.get("customer", b"").startswith(b"vip-")

It must depend on the message alone, because a message may be judged again, by another broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

import pyarrow as pa

GROUP = "ledgermq.filters"
"""Group of entry points that are filter functions."""


class FilterMessage(NamedTuple):
    """A message as a filter function sees it. Of several headers of one name, the last counts."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None]
    tag: str | None
    timestamp_us: int


FilterFunction = Callable[[FilterMessage], object]
"""Returns something true to keep the message."""


def installed() -> dict[str, EntryPoint]:
    """Return the functions that are installed in this environment, by name; none is loaded."""
    return {each.name: each for each in entry_points(group=GROUP)}


def messages_of(rows: pa.RecordBatch, first: int = 0) -> Iterator[FilterMessage]:
    """Return the messages of a validated batch, from this row on."""
    rows = rows.slice(first)
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    columns = (rows.column(name).to_pylist() for name in ("key", "value", "headers", "tag"))
    for key, value, headers, tag, timestamp_us in zip(*columns, times, strict=True):
        yield FilterMessage(key, value, _last(headers), tag, timestamp_us)


def _last(headers: list[dict[str, Any] | None] | None) -> dict[str, bytes | None]:
    return {pair["key"] or "": pair["value"] for pair in headers or () if pair is not None}
