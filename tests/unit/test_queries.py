"""The queries of one request are answered side by side."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import InvalidRequest
from ledgermq_broker.admission.queries import PARALLEL_QUERIES, QUERIES_MAX, side_by_side


async def test_answers_come_in_the_order_of_the_queries_and_few_are_under_way() -> None:
    under_way = most = 0

    async def ask(query: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return -query

    assert await side_by_side(ask, range(100)) == [-query for query in range(100)]
    assert most == PARALLEL_QUERIES
    with pytest.raises(InvalidRequest, match="at most"):
        await side_by_side(ask, range(QUERIES_MAX + 1))
