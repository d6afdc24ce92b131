"""A stream of requests: numbered ones are answered when their answers are known, others in their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pytest

from ledgermq.errors import CorruptFrame, InvalidRequest, LedgerMQError
from ledgermq_broker.admission.request_window import WINDOW_REQUESTS, answered
from tests.virtual_time import virtual

Request = tuple[int, float]
"""Its number, and the seconds until its answer is known. A negative time: `admit` raises."""


async def _admit(request: Request) -> Request:
    if request[1] < 0:
        raise CorruptFrame("broken")
    return request


async def _answer(request: Request) -> float:
    await asyncio.sleep(request[1])
    return request[1]


async def _coming(requests: Sequence[Request]) -> AsyncIterator[Request]:
    for request in requests:
        yield request


async def _taken(requests: AsyncIterator[Request]) -> tuple[list[tuple[int, float, float]], LedgerMQError | None]:
    """Return each answer: number, content and time; and the error at the end."""
    found, loop = [], asyncio.get_running_loop()
    begun_s = loop.time()
    try:
        async with aclosing(answered(requests, _admit, _answer, lambda request: request[0], "test")) as answers:
            async for number, answer in answers:
                found.append((number, answer, loop.time() - begun_s))
    except LedgerMQError as error:
        return found, error
    return found, None


@virtual
async def test_a_numbered_request_waits_for_no_other_one() -> None:
    found, error = await _taken(_coming([(7, 3.0), (8, 1.0), (9, 2.0)]))

    assert found == [(8, 1.0, 1.0), (9, 2.0, 2.0), (7, 3.0, 3.0)]
    assert error is None


@virtual
async def test_requests_without_numbers_are_answered_in_their_order() -> None:
    found, _ = await _taken(_coming([(0, 3.0), (0, 1.0)]))

    assert [answer for _, answer, _ in found] == [3.0, 1.0]


@virtual
async def test_a_stream_without_requests_ends() -> None:
    assert await _taken(_coming([])) == ([], None)


@pytest.mark.parametrize("number", [0, 5])
@virtual
async def test_an_error_comes_behind_the_answers_to_what_came_before(number: int) -> None:
    found, error = await _taken(_coming([(number, 2.0), (number and number + 1, -1.0)]))

    assert [answer for _, answer, _ in found] == [2.0]
    assert isinstance(error, CorruptFrame)


@pytest.mark.parametrize("number", [0, 1])
@virtual
async def test_numbers_that_do_not_rise_end_the_stream(number: int) -> None:
    found, error = await _taken(_coming([(1, 2.0), (number, 1.0), (2, 1.0)]))

    assert [number for number, _, _ in found] == [1]
    assert isinstance(error, InvalidRequest)


@pytest.mark.parametrize("number", [0, 1])
@virtual
async def test_a_bounded_number_of_requests_is_taken_in(number: int) -> None:
    taken = 0

    async def endless() -> AsyncIterator[Request]:
        nonlocal taken
        while True:
            taken += 1
            yield number and taken, 1000.0

    reading = asyncio.create_task(_taken(endless()))
    await asyncio.sleep(10)
    assert WINDOW_REQUESTS <= taken <= WINDOW_REQUESTS + 3
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "test" and not task.cancelling()]
