"""The judge of placement accepts what the rule demands, and nothing else."""

from __future__ import annotations

from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from tests.simulation.growth_watch import Batch, judge_growth

BUNDLES = 3


def topic(name: str, *bundles: int, state: fmt.TopicState = fmt.LIVING) -> Batch:
    return [fmt.TopicRecord(name=name, bundles=bundles, state=state)]


FOUR: Batch = [fmt.TopicRecord(name="__metadata", bundles=[0], settings={"cluster.bundles": "4"})]


def kinds(*batches: Batch) -> list[str]:
    return [violation.kind for violation in judge_growth(batches, BUNDLES)]


def test_new_partitions_belong_to_the_bundle_with_the_fewest() -> None:
    assert kinds(topic("a", 1, 2, 1), topic("b", 2, 1)) == []
    assert kinds(topic("a", 1, 2, 1), topic("b", 1)) == ["placement"]
    assert kinds(topic("a", 2)) == ["placement"]


def test_more_partitions_are_placed_like_new_ones() -> None:
    assert kinds(topic("a", 1), topic("b", 2, 1), topic("a", 1, 2)) == []
    assert kinds(topic("a", 1), topic("b", 2, 1), topic("a", 1, 1)) == ["placement"]


def test_an_added_bundle_is_filled_first() -> None:
    assert kinds(topic("a", 1, 2), FOUR, topic("late", 3)) == []
    assert kinds(topic("a", 1, 2), FOUR, topic("late", 1)) == ["placement"]


def test_partitions_of_internal_topics_count() -> None:
    offsets = topic("__consumer_offsets", 3, 3, 1)
    assert kinds(topic("a", 1, 2, 1, 2), FOUR, offsets, topic("late", 3)) == ["placement"]
    assert kinds(topic("a", 1, 2, 1, 2), FOUR, offsets, topic("late", 2, 3, 1)) == []


def test_partitions_of_removed_topics_do_not_count() -> None:
    gone = topic("a", 1, 2, state=fmt.REMOVED)
    assert kinds(topic("a", 1, 2), topic("b", 1), gone, topic("c", 2)) == []
    assert kinds(topic("a", 1, 2), topic("b", 1), gone, topic("a", 1)) == ["placement"]
