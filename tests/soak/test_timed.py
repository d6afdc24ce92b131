"""The judge of a soak's timed messages, on handmade counters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.soak.numbered import TIMED, values
from tests.soak.timed import (
    PARTITIONS,
    Bits,
    Came,
    Seen,
    Sent,
    came_of,
    intervals,
    judge,
    judge_parquet,
    judge_waiting,
)

DUE_US = 1_000_000


def bits_of(counters: list[int]) -> Bits:
    """Of partition 0."""
    found = np.zeros((PARTITIONS, 20), bool)
    found[0, counters] = True
    return found


def sent(acknowledged: list[int], unknown: list[int]) -> Sent:
    return Sent(bits_of(acknowledged), bits_of(unknown))


def came(*counters: int, now_us: int = DUE_US) -> Came:
    """Each came in a fetch of its own."""
    seen = [Seen() for _ in range(PARTITIONS)]
    for counter in counters:
        seen[0].add(np.array([counter]), np.array([DUE_US]), now_us)
    return came_of(seen)


@pytest.mark.parametrize(
    ("counters", "found"),
    [
        ((2, 0, 1), set()),
        ((2, 0, 1, 3), set()),
        ((0, 1), {"timed message lost"}),
        ((0, 1, 2, 4), {"timed message never sent"}),
        ((0, 1, 2, 1), {"timed message doubled"}),
        ((0, 1, 2, 9), {"timed message months early"}),
        ((0, 1, 2, 19), {"timed message months early"}),
        ((5000, 0, 1, 2), {"timed message never sent"}),
    ],
)
def test_each_timed_message_comes_once(counters: tuple[int, ...], found: set[str]) -> None:
    assert {violation.kind for violation in judge(sent([0, 1, 2, 19], [3, 9]), came(*counters))} == found


def test_a_timed_message_that_comes_a_microsecond_early_is_found() -> None:
    assert judge(sent([0], []), came(0, now_us=DUE_US)) == []
    [violation] = judge(sent([0], []), came(0, now_us=DUE_US - 1))
    assert violation.kind == "timed message early"


def test_a_timed_message_that_comes_twice_in_one_fetch_is_found() -> None:
    seen = Seen()
    seen.add(np.array([4, 7, 4]), np.array([DUE_US] * 3), DUE_US)
    assert (seen.twice, intervals(seen.came)) == ([4], [(4, 4), (7, 7)])


def test_intervals_are_the_runs_of_counters() -> None:
    assert intervals(bits_of([])[0]) == []
    assert intervals(bits_of([0, 3, 4, 5, 9, 19])[0]) == [(0, 0), (3, 5), (9, 9), (19, 19)]


@pytest.mark.parametrize(("waiting", "count"), [(0, 1), (1, 0), (2, 0), (3, 1)])
def test_what_is_due_after_the_soak_has_to_wait_at_its_end(waiting: int, count: int) -> None:
    assert len(judge_waiting(sent([0, 1, 9], [2, 19]), waiting)) == count


def test_what_was_sent_and_what_came_are_read_back(tmp_path: Path) -> None:
    given, seen = sent([0, 9], [3]), came(0, 0, 7, now_us=DUE_US - 1)
    given.told = {"Unavailable": 2}
    given.save(tmp_path)
    seen.save(tmp_path)
    found, back = Sent.load(tmp_path), Came.load(tmp_path)
    assert np.array_equal(found.acknowledged, given.acknowledged)
    assert np.array_equal(found.unknown, given.unknown)
    assert found.told == given.told
    assert np.array_equal(back.came, seen.came)
    assert (back.twice, back.late_max_ms) == (seen.twice, seen.late_max_ms)
    assert [[tuple(each) for each in part] for part in back.early] == seen.early


@pytest.mark.parametrize(("rows", "kinds"), [(3, set()), (2, {"Parquet differs from what came"})])
def test_parquet_holds_what_came(tmp_path: Path, rows: int, kinds: set[str]) -> None:
    folder = tmp_path / f"topic={TIMED}" / "partition=0"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"value": values(0, 0, rows, 100)}), folder / "a.parquet")
    assert {violation.kind for violation in judge_parquet(tmp_path, came(0, 1, 2))} == kinds


def test_parquet_that_holds_a_timed_message_twice_is_found(tmp_path: Path) -> None:
    folder = tmp_path / f"topic={TIMED}" / "partition=0"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        pq.write_table(pa.table({"value": values(0, 0, 1, 100)}), folder / f"{name}.parquet")
    [violation] = judge_parquet(tmp_path, came(0))
    assert "2 rows" in str(violation)
