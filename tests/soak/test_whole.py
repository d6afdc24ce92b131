"""The judge of a soak's transactions, on handmade counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.transaction_judge import attempts
from tests.soak.numbered import Partition, Run
from tests.soak.transactor import MOVED, SOURCE, WHOLE
from tests.soak.whole import counters_in, judge_moved, judge_whole

SENT = ["5 sent w:1:1 whole 0 0/0+10", "6 sent w:1:1 whole 1 1/7+3", "7 committing w:1:1"]
Stream = dict[Partition, list[Run]]


def judged(tmp_path: Path, lines: list[str], zero: list[Run], one: list[Run]) -> set[str]:
    diary = tmp_path / "writer.diary"
    diary.write_text("".join(f"{line}\n" for line in lines))
    return {found.kind for found in judge_whole(attempts(diary), {(WHOLE, 0): zero, (WHOLE, 1): one})}


ALL, LATER = [Run(0, 9, 0)], [Run(0, 6, 0), Run(7, 9, 0)]


@pytest.mark.parametrize(
    ("told", "zero", "one", "found"),
    [
        ("committed", ALL, LATER, set()),
        ("committed", [Run(20, 24, -20), Run(30, 34, -25)], [Run(0, 99, 0)], set()),
        ("committed", [], [], {"told another outcome"}),
        ("committed", ALL, [Run(0, 6, 0), Run(7, 8, 0)], {"torn transaction"}),
        ("aborted", [], [Run(0, 6, 0)], set()),
        ("aborted", [Run(0, 0, 0)], [], {"told another outcome"}),
        ("", ALL, LATER, set()),
        ("", [], [], set()),
        ("", ALL, [Run(0, 8, 0)], {"torn transaction"}),
    ],
)
def test_a_transaction_is_whole_or_absent_as_it_was_told(
    tmp_path: Path, told: str, zero: list[Run], one: list[Run], found: set[str]
) -> None:
    assert judged(tmp_path, [*SENT, f"9 ended w:1:1 {told}"] if told else SENT, zero, one) == found


def test_a_commit_that_was_never_called_has_nothing(tmp_path: Path) -> None:
    assert judged(tmp_path, SENT[:2], [], []) == set()
    assert judged(tmp_path, SENT[:2], ALL, LATER) == {"told another outcome"}


def test_what_is_moved_is_the_source() -> None:
    def found(moved: list[Run]) -> set[str]:
        return {violation.kind for violation in judge_moved({(SOURCE, 2): [Run(0, 9, 5)], (MOVED, 2): moved})}

    assert found([Run(0, 3, 5), Run(4, 9, 5)]) == set()
    assert found([Run(0, 3, 5)]) == {"not moved"}
    assert found([Run(0, 10, 5)]) == {"never sent"}


def test_counters_are_there_once() -> None:
    assert counters_in([Run(0, 4, 3), Run(5, 9, 0)]) == [Run(3, 9, 0)]
