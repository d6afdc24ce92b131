"""Timed messages under measurement: due times, lateness, windows, and what the page shows."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

import numpy as np
import pytest

from bench import timed
from bench.measures import Results
from bench.page import markdown, named
from bench.percentiles import latencies_within
from bench.targets import TARGETS, reached
from bench.timed_client import Lateness, due_times


def options(**given: float) -> argparse.Namespace:
    return argparse.Namespace(**{"at": 0.0, "ahead_s": 3600, "spread_s": 0, **given})


def test_due_times_are_whole_seconds_of_the_hour_that_was_asked_for() -> None:
    times = due_times(options(spread_s=3600), 1000.5)
    assert times is not None
    seconds = [time.timestamp() for time in times]
    assert all(second == int(second) for second in seconds)
    assert 4600 <= min(seconds) < 4700
    assert 8100 < max(seconds) < 8200


def test_all_records_of_a_moment_have_its_time_and_plain_ones_have_none() -> None:
    assert due_times(options(at=5000.0), 1000.0) == [datetime.fromtimestamp(5000, UTC)]
    assert due_times(options(), 1000.0) is None


def test_lateness_counts_from_due_times_and_finds_early_records() -> None:
    late = Lateness()
    late.add(np.arange(0, 99_000, 1000), 99_000)
    late.add(np.array([99_001]), 99_000)
    found = late.found()
    assert (found["records"], found["early"]) == (100, 1)
    assert (found["p50_ms"], found["p99_ms"], found["max_ms"]) == (50.0, 99.0, 99.0)


def test_only_records_of_the_time_of_a_delivery_count() -> None:
    latencies = [(9.9, 1.0), (10.0, 3.0), (10.5, 2.0), (11.0, 4.0)]
    assert latencies_within(latencies, 10.0, 11.0) == [2.0, 3.0]
    assert latencies_within(latencies, 0.0, 10.0) == [1.0]


@pytest.mark.parametrize(
    ("rows", "found"), [("P4", {"P4"}), ("P1 to P3", {"P1", "P2", "P3"}), ("P9 to P11", {"P9", "P10", "P11"})]
)
def test_a_docstring_names_its_rows(rows: str, found: set[str]) -> None:
    assert named(rows) == found


def filled() -> Results:
    """A value of every row that has a target, each of which is met."""
    found = Results("2 cores", "2026-11-24", "abc", 0.1)
    for target in (target for target in TARGETS if target.row.startswith("D")):
        if target.to is not None and found.of(target.row, target.what, target.to) is None:
            found.add(target.row, target.what, target.to, "records/s", 100.0)
        value = target.wanted * (100.0 if target.to is not None else 1.0)
        found.add(target.row, target.what, target.subject, "records/s", value)
    return found


def test_every_target_of_timed_messages_is_on_the_page() -> None:
    wanted = [target for target in TARGETS if target.row.startswith("D")]
    assert {target.row for target in wanted} == {"D1", "D2", "D3", "D4", "D5"}
    assert [each.target for each in reached(filled(), TARGETS)] == wanted
    page = markdown(filled(), [])
    assert all(f"| {target.row} | {target.name()} |" in page for target in wanted)
    assert "| **no** |" not in page
    assert "**D1 to D6**: timed messages" in page


def test_one_row_of_several_is_explained_on_the_page() -> None:
    found = Results("2 cores", "2026-11-24", "abc", 0.1)
    found.add("D4", timed.EARLY, timed.OURS, "", 0.0)
    assert "**D1 to D6**: timed messages" in markdown(found, [])
    assert "**T1 to T4**" not in markdown(found, [])
