"""Of a lane one message at a time, in order, whatever fails, is dropped or comes again."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ledgermq.client.consuming.message import Message
from ledgermq.client.groups.handlers.lanes import Lane, Lanes, Ordering
from ledgermq.client.messages.descriptions import TopicPartition


def message(partition: int, offset: int, key: bytes | None = None) -> Message:
    return Message("t", partition, offset, key, b"", (), None, None)


def test_partitions_go_side_by_side_each_in_order() -> None:
    lanes: Lanes[Message] = Lanes("partition")
    lanes.add([message(0, 0), message(0, 1), message(1, 0)])
    first, second = lanes.take(), lanes.take()
    assert first is not None
    assert second is not None
    assert [first[1].partition, second[1].partition] == [0, 1]
    assert lanes.take() is None, "each has one on its way"
    lanes.succeeded(first[0])
    following = lanes.take()
    assert following is not None
    assert following[1].offset == 1


def test_promoted_messages_go_first_and_the_others_keep_their_order() -> None:
    lanes: Lanes[Message] = Lanes("partition")
    lanes.add([message(0, offset) for offset in (5, 6, 1, 7, 2)])
    found = lanes.take()
    assert found is not None
    lane = found[0]
    lanes.failed(lane)
    lanes.promote(lane, lambda each: each.offset > 9)
    assert lane.attempts == 1, "nothing has changed"
    lanes.promote(lane, lambda each: each.offset < 5)
    assert [each.offset for each in lane.queue] == [1, 2, 5, 6, 7]
    assert (lane.attempts, lanes.count) == (0, 5)
    assert lanes.take() is None, "still busy"
    lanes.freed(lane)
    again = lanes.take()
    assert again is not None
    assert again[1].offset == 1


def test_what_fails_stays_in_front_of_its_key_and_of_nothing_else() -> None:
    lanes: Lanes[Message] = Lanes("key")
    lanes.add([message(0, 0, b"a"), message(0, 1, b"a"), message(0, 2, b"b"), message(0, 3), message(0, 4)])
    taken = [found for _ in range(4) if (found := lanes.take())]
    assert [each.offset for _, each in taken] == [0, 2, 3, 4]
    lanes.failed(taken[0][0])
    assert lanes.take() is None
    lanes.freed(taken[0][0])
    again = lanes.take()
    assert again is not None
    assert (again[1].offset, again[0].attempts) == (0, 1)
    lanes.succeeded(again[0])
    following = lanes.take()
    assert following is not None
    assert (following[1].offset, following[0].attempts) == (1, 0)


def test_of_a_partition_that_goes_only_what_is_being_handled_stays() -> None:
    lanes: Lanes[Message] = Lanes("partition")
    lanes.add([message(0, 0), message(0, 1), message(1, 0)])
    taken = lanes.take()
    assert taken is not None
    dropped = lanes.drop_waiting([TopicPartition("t", 0)], busy_too=lambda lane: False)
    assert [each.offset for each in dropped] == [1]
    lanes.succeeded(taken[0])
    assert lanes.by_partition == {TopicPartition("t", 1): 1}


class Model(RuleBasedStateMachine):
    """Every message is handled in the order of its lane; whatever happens, none is handled beside
    another of its lane.
    """

    ordering: Ordering = "key"

    def __init__(self) -> None:
        super().__init__()
        self.lanes: Lanes[Message] = Lanes(self.ordering)
        self.next = [0, 0, 0]
        self.running: list[tuple[Lane[Message], Message]] = []
        self.retrying: list[tuple[Lane[Message], Message]] = []
        self.handled: dict[object, int] = {}
        self.waiting: set[tuple[int, int]] = set()

    def name(self, each: Message) -> object:
        return (
            (each.partition, each.key if each.key is not None else each.offset)
            if self.ordering == "key"
            else each.partition
        )

    @rule(partition=st.integers(0, 2), keys=st.lists(st.sampled_from([b"a", b"b", None]), min_size=1, max_size=4))
    def add(self, partition: int, keys: list[bytes | None]) -> None:
        for key in keys:
            self.lanes.add([message(partition, self.next[partition], key)])
            self.waiting.add((partition, self.next[partition]))
            self.next[partition] += 1

    @rule()
    def take(self) -> None:
        found = self.lanes.take()
        if found is not None:
            name = self.name(found[1])
            assert all(self.name(each) != name for _, each in self.running + self.retrying), "one at a time"
            assert found[1].offset >= self.handled.get(name, 0), "in order"
            self.running.append(found)

    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        if self.running:
            done = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            self.lanes.succeeded(done[0])
            self.handled[self.name(done[1])] = done[1].offset
            self.waiting.discard((done[1].partition, done[1].offset))

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        if self.running:
            failed = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
            self.lanes.failed(failed[0])
            self.retrying.append(failed)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        if self.retrying:
            lane, _ = self.retrying.pop(data.draw(st.integers(0, len(self.retrying) - 1)))
            self.lanes.freed(lane)

    @rule(partition=st.integers(0, 2))
    def drop(self, partition: int) -> None:
        sleeping = {lane for lane, _ in self.retrying}
        dropped = self.lanes.drop_waiting([TopicPartition("t", partition)], busy_too=lambda lane: lane in sleeping)
        expected = {at for at in self.waiting if at[0] == partition} - {
            (each.partition, each.offset) for _, each in self.running
        }
        assert {(each.partition, each.offset) for each in dropped} == expected
        self.waiting -= expected

    @invariant()
    def counted(self) -> None:
        assert self.lanes.count == len(self.waiting)
        assert sum(self.lanes.by_partition.values()) == self.lanes.count


class ByPartition(Model):
    ordering: Ordering = "partition"


TestByKey = Model.TestCase
TestByPartition = ByPartition.TestCase
TestByKey.settings = TestByPartition.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
