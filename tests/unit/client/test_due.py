"""Due times: what the arguments of `send` mean, and which are refused."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ledgermq.client.messages.broker_clock import BrokerClock
from ledgermq.client.messages.due import AfterDelay, due_of
from ledgermq.durations import parse_duration_ms
from ledgermq.errors import InvalidRecord
from ledgermq.sources import Sources
from tests.virtual_time import run_virtual

LOCAL_US = 1_700_000_000_000_000
HOUR_US = 3_600_000_000
NOW_US = LOCAL_US + HOUR_US
"""The brokers' clock is an hour ahead of this machine's."""
DAY = timedelta(days=1)
LEVELS_S = {
    1: 1,
    2: 5,
    3: 10,
    4: 30,
    5: 60,
    6: 120,
    7: 180,
    8: 240,
    9: 300,
    10: 360,
    11: 420,
    12: 480,
    13: 540,
    14: 600,
    15: 1_200,
    16: 1_800,
    17: 3_600,
    18: 7_200,
}
"""The table of docs/delayed.md, in seconds: literals, for the test must not read what it checks."""


def due(delay: Any = None, deliver_at: Any = None, level: Any = None, timestamp: Any = None) -> int | None:
    async def by_clocks() -> int | None:
        clock = BrokerClock(Sources(lambda: LOCAL_US, random.Random(1)))
        clock.learn(NOW_US, asyncio.get_running_loop().time())
        return due_of(delay, deliver_at, level, timestamp, clock)

    return run_virtual(by_clocks)


def broker_time(after: timedelta) -> datetime:
    return datetime.fromtimestamp(NOW_US / 1e6, UTC) + after


def test_a_record_without_a_delay_has_no_due_time() -> None:
    assert due() is None
    assert due(timestamp=5) is None


@pytest.mark.parametrize(
    ("delay", "us"), [(0, 0), (1.5, 1_500_000), (timedelta(minutes=2), 120_000_000), (366 * DAY, 366 * 24 * HOUR_US)]
)
def test_a_delay_is_added_to_this_machines_clock_to_be_corrected(delay: Any, us: int) -> None:
    found = due(delay)
    assert (found, type(found)) == (LOCAL_US + us, AfterDelay)


@pytest.mark.parametrize(("level", "seconds"), LEVELS_S.items())
def test_a_level_is_the_delay_that_its_page_promises(level: int, seconds: int) -> None:
    found = due(level=level)
    assert (found, type(found)) == (LOCAL_US + 1_000_000 * seconds, AfterDelay)


def test_the_page_has_these_levels() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "delayed.md").read_text(encoding="utf-8")
    [numbers] = [row for row in page.splitlines() if row.startswith("| level | 1 |")]
    [delays] = [row for row in page.splitlines() if row.startswith("| delay | 1s |")]
    texts = [text.strip() for text in delays.split("|")[2:-1]]
    assert [int(number) for number in numbers.split("|")[2:-1]] == list(LEVELS_S)
    assert [parse_duration_ms(text, "delay") for text in texts] == [1000 * seconds for seconds in LEVELS_S.values()]


@pytest.mark.parametrize("level", [0, 19])
def test_there_are_18_levels(level: int) -> None:
    with pytest.raises(InvalidRecord, match="delay_level must be 1 to 18"):
        due(level=level)


def test_a_time_is_taken_as_it_is_and_may_be_past() -> None:
    found = due(deliver_at=datetime(2023, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))))
    assert (found, type(found)) == (1_672_531_200_000_000, int)


def test_the_horizon_of_a_time_counts_from_the_brokers_clock() -> None:
    assert due(deliver_at=broker_time(366 * DAY)) == NOW_US + 366 * 24 * HOUR_US
    with pytest.raises(InvalidRecord, match="more than 366 days ahead"):
        due(deliver_at=broker_time(366 * DAY + timedelta(seconds=1)))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"delay": 1, "level": 1}, "delay and delay_level are given"),
        ({"delay": 1, "deliver_at": broker_time(DAY)}, "delay and deliver_at are given"),
        ({"delay": 1, "timestamp": 5}, "delay and timestamp are given"),
        ({"delay": -1}, "between 0 and 366 days"),
        ({"delay": timedelta(days=366, seconds=1)}, "between 0 and 366 days"),
        ({"delay": float("nan")}, "seconds or a timedelta"),
        ({"delay": float("inf")}, "seconds or a timedelta"),
        ({"delay": True}, "seconds or a timedelta"),
        ({"delay": "10s"}, "seconds or a timedelta"),
        ({"deliver_at": NOW_US}, "datetime with a time zone, not int"),
        ({"deliver_at": datetime(2027, 1, 1)}, "no time zone"),  # noqa: DTZ001  # that it has none is the point
        ({"deliver_at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, "before the year 1"),
        ({"level": 0}, "must be 1 to 18, not 0: 1 = 1s, 2 = 5s"),
        ({"level": 19}, "18 = 2h"),
        ({"level": True}, "must be 1 to 18"),
        ({"level": 1.0}, "must be 1 to 18"),
    ],
)
def test_what_is_no_due_time_is_refused_with_what_is_allowed(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRecord, match=says):
        due(**given)
