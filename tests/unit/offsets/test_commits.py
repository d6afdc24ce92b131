"""Commits, resets, deletion and expiry: what may stand, what is refused, and what no delayed
message can undo.
"""

from __future__ import annotations

import pytest

from ledgermq.errors import (
    GroupNotEmpty,
    InvalidGroupName,
    InvalidRequest,
    ResourceExhausted,
    UnknownGroup,
    UnknownMember,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_offsets import served_groups
from ledgermq_offsets.limits import GroupLimits
from tests.worlds.coordinators import Catalog, Consumer, Desk, settle

DAY_S = 86_400


@pytest.fixture
def desk() -> Desk:
    catalog = Catalog()
    catalog.create("t", 4)
    return Desk(catalog)


@pytest.fixture
def alone(desk: Desk) -> Consumer:
    consumer = Consumer(desk, "g", "a")
    consumer.join()
    return consumer


def outside(desk: Desk, partition: int, offset: int, group: str = "g", counter: int = 0) -> pb.CommitOffsetsRequest:
    """A commit outside of membership that goes on from what is there."""
    found = desk.committed(group, "t", partition)
    commit = pb.OffsetCommit(
        topic="t",
        topic_id=found.topic_id,
        partition=partition,
        epoch=found.epoch,
        counter=counter or found.counter + 1,
        offset=offset,
        metadata="m",
    )
    return pb.CommitOffsetsRequest(group=group, commits=[commit])


def test_a_commit_is_told_with_all_that_it_said(desk: Desk, alone: Consumer) -> None:
    request = alone.commit_request({(1, 2): 7})
    request.commits[0].metadata = "where I was"
    assert desk.commit(request) == [""]
    found = desk.committed("g", "t", 2)
    assert (found.offset, found.metadata, found.commit_ms, found.epoch, found.counter) == (
        7,
        "where I was",
        desk.now_ms,
        alone.owned[1, 2].epoch,
        1,
    )
    everything = desk.coordinator.committed(pb.FetchCommittedRequest(group="g")).partitions
    assert list(everything) == [found]


@pytest.mark.parametrize("name", [".", ".."])
def test_no_group_begins_with_a_name_that_urls_cannot_have(
    desk: Desk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that an earlier release has made goes on."""
    with pytest.raises(InvalidGroupName, match="choose another name"):
        desk.commit(outside(desk, 0, 1, name))
    with pytest.raises(InvalidGroupName, match="choose another name"):
        Consumer(desk, name, "m").join()
    assert not desk.coordinator.state.groups
    with monkeypatch.context() as earlier:
        earlier.setattr(served_groups, "check_new_group_name", lambda name: name)
        assert desk.commit(outside(desk, 0, 1, name)) == [""]
    assert desk.commit(outside(desk, 0, 2, name)) == [""]
    member = Consumer(desk, name, "m")
    member.join()
    settle([member])
    assert desk.commit(member.commit_request({(1, 0): 3})) == [""]
    assert desk.committed(name, "t", 0).offset == 3


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"epoch": 1}, "STALE_ASSIGNMENT"),
        ({"epoch": 99}, "STALE_ASSIGNMENT"),
        ({"partition": 9}, "STALE_ASSIGNMENT"),
        ({"topic_id": 9}, "STALE_ASSIGNMENT"),
        ({"topic_id": 0, "partition": 9}, "UNKNOWN_PARTITION"),
        ({"topic_id": 0, "topic": "v"}, "UNKNOWN_TOPIC"),
        ({"offset": 1_000_001}, "OFFSET_OUT_OF_RANGE"),
        ({"offset": 2**64 - 1}, "INVALID_REQUEST"),
        ({"offset": 4}, "COMMIT_GOES_BACK"),
        ({"metadata": "ä" * 2049}, "INVALID_REQUEST"),
        ({"counter": 0}, "INVALID_REQUEST"),
    ],
)
def test_a_commit_that_may_not_stand_changes_nothing(
    desk: Desk, alone: Consumer, change: dict[str, object], code: str
) -> None:
    assert alone.commit({(1, 0): 5}) == [""]
    before, batches = desk.coordinator.state.snapshot(), len(desk.batches)
    request = alone.commit_request({(1, 0): 6, (1, 1): 6})
    for name, value in change.items():
        setattr(request.commits[0], name, value)
    del request.commits[1]
    assert desk.commit(request) == [code]
    assert (desk.coordinator.state.snapshot(), len(desk.batches)) == (before, batches)


def test_one_bad_commit_does_not_spoil_the_others(desk: Desk, alone: Consumer) -> None:
    request = alone.commit_request({(1, 0): 5, (1, 1): 6})
    request.commits[0].epoch += 1
    assert desk.commit(request) == ["STALE_ASSIGNMENT", ""]
    assert desk.committed("g", "t", 1).offset == 6


def test_metadata_may_have_just_so_many_bytes(desk: Desk, alone: Consumer) -> None:
    request = alone.commit_request({(1, 0): 5})
    request.commits[0].metadata = "ä" * 2048
    assert desk.commit(request) == [""]


def test_a_delayed_or_repeated_commit_is_answered_and_not_applied(desk: Desk, alone: Consumer) -> None:
    first, second = alone.commit_request({(1, 0): 5}), alone.commit_request({(1, 0): 8})
    for request in (second, first, second):
        assert desk.commit(request) == [""]
        assert desk.committed("g", "t", 0).offset == 8
    assert len(desk.batches) == 2  # joined, committed


def test_the_end_is_asked_for_only_above_what_is_known(desk: Desk, alone: Consumer) -> None:
    request = alone.commit_request({(1, 0): 50, (1, 1): 0})
    assert [(end.topic, end.topic_id, end.partition) for end in desk.coordinator.ends_needed(request)] == [("t", 1, 0)]
    codes = [r.error.code for r in desk.coordinator.commit(request, {}, desk.now_s, desk.now_ms).answer.results]
    assert codes == ["UNAVAILABLE", ""]
    assert desk.commit(request) == ["", ""]
    assert not desk.coordinator.ends_needed(alone.commit_request({(1, 0): 60}))
    desk.take_over()
    assert not desk.coordinator.ends_needed(alone.commit_request({(1, 0): 50}))  # a member has committed there
    assert desk.coordinator.ends_needed(alone.commit_request({(1, 0): 51}))


def test_only_a_member_may_commit(desk: Desk, alone: Consumer) -> None:
    stranger = alone.commit_request({(1, 0): 5})
    stranger.member_id = "b"
    with pytest.raises(UnknownMember):
        desk.commit(stranger)
    with pytest.raises(UnknownMember):
        desk.commit(pb.CommitOffsetsRequest(group="none", member_id="b"))
    with pytest.raises(GroupNotEmpty):
        desk.commit(outside(desk, 0, 5))


def test_bounds_of_a_commit() -> None:
    catalog = Catalog()
    catalog.create("t", 4)
    desk = Desk(catalog, GroupLimits(partitions_max=2, commits_max=3, request_bytes_max=1000, groups_max=1))
    for partition, code in enumerate(["", "", "RESOURCE_EXHAUSTED"]):
        assert desk.commit(outside(desk, partition, 5)) == [code]
    assert desk.reset("g", pb.OffsetReset(topic="t", partition=3)) == ["RESOURCE_EXHAUSTED"]
    request = outside(desk, 0, 6)
    request.commits.extend([request.commits[0]] * 3)
    with pytest.raises(InvalidRequest, match="at most 3 partitions, this one has 4"):
        desk.commit(request)
    request = outside(desk, 0, 6)
    request.commits[0].metadata = "m" * 1000
    with pytest.raises(InvalidRequest, match="bytes"):
        desk.commit(request)
    with pytest.raises(ResourceExhausted, match="1 groups"):
        desk.commit(outside(desk, 0, 6, group="h"))
    with pytest.raises(InvalidRequest):
        desk.coordinator.committed(pb.FetchCommittedRequest(group="g", partitions=[pb.TopicPartition(topic="t")] * 4))


def test_commits_outside_of_membership_go_on_from_one_another(desk: Desk) -> None:
    """Two processes, one after the other: the counter of the second goes on from the first's."""
    for offset in (3, 5, 9):
        assert desk.commit(outside(desk, 0, offset)) == [""]
        assert desk.committed("g", "t", 0).offset == offset
    assert desk.commit(outside(desk, 0, 8)) == ["COMMIT_GOES_BACK"]


def test_of_two_programs_outside_of_membership_one_is_refused(desk: Desk) -> None:
    """Both have continued from the same counter, and the coordinator does not take one for a repetition
    of the other.
    """
    ahead, behind = outside(desk, 0, 1), outside(desk, 0, 0)
    assert desk.commit(behind) == [""]
    assert desk.commit(behind) == [""]
    assert desk.commit(ahead) == ["STALE_ASSIGNMENT"]
    assert desk.committed("g", "t", 0).offset == 0


@pytest.mark.parametrize("offset", [3, 2, 1])
def test_a_program_outside_of_membership_learns_that_another_one_was_ahead_twice(desk: Desk, offset: int) -> None:
    """Its counter is lower than the stored one, whether its offset is higher, the same or lower."""
    overtaken = outside(desk, 0, offset)
    assert desk.commit(outside(desk, 0, 1)) == [""]
    assert desk.commit(outside(desk, 0, 2)) == [""]
    assert desk.commit(overtaken) == ["STALE_ASSIGNMENT"]
    assert desk.committed("g", "t", 0).offset == 2
    assert desk.commit(outside(desk, 0, 3)) == [""]  # it has read again


def test_a_late_repetition_of_a_member_is_answered_as_before(desk: Desk, alone: Consumer) -> None:
    first = alone.commit_request({(1, 0): 1})
    assert desk.commit(first) == [""]
    assert desk.commit(alone.commit_request({(1, 0): 2})) == [""]
    assert desk.commit(first) == [""]
    assert desk.committed("g", "t", 0).offset == 2


def test_a_commit_outside_of_membership_ends_when_members_have_been_there(desk: Desk) -> None:
    delayed = outside(desk, 0, 3)
    member = Consumer(desk, "g", "a")
    member.join()
    member.leave()
    assert desk.commit(delayed) == ["STALE_ASSIGNMENT"]
    assert desk.commit(outside(desk, 0, 3)) == [""]


def test_what_is_not_there_is_said_for_each_partition(desk: Desk, alone: Consumer) -> None:
    asked = [pb.TopicPartition(topic="t", partition=p) for p in (0, 4)] + [pb.TopicPartition(topic="v", partition=0)]
    found = desk.coordinator.committed(pb.FetchCommittedRequest(group="g", partitions=asked)).partitions
    assert [partition.error.code for partition in found] == ["", "UNKNOWN_PARTITION", "UNKNOWN_TOPIC"]
    assert not found[0].HasField("offset")


def test_a_reset_wakes_who_holds_the_partition_and_nothing_of_before_applies(desk: Desk, alone: Consumer) -> None:
    alone.commit({(1, 0): 50, (1, 1): 50})
    delayed = alone.commit_request({(1, 0): 60, (1, 1): 60})
    before = dict(alone.owned)
    desk.woken.clear()
    assert desk.reset("g", pb.OffsetReset(topic="t", partition=0, offset=10)) == [""]
    assert desk.woken == {("g", "a")}
    assert desk.commit(delayed) == ["STALE_ASSIGNMENT", ""]
    alone.beat()
    assert {p for p in before if alone.owned[p].epoch != before[p].epoch} == {(1, 0)}
    assert desk.committed("g", "t", 0).offset == 10
    assert alone.commit({(1, 0): 11}) == [""]


def test_a_reset_of_what_is_being_let_go(desk: Desk) -> None:
    first, second = (Consumer(desk, "g", name) for name in "ab")
    first.join()
    first.commit({(1, p): 50 for p in range(4)})
    second.join()
    delayed = first.commit_request({(1, p): 60 for p in range(4)})
    for partition in range(4):
        assert desk.reset("g", pb.OffsetReset(topic="t", partition=partition, offset=10)) == [""]
    assert desk.commit(delayed) == ["STALE_ASSIGNMENT"] * 4
    settle([first, second])
    assert len(first.owned) == len(second.owned) == 2
    assert [desk.committed("g", "t", p).offset for p in range(4)] == [10] * 4


def test_a_reset_to_nothing_is_remembered(desk: Desk) -> None:
    assert desk.commit(outside(desk, 0, 5)) == [""]
    delayed = outside(desk, 0, 6)
    assert desk.reset("g", pb.OffsetReset(topic="t", partition=0)) == [""]
    assert not desk.committed("g", "t", 0).HasField("offset")
    assert desk.commit(delayed) == ["STALE_ASSIGNMENT"]
    assert desk.commit(outside(desk, 0, 2)) == [""]


@pytest.mark.parametrize(
    ("reset", "code"),
    [
        (pb.OffsetReset(topic="v", offset=1), "UNKNOWN_TOPIC"),
        (pb.OffsetReset(topic="t", topic_id=9, offset=1), "UNKNOWN_TOPIC"),
        (pb.OffsetReset(topic="t", partition=4, offset=1), "UNKNOWN_PARTITION"),
        (pb.OffsetReset(topic="t", offset=1_000_001), "OFFSET_OUT_OF_RANGE"),
        (pb.OffsetReset(topic="t", offset=2**64 - 1), "INVALID_REQUEST"),
    ],
)
def test_a_reset_that_may_not_be_makes_no_group(desk: Desk, reset: pb.OffsetReset, code: str) -> None:
    assert desk.reset("g", reset) == [code]
    assert not desk.batches
    assert not desk.coordinator.groups()


def test_a_reset_makes_a_group_for_its_first_members(desk: Desk) -> None:
    assert desk.reset("g", pb.OffsetReset(topic="t", partition=0, offset=5)) == [""]
    member = Consumer(desk, "g", "a")
    member.join()
    assert desk.committed("g", "t", 0).offset == 5


def test_a_group_is_deleted_when_it_is_empty(desk: Desk, alone: Consumer) -> None:
    alone.commit({(1, 0): 5})
    with pytest.raises(GroupNotEmpty):
        desk.coordinator.delete("g", desk.now_ms)
    alone.leave()
    desk.decided(desk.coordinator.delete("g", desk.now_ms))
    assert [record.key for record in desk.coordinator.state.snapshot()] == [b"floor"]
    with pytest.raises(UnknownGroup):
        desk.coordinator.delete("g", desk.now_ms)
    with pytest.raises(UnknownGroup):
        desk.coordinator.describe("g", desk.now_s)


def test_no_epoch_of_a_group_that_was_deleted_comes_back(desk: Desk) -> None:
    old = Consumer(desk, "g", "a")
    old.join()
    delayed = old.commit_request({(1, 0): 50})
    late = outside(desk, 1, 50)
    old.leave()
    later = outside(desk, 1, 50)
    desk.decided(desk.coordinator.delete("g", desk.now_ms))
    desk.take_over()
    for _ in range(5):  # the same member id, and as many epochs as the old one may have had
        new = Consumer(desk, "g", "a")
        new.join()
        assert desk.commit(delayed) == ["STALE_ASSIGNMENT"]
        with pytest.raises(GroupNotEmpty):
            desk.commit(late)
        new.leave()
        assert desk.commit(late) == ["STALE_ASSIGNMENT"]
        assert desk.commit(later) == ["STALE_ASSIGNMENT"]


def test_offsets_expire_a_week_after_the_group_is_empty(desk: Desk, alone: Consumer) -> None:
    alone.commit({(1, 0): 5})
    for _ in range(30):
        desk.now_ms += DAY_S * 1000
        alone.beat()
        desk.wait(30)
    assert desk.committed("g", "t", 0).offset == 5
    alone.leave()
    desk.wait(7 * DAY_S - 1)
    assert desk.committed("g", "t", 0).offset == 5
    desk.wait(desk.limits.expiry_check_s + 1)
    assert [record.key for record in desk.coordinator.state.snapshot()] == [b"floor"]


def test_offsets_without_members_expire_a_week_after_their_commit(desk: Desk) -> None:
    desk.commit(outside(desk, 0, 5))
    desk.wait(5 * DAY_S)
    desk.commit(outside(desk, 1, 5))
    old = outside(desk, 2, 9)
    desk.wait(3 * DAY_S)
    assert not desk.committed("g", "t", 0).HasField("offset")
    assert desk.committed("g", "t", 1).offset == 5
    assert desk.commit(old) == ["STALE_ASSIGNMENT"]
    desk.wait(5 * DAY_S)
    assert not desk.coordinator.groups()


def test_offsets_of_a_topic_that_can_be_brought_back_do_not_age(desk: Desk) -> None:
    topic_id = desk.catalog.topics["t"].topic_id
    desk.commit(outside(desk, 0, 5))
    desk.catalog.kept_until[topic_id] = desk.now_ms + 30 * DAY_S * 1000
    desk.wait(30 * DAY_S)
    assert desk.committed("g", "t", 0).offset == 5
    desk.wait(6 * DAY_S)
    assert desk.committed("g", "t", 0).offset == 5
    desk.wait(2 * DAY_S)
    assert not desk.coordinator.groups()


def test_expiry_goes_on_in_small_steps() -> None:
    catalog = Catalog()
    catalog.create("t", 4)
    desk = Desk(catalog, GroupLimits(records_max=3))
    for number in range(10):
        desk.commit(outside(desk, 0, 5, group=f"g{number}"))
    before = len(desk.batches)
    desk.wait(8 * DAY_S)
    assert not desk.coordinator.groups()
    assert max(map(len, desk.batches[before:])) <= 5


def test_committed_offsets_of_a_removed_topic_go(desk: Desk) -> None:
    desk.catalog.create("u", 1)
    desk.commit(outside(desk, 0, 5))
    desk.catalog.remove("t")
    desk.catalog.create("t", 4)
    desk.wait(0)
    assert not any(record.key.startswith(b"offset/") for record in desk.coordinator.state.snapshot())
    assert not desk.committed("g", "t", 0).HasField("offset")
