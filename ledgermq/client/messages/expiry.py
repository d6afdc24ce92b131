"""When a message expires: from then on consumers skip it.

A producer writes the time into a header (`send(…, ttl=…)`). A topic may set a time to live for messages
without one (`message.ttl.ms`), and a longest one for all (`message.ttl.ms.max`). Both count from the
record's timestamp. The consumer judges by its own clock.

    expires = the smaller of  header, or else timestamp + message.ttl.ms
                         and  timestamp + message.ttl.ms.max

Invariant: a batch without the header, of a topic without these settings, costs one look at whether it
has headers at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ledgermq.errors import InvalidRecord
from ledgermq.protocol.batches.record_rules import rows_of_headers
from ledgermq.protocol.batches.records import TIMESTAMP_MAX_US

EXPIRES_MS = "ledgermq.expires-ms"
"""Header with the time from which on a message is skipped: milliseconds since the epoch, as text."""
NEVER_US = 2**62
MS_DIGITS_MAX = 15
"""Longer numbers lie beyond the year 9999. Such a header is ignored, like any other that is no number."""
TTL_MS_MAX = 2**48
"""A longer time to live of a topic counts as this one, some 9,000 years."""

_NAME = re.compile(re.escape(EXPIRES_MS.encode()))

Headers = Iterable[tuple[str, bytes | None]]


class TopicTtl(NamedTuple):
    """The settings in force of a topic, in milliseconds. `default_ms`: for messages without their own time;
    `max_ms`: for all. None: not set.
    """

    default_ms: int | None
    max_ms: int | None

    @property
    def span_us(self) -> int | None:
        """Return the time to live of messages without their own, in microseconds."""
        spans_ms = [ms for ms in self if ms is not None]
        return 1000 * min(*spans_ms, TTL_MS_MAX) if spans_ms else None

    def expires_us(self, own_us: int | None, timestamp_us: int | None) -> int | None:
        """Return when a message expires, in microseconds since the epoch; None: never. `own_us`: by its header."""
        if timestamp_us is None:
            return own_us
        if own_us is None:
            return None if self.span_us is None else timestamp_us + self.span_us
        return own_us if self.max_ms is None else min(own_us, timestamp_us + 1000 * min(self.max_ms, TTL_MS_MAX))


def ttl_in_force(default_ms: int, max_ms: int) -> TopicTtl | None:
    """Return what brokers describe, where 0 stands for not set; None: neither is set."""
    return TopicTtl(default_ms or None, max_ms or None) if default_ms or max_ms else None


TtlOf = Callable[[str], TopicTtl | None]
"""Returns the settings in force of a topic."""


# -- producing


def with_ttl(
    headers: Sequence[tuple[str, bytes | None]] | None, ttl: float | timedelta, timestamp_us: int
) -> list[tuple[str, bytes | None]]:
    """Return headers with the time at which a record expires. `ttl`: seconds, or a timedelta, from the
    record's timestamp on. Raises InvalidRecord.
    """
    if headers and any(name == EXPIRES_MS for name, _ in headers):
        raise InvalidRecord(f"the record has both a ttl and the header {EXPIRES_MS}: leave out one of them")
    expires_us = timestamp_us + ttl_us(ttl)
    if expires_us > TIMESTAMP_MAX_US:
        raise InvalidRecord(f"ttl {ttl!r} ends after the year 9999: give a shorter one, or none")
    return [*(headers or ()), header_of(expires_us)]


def ttl_us(ttl: Any) -> int:
    """Return a time to live in microseconds. Raises InvalidRecord."""
    if isinstance(ttl, timedelta):
        us: float = ttl // timedelta(microseconds=1)
    elif isinstance(ttl, int | float) and not isinstance(ttl, bool):
        us = ttl * 1e6
    else:
        raise InvalidRecord(f"ttl must be seconds or a timedelta, not {ttl!r}")
    if not 1 <= us <= 2 * TIMESTAMP_MAX_US:
        raise InvalidRecord(f"ttl must be a time above 0 that ends before the year 9999, not {ttl!r}")
    return int(us)


def header_of(expires_us: int) -> tuple[str, bytes]:
    """Return the header; part of a millisecond counts as a whole one."""
    return EXPIRES_MS, str(-(-expires_us // 1000)).encode()


# -- reading


def own_expiry_us(headers: Headers) -> int | None:
    """Return the time in the headers; the earliest, if there are several. None: there is none."""
    found = [us for name, value in headers if name == EXPIRES_MS and (us := _parsed_us(value)) is not None]
    return min(found, default=None)


def _parsed_us(value: bytes | None) -> int | None:
    if value is None or len(value) > MS_DIGITS_MAX or not value.isdigit():
        return None
    return 1000 * int(value)


def expiries_of(rows: pa.RecordBatch, ttl: TopicTtl | None) -> pa.Array | None:
    """Return for each row when it expires, in microseconds since the epoch (int64; `NEVER_US`: never). None:
    no row ever expires.

    `rows`: a validated batch of the record schema.
    """
    headers = rows.column("headers")
    own = _own_expiries(headers) if headers.null_count < len(headers) else {}
    if not own:
        span_us = None if ttl is None else ttl.span_us
        if span_us is None:
            return None
        return pc.fill_null(pc.add(rows.column("timestamp").cast(pa.int64()), span_us), NEVER_US)
    if ttl is None:
        times: list[int | None] = [None] * rows.num_rows
        for row, us in own.items():
            times[row] = us
    else:
        timestamps = rows.column("timestamp").cast(pa.int64()).to_pylist()
        times = [ttl.expires_us(own.get(row), timestamp_us) for row, timestamp_us in enumerate(timestamps)]
    return pc.fill_null(pa.array(times, pa.int64()), NEVER_US)


def _own_expiries(headers: pa.ListArray) -> dict[int, int]:
    """Return the times in headers, by row. Only rows with the header are looked at one by one."""
    names = headers.values.field("key").buffers()[2]  # the names of all headers, one after the other
    if names is None or _NAME.search(names) is None:
        return {}
    rows = rows_of_headers(headers)
    keys, values = pc.list_flatten(headers).flatten()
    chosen = pc.fill_null(pc.equal(keys, EXPIRES_MS), False)
    found: dict[int, int] = {}
    for row, value in zip(rows.filter(chosen).to_pylist(), values.filter(chosen).to_pylist(), strict=True):
        us = _parsed_us(value)
        if us is not None:
            found[row] = min(us, found.get(row, us))
    return found


class Expiry:
    """Judges messages one by one. `now_us`: the consumer's clock."""

    def __init__(self, ttl_of: TtlOf, now_us: Callable[[], int]) -> None:
        self.ttl_of = ttl_of
        self.now_us = now_us

    def expires_us(self, topic: str, headers: Headers, timestamp_us: int | None) -> int | None:
        """Return when a message expires; None: never."""
        ttl = self.ttl_of(topic)
        own_us = own_expiry_us(headers) if headers else None
        return own_us if ttl is None else ttl.expires_us(own_us, timestamp_us)

    def is_over(self, topic: str, headers: Headers, timestamp_us: int | None) -> bool:
        """Return whether a message has expired."""
        expires_us = self.expires_us(topic, headers, timestamp_us)
        return expires_us is not None and expires_us <= self.now_us()
