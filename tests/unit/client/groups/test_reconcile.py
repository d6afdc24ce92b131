"""What changes for a member is told by partitions and epochs alone."""

from __future__ import annotations

from ledgermq.client.groups.assignment import Changes, given_from_proto, given_to_proto, reconcile
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.offset_stores.contract import GivenPartition


def given(partition: int, epoch: int, topic_id: int = 1) -> GivenPartition:
    return GivenPartition(TopicPartition("t", partition), topic_id, epoch)


def held(*partitions: GivenPartition) -> dict[TopicPartition, GivenPartition]:
    return {each.partition: each for each in partitions}


def test_the_same_is_nothing() -> None:
    assert reconcile(held(given(0, 5), given(1, 6)), [given(1, 6), given(0, 5)]) == Changes((), (), ())


def test_new_gone_and_given_anew() -> None:
    changes = reconcile(held(given(0, 5), given(1, 6), given(2, 7)), [given(1, 9), given(2, 7), given(3, 8)])
    assert changes.gained == (given(3, 8),)
    assert changes.renewed == (given(1, 9),)
    assert changes.unwanted == (TopicPartition("t", 0),)


def test_a_topic_that_was_made_again_is_another() -> None:
    assert reconcile(held(given(0, 5)), [given(0, 5, topic_id=2)]).renewed == (given(0, 5, topic_id=2),)


def test_the_wire_tells_all_of_it() -> None:
    assert given_from_proto(given_to_proto(given(3, 4))) == given(3, 4)
