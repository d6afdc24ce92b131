"""The queries of one request are answered side by side."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import InvalidRequest
from ledgermq_broker.admission.queries import KNOWN_AT_ONCE, PARALLEL_QUERIES, QUERIES_MAX, known_first, side_by_side


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


async def test_what_is_known_is_not_asked() -> None:
    asked: list[int] = []

    async def ask(query: int) -> int:
        asked.append(query)
        await asyncio.sleep(0)
        return -query

    def known(query: int) -> int | None:
        return None if query % 5 == 0 else -query

    queries = range(2 * KNOWN_AT_ONCE + 7)
    assert await known_first(known, ask, queries) == [-query for query in queries]
    assert asked == list(queries)[::5]
    with pytest.raises(InvalidRequest, match="at most"):
        await known_first(known, ask, range(QUERIES_MAX + 1))


async def test_answers_that_are_known_leave_turns_to_other_work() -> None:
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def ask(query: int) -> int:
        raise AssertionError("all are known")

    working = asyncio.create_task(work())
    await known_first(lambda query: query, ask, range(QUERIES_MAX))
    working.cancel()
    assert turns >= QUERIES_MAX // KNOWN_AT_ONCE
