"""The judge of removals accepts what the rule demands, and nothing else."""

from __future__ import annotations

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from tests.simulation.growth_watch import Batch
from tests.simulation.undelete_watch import judge_removals


def topic(topic_id: int, state: fmt.TopicState) -> Batch:
    return [fmt.TopicRecord(name="t", topic_id=topic_id, state=state)]


def kinds(*batches: Batch) -> list[str]:
    return [violation.kind for violation in judge_removals(batches)]


def test_a_topic_may_be_brought_back_until_it_is_removed() -> None:
    assert kinds(topic(0, fmt.LIVING), topic(5, fmt.TRASHED), topic(5, fmt.LIVING), topic(5, fmt.REMOVED)) == []


def test_a_removed_topic_does_not_come_back() -> None:
    assert kinds(topic(5, fmt.REMOVED), topic(5, fmt.LIVING)) == ["removed topic came back"]
    assert kinds(topic(5, fmt.REMOVED), topic(5, fmt.TRASHED)) == ["removed topic came back"]


def test_another_topic_takes_the_name_of_a_removed_one() -> None:
    assert kinds(topic(5, fmt.REMOVED), topic(0, fmt.LIVING), topic(9, fmt.TRASHED)) == []
