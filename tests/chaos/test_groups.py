"""The judge of groups, on handmade diaries and on truncated ones."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.group_judge import judge_group
from tests.chaos.groups import Told
from tests.chaos.members import Entry, entries
from tests.simulation.history import Partition

AT: Partition = ("main", 0)
LOG = {0: "p.0", 1: "p.1", 2: "p.2"}


def handled(at_ns: int, offset: int, name: str = "") -> Entry:
    return Entry(at_ns, "handled", AT, offset, name or LOG[offset])


def committed(at_ns: int, offset: int) -> Entry:
    return Entry(at_ns, "committed", AT, offset)


def told(asked_ns: int, told_ns: int, offset: int) -> Told:
    return Told("g", asked_ns, told_ns, {AT: offset} if offset else {})


def judged(diary: list[Entry], answers: list[Told]) -> set[str]:
    return {violation.kind for violation in judge_group("g", diary, answers, {AT: LOG})}


ALL = [handled(10, 0), handled(11, 1), handled(12, 2)]


def test_at_least_once_in_any_order_and_again_is_right() -> None:
    assert judged([*ALL, handled(20, 1), committed(30, 3)], [told(5, 15, 2), told(13, 14, 1), told(31, 40, 3)]) == set()
    assert judged([handled(10, 2), handled(11, 0), handled(12, 1), committed(13, 3)], []) == set()


def test_what_no_member_was_handed_or_was_handed_as_something_else() -> None:
    assert judged(ALL[:2], []) == {"never handled"}
    assert judged([*ALL, handled(13, 1, "p.9")], []) == {"inconsistent offsets"}


def test_a_commit_past_a_message_that_no_member_has_handled() -> None:
    assert judged([ALL[0], ALL[2], committed(13, 3), handled(14, 1)], []) == {"skipped"}
    assert judged([ALL[0], ALL[2], handled(14, 1)], [told(12, 13, 3)]) == {"skipped"}, "handled later does not help"
    assert judged(ALL, [told(20, 21, 4)]) == {"commit beyond the end"}


def test_a_committed_offset_that_goes_back() -> None:
    assert judged([*ALL, committed(20, 3)], [told(21, 22, 2)]) == {"committed offset went back"}
    assert judged(ALL, [told(20, 21, 3), told(22, 23, 0)]) == {"committed offset went back"}, (
        "forgotten is gone back too"
    )
    assert judged([*ALL, committed(20, 3)], [told(19, 22, 2)]) == set(), "asked before it was acknowledged"
    other = Told("another", 21, 22, {AT: 1})
    assert judged([*ALL, committed(20, 3)], [other]) == set()


def test_a_line_in_whose_midst_a_member_was_killed_is_left_out(tmp_path: Path) -> None:
    diary = tmp_path / "member-0.diary"
    diary.write_text(
        "\n7 handled main 0 0 p.0\n8 handled main 0 1\n9 committed main 0 1\n9 told UNAVAILABLE no answer\n10 handled"
        " main 0 2 p"
    )
    assert list(entries(diary)) == [Entry(7, "handled", AT, 0, "p.0"), Entry(9, "committed", AT, 1)]


def test_an_answer_while_an_offset_is_staged_says_nothing_about_its_partition() -> None:
    diary = [*ALL, committed(20, 3)]
    pending = Told("g", 21, 22, {AT: 2}, frozenset({AT}))
    assert judged(diary, [pending]) == set()
    elsewhere = Told("g", 21, 22, {AT: 2}, frozenset({("main", 1)}))
    assert judged(diary, [elsewhere]) == {"committed offset went back"}
