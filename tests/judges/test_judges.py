"""Each judge, on what holds and on what does not."""

from __future__ import annotations

import pytest

from tests.judges.all_or_nothing import judge_whole
from tests.judges.nothing_doubled import doubled, overlaps
from tests.judges.nothing_in_anothers_name import Attempt, judge_attempt
from tests.judges.nothing_lost import missing, unseen
from tests.judges.order import Step, backwards
from tests.judges.plain_parquet import is_whole, judge_files


@pytest.mark.parametrize(
    ("spans", "lacks"),
    [
        ([(0, 9)], []),
        ([(0, 3), (4, 9)], []),
        ([(0, 9), (3, 12)], []),
        ([], [(0, 9)]),
        ([(1, 9)], [(0, 0)]),
        ([(0, 3), (6, 7)], [(4, 5), (8, 9)]),
        ([(12, 15)], [(0, 9)]),
    ],
)
def test_what_is_lost_is_found(spans: list[tuple[int, int]], lacks: list[tuple[int, int]]) -> None:
    assert missing(spans, 0, 10) == lacks


def test_a_reader_has_to_see_what_was_known_to_be_there() -> None:
    assert unseen(4, 5, 0)
    assert not unseen(5, 5, 0)
    assert not unseen(0, 5, 5), "all of it was removed"


def test_what_is_doubled_is_found() -> None:
    assert doubled({0: "a", 1: "b", 2: "a"}) == {"a": [0, 2]}
    assert list(overlaps([(5, 9), (0, 5), (10, 12)])) == [(5, 5)]


def test_what_goes_back_is_found() -> None:
    steps = [Step("one", 3, "a"), Step("two", 1, "b"), Step("one", 2, "c"), Step("one", 2, "d")]
    assert list(backwards(steps)) == [(steps[2], steps[0])]


@pytest.mark.parametrize(
    ("told", "shown", "promised", "kind"),
    [
        (True, 2, False, []),
        (False, 0, False, []),
        (None, 0, False, []),
        (None, 2, True, []),
        (True, 0, False, ["told another outcome"]),
        (False, 1, False, ["told another outcome"]),
        (True, 1, False, ["torn transaction"]),
        (None, 1, False, ["torn transaction"]),
        (None, 0, True, ["broken promise"]),
        (None, 1, True, ["broken promise"]),
    ],
)
def test_a_transaction_is_whole_or_absent(told: bool | None, shown: int, promised: bool, kind: list[str]) -> None:
    assert [found.kind for found in judge_whole("c", told, shown, 2, "", promised=promised)] == kind


def test_plain_readers_see_one_run() -> None:
    files = [(0, 4), (5, 9)]
    assert judge_files("t-0", files, [(0, 4)]) == []
    found = judge_files("t-0", [(0, 4), (6, 9), (9, 10)], [(5, 5)])
    assert [each.kind for each in found] == ["parquet gap", "parquet doubled", "live file missing"]
    assert is_whole(files, 10, from_beginning=True)
    assert not is_whole(files, 11, from_beginning=True)
    assert not is_whole(files[1:], 10, from_beginning=True)
    assert is_whole(files[1:], 10, from_beginning=False)
    assert is_whole([], 0, from_beginning=True)
    assert not is_whole([], 3, from_beginning=True)


@pytest.mark.parametrize(
    ("attempt", "kinds"),
    [
        (Attempt("a leave"), []),
        (Attempt("a leave", codes=["UNAUTHORIZED"]), []),
        (Attempt("a leave", answer=b"nothing of theirs"), []),
        (Attempt("a leave", counted=["left"]), ["counted in another's name"]),
        (Attempt("a leave", codes=["UNAUTHORIZED", ""]), ["refused for no reason"]),
        (Attempt("a leave", codes=["NO_SPACE"]), ["refused for no reason"]),
        (Attempt("a look", answer=b"member 0123 of them"), ["secret shown"]),
        (
            Attempt("a look", ["left"], ["NO_SPACE"], b"0123"),
            ["counted in another's name", "refused for no reason", "secret shown"],
        ),
    ],
)
def test_what_counts_in_anothers_name_is_found(attempt: Attempt, kinds: list[str]) -> None:
    found = judge_attempt(attempt, {"UNAUTHORIZED"}, [b"0123"])
    assert [violation.kind for violation in found] == kinds
