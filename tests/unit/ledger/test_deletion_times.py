"""At which times retention takes effect: cron expressions, time zones, and what is judged as of the
last time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.errors import InvalidConfig
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.topics.retention import log_start_by_retention
from ledgermq_ledger.topics.deletion_times import check_cron, check_zone, last_time_ms
from ledgermq_ledger.topics.settings import TopicSettings, parse_settings


def ms(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1000


def last(cron: str, now_ms: int, zone: str = "UTC") -> str:
    return datetime.fromtimestamp(last_time_ms(check_cron(cron), check_zone(zone), now_ms) / 1000, UTC).isoformat()[:16]


def test_the_last_time_up_to_now() -> None:
    assert last("0 6,18 * * *", ms("2026-03-05T17:59:59")) == "2026-03-05T06:00"
    assert last("0 6,18 * * *", ms("2026-03-05T18:00:00")) == "2026-03-05T18:00"
    assert last("0 0 6,18 * * ?", ms("2026-03-05T05:00")) == "2026-03-04T18:00"
    assert last("0 30 4 ? * MON-FRI", ms("2026-03-08T12:00")) == "2026-03-06T04:30"
    assert last("0 0 29 2 *", ms("2026-03-05T00:00")) == "2024-02-29T00:00"
    assert last("0 4 * * *", ms("2026-07-01T12:00"), "Europe/Berlin") == "2026-07-01T02:00"
    assert last("0 4 * * *", ms("2026-01-15T12:00"), "Europe/Berlin") == "2026-01-15T03:00"


def test_when_clocks_change_a_time_happens_once() -> None:
    """In Berlin 02:30 is skipped on 2026-03-29 and comes twice on 2026-10-25."""
    spring = {
        last_time_ms("30 2 * * *", "Europe/Berlin", ms("2026-03-29T00:00") + minutes * 60_000)
        for minutes in range(0, 1440, 10)
    }
    autumn = {
        last_time_ms("30 2 * * *", "Europe/Berlin", ms("2026-10-25T00:00") + minutes * 60_000)
        for minutes in range(0, 1320, 10)
    }
    assert len([at for at in spring if at >= ms("2026-03-29T00:00")]) == 1
    assert len([at for at in autumn if at >= ms("2026-10-25T00:00")]) == 1


@given(
    st.sampled_from(["0 6,18 * * *", "*/7 * * * *", "0 0 3 ? * SUN", "15 1 1 * *", "30 2 * * *"]),
    st.integers(0, 10**6),
    st.data(),
)
def test_it_never_goes_back(cron: str, minute: int, data: st.DataObject) -> None:
    zone = data.draw(st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"]))
    now_ms = ms("2025-01-01T00:00") + minute * 60_000
    later_ms = now_ms + data.draw(st.integers(0, 3 * 86_400_000))
    assert last_time_ms(cron, zone, now_ms) <= now_ms
    assert last_time_ms(cron, zone, now_ms) <= last_time_ms(cron, zone, later_ms)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "0 0 31 2 *",
        "0 0 0 ? * 2",
        "0 0 ? * ?",
        "? * * * *",
        "0 0 * * MON#9",
        "é * * * *",
        "0" * 190,
    ],
)
def test_texts_that_are_no_expression(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"delete\.when"):
        parse_settings({"delete.when": text})


@pytest.mark.parametrize("name", ["", "Nowhere/City", "/etc/passwd", "../UTC", "UTC\0", "x" * 300])
def test_names_that_are_no_time_zone(name: str) -> None:
    with pytest.raises(InvalidConfig, match="timezone"):
        parse_settings({"delete.when.timezone": name})


FILES = [
    fmt.ParquetFile(
        first_offset=10 * i,
        last_offset=10 * i + 9,
        size=100,
        timestamp_max_us=day_ms * 1000,
        committed_ms=day_ms + 3_600_000,
    )
    for i, day_ms in ((i, ms(f"2026-03-0{i}T00:00")) for i in range(1, 7))
]
DAY_MS = 86_400_000


def start(settings: TopicSettings, now: str, altered_ms: int = 0) -> int:
    return log_start_by_retention(FILES, settings, ms(now), altered_ms)


def test_between_two_times_nothing_changes() -> None:
    settings = TopicSettings(retention_ms=2 * DAY_MS, delete_when="0 6 * * *")
    assert start(settings, "2026-03-05T05:59") == 30, "as of the fourth at six: older than the second at six"
    assert start(settings, "2026-03-05T06:00") == start(settings, "2026-03-06T05:59") == 40
    assert start(TopicSettings(retention_ms=2 * DAY_MS), "2026-03-06T05:59") == 50


def test_bytes_are_those_that_there_were_then() -> None:
    settings = TopicSettings(retention_bytes=200, delete_when="0 6 * * *")
    assert start(settings, "2026-03-05T05:59") == 30, "four files at that time"
    assert start(settings, "2026-03-05T06:00") == 40


def test_a_time_before_the_topic_was_altered_counts_for_nothing() -> None:
    settings = TopicSettings(retention_ms=2 * DAY_MS, delete_when="0 6 * * *")
    altered_ms = ms("2026-03-05T10:00")
    assert start(settings, "2026-03-05T12:00", altered_ms) == 0
    assert start(settings, "2026-03-06T06:00", altered_ms) == 50


def test_processes_that_slept_make_up_for_a_time() -> None:
    settings = TopicSettings(retention_ms=2 * DAY_MS, delete_when="0 6 4 3 *")
    assert start(settings, "2026-05-01T00:00") == 30
    assert timedelta(milliseconds=settings.retention_ms) == timedelta(days=2)
