"""The judge of Kafka clients sees what it is there for, and nothing in what is right."""

from __future__ import annotations

from collections.abc import Sequence

from tests.judges.violation import Violation
from tests.simulation.kafka_truth import Reader, Readers, Restore, judge_restores
from tests.simulation.transactions_truth import Seen

OUTPUTS = ("left", "right")


def kinds(violations: Sequence[Violation]) -> list[str]:
    return [each.kind for each in violations]


def reader(name: str, until_s: float = 10.0) -> Reader:
    return Reader(name, until_s)


def test_a_partition_that_a_member_reads_is_read_by_no_other() -> None:
    readers, one, two = Readers(), reader("one"), reader("two")
    readers.take(one, "g", 0, 1.0, alone=True)
    readers.take(two, "g", 1, 2.0, alone=True)
    assert readers.violations == []
    readers.take(two, "g", 0, 3.0, alone=True)
    assert kinds(readers.violations) == ["read by two members"]


def test_a_partition_may_be_taken_from_who_has_let_it_go_or_may_be_no_member_any_more() -> None:
    readers, one, two = Readers(), reader("one"), reader("two")
    readers.take(one, "g", 0, 1.0, alone=True)
    readers.take(one, "g", 1, 1.0, alone=True)
    readers.let_go(one, [0])
    readers.take(two, "g", 0, 2.0, alone=True)
    readers.take(two, "g", 1, 10.0, alone=True)
    assert readers.violations == []


def test_a_commit_that_is_sent_behind_one_of_a_later_reader_is_refused() -> None:
    readers, one, two = Readers(), reader("one"), reader("two")
    former = readers.take(one, "g", 0, 1.0, alone=False)
    late = readers.committing(former, 5)  # sent before, and answered after the commit of the other
    later = readers.take(two, "g", 0, 2.0, alone=False)
    readers.committed(readers.committing(later, 7))
    readers.committed(late)
    assert readers.violations == []
    readers.committed(readers.committing(former, 6))
    assert kinds(readers.violations) == ["a former reader commits"]


def test_a_reader_begins_at_what_was_committed() -> None:
    readers = Readers()
    former = readers.take(reader("one"), "g", 0, 1.0, alone=False)
    readers.committed(readers.committing(former, 5))
    later = readers.take(reader("two"), "g", 0, 2.0, alone=False)
    assert readers.begin(later, 5) == 5
    assert readers.violations == []
    readers.begin(later, 4)
    assert kinds(readers.violations) == ["read behind a commit"]


def test_who_takes_over_is_told_ends_behind_all_that_was_committed_with_the_offsets() -> None:
    visible = {
        f"processed/{output}/0/{offset}/p.1": [Seen((f"{output}#4", 0), place, 9)]
        for output in OUTPUTS
        for offset, place in ((0, 10), (1, 12))
    }
    right = [Restore(0, 2, {"left": 13, "right": 13}), Restore(0, 1, {"left": 11, "right": 12})]
    assert list(judge_restores(right, visible, OUTPUTS)) == []
    assert kinds([*judge_restores([Restore(0, 2, {"left": 13, "right": 12})], visible, OUTPUTS)]) == [
        "restored too little"
    ]
