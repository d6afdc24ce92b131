"""Waits between attempts: doubled up to a bound, never above it, never below the half."""

import asyncio
import random

from ledgermq.runtime.backoff import ASKED_MAX_S, Backoff, backoff_s, jittered_s
from ledgermq.sources import Sources
from tests.virtual_time import run_virtual, virtual_sources


def test_waits_double_up_to_the_bound_and_jitter_between_half_and_whole() -> None:
    chance = random.Random(1)
    for attempt, whole in enumerate([1.0, 2.0, 4.0, 5.0, 5.0]):
        waits = [backoff_s(attempt, 1.0, 5.0, chance) for _ in range(500)]
        assert whole / 2 <= min(waits) < 0.6 * whole
        assert 0.9 * whole < max(waits) <= whole


def test_the_thousandth_attempt_waits_as_long_as_the_bound_says() -> None:
    assert backoff_s(100_000, 0.05, 10.0, random.Random(1)) <= 10.0


def test_a_first_wait_above_the_bound_is_the_bound() -> None:
    assert max(Backoff(Sources(), 5.0, 1.0).next_s() for _ in range(50)) <= 1.0


def test_the_count_lasts_until_a_success() -> None:
    backoff = Backoff(virtual_sources(), 1.0, 64.0)
    waits = [backoff.next_s() for _ in range(4)]
    assert backoff.attempts == 4
    assert 4.0 <= waits[-1] <= 8.0
    backoff.reset()
    assert backoff.attempts == 0
    assert backoff.next_s() <= 1.0


def test_the_other_side_may_ask_for_a_longer_wait_up_to_a_minute() -> None:
    backoff = Backoff(Sources(), 0.1, 0.1)
    assert backoff.next_s(at_least_ms=2_000) == 2.0
    assert backoff.next_s(at_least_ms=3_600_000) == ASKED_MAX_S
    assert backoff.next_s(at_least_ms=1) >= 0.05


def test_the_same_seed_gives_the_same_waits() -> None:
    first, second = (Backoff(Sources(random=random.Random(7)), 1.0, 9.0) for _ in range(2))
    assert [first.next_s() for _ in range(9)] == [second.next_s() for _ in range(9)]
    assert jittered_s(1.0, random.Random(3)) == jittered_s(1.0, random.Random(3))


def test_a_pause_that_would_reach_the_deadline_is_not_begun() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(virtual_sources(), 1.0, 1.0)
        assert await backoff.pause()
        assert 0.5 <= loop.time() <= 1.0
        now = loop.time()
        assert not await backoff.pause(deadline=now + 0.4)
        assert not await backoff.pause(5_000, deadline=now + 5.0)
        assert loop.time() == now
        assert await backoff.pause(5_000, deadline=now + 5.1)
        assert loop.time() == now + 5.0

    run_virtual(main)
