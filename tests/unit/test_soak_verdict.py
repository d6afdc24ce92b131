"""The soak's judge: whatever goes wrong shows in the runs that its witnesses wrote down."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.soak.numbered import Run, counters_doubled, differences, gaps, heads, joined, runs_of, values
from tests.soak.plain_reads import PlainReads


def test_values_tell_their_counters_and_their_partition() -> None:
    column = pa.chunked_array([values(3, 100, 5, 40), values(3, 105, 2, 40).slice(1)])
    counters, partitions = heads(column)
    assert counters.tolist() == [100, 101, 102, 103, 104, 106]
    assert set(partitions.tolist()) == {3}
    assert {len(value) for value in column.to_pylist()} == {40}


def test_runs_end_where_offsets_or_counters_jump() -> None:
    offsets, counters = np.array([0, 1, 2, 5, 6, 7]), np.array([0, 1, 2, 5, 8, 9])
    assert runs_of(offsets, counters) == [Run(0, 2, 0), Run(5, 5, 0), Run(6, 7, 2)]
    assert runs_of(np.array([], dtype=np.int64), np.array([], dtype=np.int64)) == []


def test_an_offset_that_is_there_twice_is_found() -> None:
    assert joined([Run(5, 9, 0), Run(0, 4, 0)]) == [Run(0, 9, 0)]
    with pytest.raises(ValueError, match="offsets 4 to 4 are there twice"):
        joined([Run(0, 4, 0), Run(4, 9, 0)])
    assert counters_doubled([Run(0, 4, 0), Run(5, 9, -2)]) == ["counters 3 to 4 are there twice"]
    assert counters_doubled([Run(0, 4, 0), Run(5, 9, 2)]) == []


def test_a_gap_is_found() -> None:
    assert gaps([Run(0, 4, 0), Run(7, 9, 0)]) == [(5, 6)]
    assert gaps([Run(0, 4, 0), Run(5, 9, 2)]) == []


@pytest.mark.parametrize(
    ("part", "whole", "found"),
    [
        ([Run(2, 5, 0)], [Run(0, 9, 0)], []),
        ([Run(2, 5, 0)], [Run(0, 3, 0), Run(4, 9, 0)], []),
        ([Run(2, 5, 0)], [Run(0, 3, 0)], ["offsets 4 to 5 are missing"]),
        ([Run(0, 9, 0)], [Run(0, 3, 0), Run(6, 9, 0)], ["offsets 4 to 5 are missing"]),
        ([Run(2, 5, 0)], [], ["offsets 2 to 5 are missing"]),
        ([Run(2, 5, 1)], [Run(0, 9, 0)], ["offset 2 has counter 2, not 3"]),
        ([Run(2, 5, 0)], [Run(0, 3, 0), Run(4, 9, 7)], ["offset 4 has counter 11, not 4"]),
    ],
)
def test_two_witnesses_that_disagree_are_found(part: list[Run], whole: list[Run], found: list[str]) -> None:
    assert differences(part, whole) == found


def test_a_plain_read_with_a_gap_a_double_or_an_earlier_end_is_told(tmp_path: Path) -> None:
    reads = PlainReads(tmp_path)
    partition = ("t", 0)
    assert reads.look("x", lambda _: {partition: [Run(0, 9, 0)]})[1] == []
    assert reads.look("x", lambda _: {partition: [Run(0, 3, 0), Run(6, 9, 0)]})[1] == [
        "x: ('t', 0): offsets 4 to 5 are missing"
    ]
    assert "are there twice" in reads.look("x", lambda _: {partition: [Run(0, 9, 0), Run(9, 12, 0)]})[1][0]
    assert reads.look("x", lambda _: {partition: [Run(0, 5, 0)]})[1][0].endswith(
        "ends at 5, an earlier read ended at 12"
    )


def test_a_read_that_finds_a_file_gone_is_made_again(tmp_path: Path) -> None:
    reads = PlainReads(tmp_path)
    tries = iter([FileNotFoundError("x"), OSError("IO Error: No files found that match"), None])

    def read(_: Path) -> dict[tuple[str, int], list[Run]]:
        if (error := next(tries)) is not None:
            raise error
        return {("t", 0): [Run(0, 9, 0)]}

    assert reads.look("x", read) == ({("t", 0): [Run(0, 9, 0)]}, [])
    assert reads.looks["x: a file was gone"] == 2
