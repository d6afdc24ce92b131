"""The judge of a soak's timed messages, on handmade counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.soak.numbered import TIMED, values
from tests.soak.timed import PARTITIONS, Seen, counters_of, intervals, judge, judge_parquet

NONE: list[list[Any]] = [[] for _ in range(PARTITIONS - 1)]
DUE_US = 1_000_000


def sent(acknowledged: list[int], unknown: list[int]) -> dict[str, Any]:
    return {"acknowledged": [intervals(acknowledged), *NONE], "unknown": [intervals(unknown), *NONE]}


def came(*counters: int, now_us: int = DUE_US) -> dict[str, Any]:
    """Each came in a fetch of its own."""
    seen = Seen()
    for counter in counters:
        seen.add(np.array([counter]), np.array([DUE_US]), now_us)
    return {
        "came": [intervals(np.flatnonzero(seen.came)), *NONE],
        "twice": [intervals(seen.twice), *NONE],
        "early": [seen.early, *NONE],
    }


@pytest.mark.parametrize(
    ("counters", "found"),
    [
        ((2, 0, 1), set()),
        ((2, 0, 1, 3), set()),
        ((0, 1), {"timed message lost"}),
        ((0, 1, 2, 9), {"timed message never sent"}),
        ((0, 1, 2, 1), {"timed message doubled"}),
        ((5000, 0, 1, 2), {"timed message never sent"}),
    ],
)
def test_each_timed_message_comes_once(counters: tuple[int, ...], found: set[str]) -> None:
    assert {violation.kind for violation in judge(sent([0, 1, 2], [3]), came(*counters))} == found


def test_a_timed_message_that_comes_a_microsecond_early_is_found() -> None:
    assert judge(sent([0], []), came(0, now_us=DUE_US)) == []
    [violation] = judge(sent([0], []), came(0, now_us=DUE_US - 1))
    assert violation.kind == "timed message early"


def test_a_timed_message_that_comes_twice_in_one_fetch_is_found() -> None:
    seen = Seen()
    seen.add(np.array([4, 7, 4]), np.array([DUE_US] * 3), DUE_US)
    assert (seen.twice, intervals(np.flatnonzero(seen.came))) == ([4], [(4, 4), (7, 7)])


def test_intervals_hold_what_they_were_made_of() -> None:
    assert intervals([]) == []
    assert intervals([5, 3, 4, 4, 9]) == [(3, 5), (9, 9)]
    assert counters_of([(3, 5), (9, 9)]).tolist() == [3, 4, 5, 9]
    assert counters_of([]).tolist() == []


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
