"""The judge of transactions, on handmade diaries."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.transaction_judge import Attempt, add_sends, attempts, judge_transactions
from tests.simulation.history import History, Outcome, Partition, Poll, Produce, Produced

LEFT: Partition = ("left", 0)
RIGHT: Partition = ("right", 3)
WHOLE = ["5 sent w:1:1 left 0 a", "6 sent w:1:1 right 3 b", "7 committing w:1:1", "9 ended w:1:1 committed"]
NEXT = ["10 sent w:1:2 left 0 c", "11 committing w:1:2"]
NEVER = ["12 sent w:2:1 left 0 d"]
Stored = dict[Partition, dict[int, str]]


def diary(tmp_path: Path, lines: list[str]) -> list[Attempt]:
    path = tmp_path / "member-9.diary"
    path.write_text("\n" + "".join(f"{line}\n" for line in lines) + "12 sent w:9:1 left 0 half")
    return attempts(path)


def judged(tmp_path: Path, lines: list[str], stored: Stored, seen_ns: dict[str, int] | None = None) -> set[str]:
    return {found.kind for found in judge_transactions(diary(tmp_path, lines), stored, seen_ns or {}, {})}


def test_what_is_whole_or_absent_as_it_was_told_is_right(tmp_path: Path) -> None:
    stored = {LEFT: {0: "plain", 1: "a"}, RIGHT: {0: "b"}, ("main", 0): {0: "d"}}
    assert judged(tmp_path, [*WHOLE, *NEXT, *NEVER], stored, {"a": 8}) == set()
    assert judged(tmp_path, [*WHOLE, *NEXT], {LEFT: {0: "a", 1: "c"}, RIGHT: {0: "b"}}) == set(), (
        "a commit without an answer may have happened"
    )


def test_what_was_told_and_what_is_stored_differ(tmp_path: Path) -> None:
    assert judged(tmp_path, WHOLE, {}) == {"told another outcome"}
    assert judged(tmp_path, WHOLE, {LEFT: {0: "a"}}) == {"torn transaction"}
    assert judged(tmp_path, [*NEXT, "13 ended w:1:2 aborted"], {LEFT: {0: "c"}}) == {"told another outcome"}
    assert judged(tmp_path, NEVER, {LEFT: {0: "d"}}) == {"told another outcome"}, "its commit was never called"


def test_twice_too_early_or_in_another_order(tmp_path: Path) -> None:
    both = {LEFT: {0: "a", 1: "a"}, RIGHT: {0: "b"}}
    assert judged(tmp_path, WHOLE, both) == {"duplicate"}
    order = {LEFT: {0: "c", 1: "a"}, RIGHT: {0: "b"}}
    assert judged(tmp_path, [*WHOLE, *NEXT], order) == {"out of commit order"}
    stored = {LEFT: {0: "a"}, RIGHT: {0: "b"}}
    assert judged(tmp_path, WHOLE, stored, {"b": 6}) == {"early read"}


def test_each_message_has_one_result_and_its_offset(tmp_path: Path) -> None:
    def found(stored: Stored, end: int) -> set[str]:
        return {violation.kind for violation in judge_transactions([], stored, {}, {3: end})}

    first = {("left", 3): {0: "processed/left/3/0/x.1"}, ("right", 3): {0: "processed/right/3/0/x.2"}}
    assert found(first, 1) == set()
    assert found(first, 2) == {"offset without records"}
    assert found(first, 0) == {"records without offset"}
    twice: Stored = {**first, ("left", 3): {0: "processed/left/3/0/x.1", 1: "processed/left/3/0/x.3"}}
    assert found(twice, 1) == {"processed twice"}


def test_the_history_has_records_of_transactions_before_all_else(tmp_path: Path) -> None:
    history = History()
    history.add(Poll("reader", LEFT, ((0, "a"),)))
    add_sends(history, diary(tmp_path, [*WHOLE, *NEVER]))
    kinds = [type(event) for event in history]
    assert kinds == [Produce, Produce, Produce, Produced, Poll]
    told = [event for event in history if isinstance(event, Produced)]
    assert [event.outcome for event in told] == [Outcome.FAIL], "only what must be absent has an end"
