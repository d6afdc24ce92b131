"""Answer the queries of one request side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ledgermq.errors import InvalidRequest

QUERIES_MAX = 10_000
PARALLEL_QUERIES = 16

A = TypeVar("A")
Q = TypeVar("Q")


async def side_by_side(ask: Callable[[Q], Awaitable[A]], queries: Sequence[Q]) -> list[A]:
    """Answer queries concurrently, with a bound; return the answers in the order of the queries."""
    if len(queries) > QUERIES_MAX:
        raise InvalidRequest(f"at most {QUERIES_MAX} partitions in one request, not {len(queries)}")
    answers: list[A] = []
    for first in range(0, len(queries), PARALLEL_QUERIES):
        answers += await asyncio.gather(*(ask(query) for query in queries[first : first + PARALLEL_QUERIES]))
    return answers
