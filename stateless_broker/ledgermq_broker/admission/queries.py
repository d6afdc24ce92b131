"""Answer the queries of one request side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ledgermq.errors import InvalidRequest

QUERIES_MAX = 10_000
PARALLEL_QUERIES = 16
KNOWN_AT_ONCE = 500
"""Queries that are answered without a turn for other work: two milliseconds."""

A = TypeVar("A")
Q = TypeVar("Q")


async def side_by_side(ask: Callable[[Q], Awaitable[A]], queries: Sequence[Q]) -> list[A]:
    """Answer queries concurrently, with a bound; return the answers in the order of the queries. Raises InvalidRequest
    for more than `QUERIES_MAX`.
    """
    check_count(queries)
    answers: list[A] = []
    for first in range(0, len(queries), PARALLEL_QUERIES):
        answers += await asyncio.gather(*(ask(query) for query in queries[first : first + PARALLEL_QUERIES]))
    return answers


async def known_first(
    known: Callable[[Q], A | None], ask: Callable[[Q], Awaitable[A]], queries: Sequence[Q]
) -> list[A]:
    """Answer queries as `side_by_side` does, but ask only where `known` returns None. What it returns needs no wait,
    and costs less than the task in which a query is asked.
    """
    check_count(queries)
    if len(queries) <= PARALLEL_QUERIES:
        return await side_by_side(ask, queries)
    found: list[A | None] = []
    for first in range(0, len(queries), KNOWN_AT_ONCE):
        found += [known(query) for query in queries[first : first + KNOWN_AT_ONCE]]
        await asyncio.sleep(0)
    left = [query for query, answer in zip(queries, found, strict=True) if answer is None]
    asked = iter(await side_by_side(ask, left))
    return [next(asked) if answer is None else answer for answer in found]


def check_count(queries: Sequence[object]) -> None:
    """Raise InvalidRequest for more queries than one request may have."""
    if len(queries) > QUERIES_MAX:
        raise InvalidRequest(f"at most {QUERIES_MAX} partitions in one request, not {len(queries)}")
