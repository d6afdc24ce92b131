"""`client.rebalance`: what it makes of what brokers answer, and what people read."""

from __future__ import annotations

import ledgermq
from ledgermq.client.admin.rebalancing import placement_of, why
from ledgermq.client.messages.descriptions import BundleLoads, PartitionDescription, TopicDescription, TopicPartition
from ledgermq.evenness import PlacedPartition, PlannedMove


def topic(name: str, *partitions: tuple[int, int | None], **settings: str) -> TopicDescription:
    """A topic with partitions in these bundles, each with the bundle that it leaves."""
    described = tuple(
        PartitionDescription(number, bundle, "a:1", moving_from)
        for number, (bundle, moving_from) in enumerate(partitions)
    )
    return TopicDescription(name, 1, described, {key.replace("_", "."): value for key, value in settings.items()}, 0)


def loads(bundle: int, others: int = 0, **partitions: int) -> ledgermq.BundleLoads:
    """Loads of partitions 0 of topics."""
    return BundleLoads(bundle, 60.0, {TopicPartition(name, 0): load for name, load in partitions.items()}, others)


def test_what_moves_is_in_its_new_bundle_with_what_both_have_measured() -> None:
    found = placement_of([topic("t", (2, 1))], [loads(1, t=30), loads(2, t=70)])
    assert found.partitions == {("t", 0): PlacedPartition(2, 100, may_move=False)}
    assert found.moving == {("t", 0): 1}


def test_what_moves_stays_on_its_way_and_the_system_counts() -> None:
    topics = [topic("plain", (1, None)), topic("keyed", (1, None), cleanup_policy="compact"), topic("moves", (2, 1))]
    found = placement_of(topics, [loads(1, others=7, plain=5), loads(2)])
    assert [name for (name, _), each in found.partitions.items() if each.may_move] == ["plain", "keyed"]
    assert (found.bundles, found.fixed) == ((1, 2), {1: 7, 2: 0})


def test_a_topic_that_was_deleted_meanwhile_has_no_load() -> None:
    found = placement_of([], [loads(1, gone=5), loads(2)])
    assert (found.partitions, found.fixed) == ({}, {1: 0, 2: 0})


def test_a_move_has_a_reason() -> None:
    by_load = PlannedMove(("t", 0), 1, 4, 50, "load", 150, 20, 100.0)
    assert why(by_load) == "bundle 1 has 150% of the mean load, bundle 4 has 20%"
    by_number = PlannedMove(("t", 0), 1, 4, 0, "partitions", 5, 0, 2.5)
    assert why(by_number) == "bundle 1 has 5 partitions, bundle 4 has 0, the mean is 2.5"
