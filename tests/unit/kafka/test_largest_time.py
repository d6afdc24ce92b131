"""The record with the largest timestamp is found by asking for the first one at or after a time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

import pytest

from ledgermq_broker.kafka.handlers.offsets import NOTHING, TIME_MS_MAX, Record, with_largest_time


class Log:
    """Times of records; None: a record has none."""

    def __init__(self, times: Sequence[int | None]) -> None:
        self.times = list(times)
        self.questions = 0

    @property
    def newest_ms(self) -> int:
        last = self.times[-1]
        return NOTHING if last is None else last

    async def first_at(self, time_ms: int) -> Record | None:
        self.questions += 1
        for offset, found in enumerate(self.times):
            if found is not None and found >= time_ms:
                return Record(offset, found)
        return None


async def test_every_order_of_times() -> None:
    rng = random.Random(4711)
    for _ in range(2000):
        span = rng.choice((1, 3, 1000, 2**40))
        times = [rng.choice((None, rng.randrange(-span, span + 1))) for _ in range(rng.randrange(1, 9))]
        log = Log(times)
        known = [time for time in times if time is not None]
        found = await with_largest_time(log.first_at, log.newest_ms)
        wanted = Record(times.index(max(known)), max(known)) if known else None
        assert found == wanted, times
        assert log.questions <= 3 + 2 * 42


@pytest.mark.parametrize("times", [[5], [1, 2, 3], [7, 7, 7], list(range(1000))])
async def test_where_the_newest_record_has_the_largest_time_few_questions_are_asked(times: list[int]) -> None:
    log = Log(times)
    assert await with_largest_time(log.first_at, log.newest_ms) == Record(times.index(max(times)), max(times))
    assert log.questions == 3


async def test_times_at_the_bounds_are_found() -> None:
    log = Log([TIME_MS_MAX, -TIME_MS_MAX, None])
    assert await with_largest_time(log.first_at, log.newest_ms) == Record(0, TIME_MS_MAX)
    log = Log([-TIME_MS_MAX])
    assert await with_largest_time(log.first_at, log.newest_ms) == Record(0, -TIME_MS_MAX)


async def test_it_ends_while_records_are_written_and_deleted() -> None:
    rng = random.Random(4711)
    for _ in range(300):
        log = Log([rng.randrange(1000) for _ in range(5)])

        async def first_at(
            time_ms: int, log: Log = log, ask: Callable[[int], Awaitable[Record | None]] = log.first_at
        ) -> Record | None:
            if log.questions < 500:
                log.times.append(max(time or 0 for time in log.times) + rng.randrange(3))
            if rng.random() < 0.1:
                log.times[0] = None
            return await ask(time_ms)

        found = await with_largest_time(first_at, log.newest_ms)
        assert found is not None
        assert log.questions < 100
