"""Offsets that transactions stage: what waits for them, what they become, and what no late call can
undo.
"""

from __future__ import annotations

import pytest

from ledgermq.errors import (
    GroupNotEmpty,
    InvalidRequest,
    ResourceExhausted,
    TransactionTooLarge,
    Unavailable,
    UnknownMember,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.producer_ids import shown_producer_id
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.state.records import PendingKey
from tests.worlds.coordinators import Catalog, Consumer, Desk, settle, staged_in

DAY_S = 86_400
ONE, TWO = b"\x01" * 16, b"\x02" * 16
FIRST = PendingKey(ONE, 1, 1)
OTHER = PendingKey(TWO, 1, 1)


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


def outside(desk: Desk, partition: int, offset: int, group: str = "g") -> pb.CommitOffsetsRequest:
    found = desk.committed(group, "t", partition)
    commit = pb.OffsetCommit(
        topic="t",
        topic_id=found.topic_id,
        partition=partition,
        epoch=found.epoch,
        counter=found.counter + 1,
        offset=offset,
    )
    return pb.CommitOffsetsRequest(group=group, commits=[commit])


def code(desk: Desk, partition: int) -> str:
    return desk.committed("g", "t", partition).error.code


def has_pending(desk: Desk, key: PendingKey) -> bool:
    return desk.coordinator.has_pending("g", *key)


def test_a_staged_offset_is_committed_with_its_transaction(desk: Desk, alone: Consumer) -> None:
    request = staged_in(FIRST, alone.commit_request({(1, 2): 7}))
    request.commits[0].metadata = "where I was"
    assert desk.stage(request) == [""]
    assert has_pending(desk, FIRST)
    assert not desk.coordinator.has_pending("h", *FIRST)
    desk.take_over()
    assert code(desk, 2) == "UNAVAILABLE"
    desk.settle(FIRST, "g")
    found = desk.committed("g", "t", 2)
    assert (found.offset, found.metadata, found.commit_ms, found.counter) == (7, "where I was", desk.now_ms, 1)
    assert found.epoch == alone.owned[1, 2].epoch
    assert not has_pending(desk, FIRST)
    batches = len(desk.batches)
    desk.settle(FIRST, "g")
    assert len(desk.batches) == batches


def test_a_staged_offset_goes_when_its_transaction_is_aborted(desk: Desk, alone: Consumer) -> None:
    alone.commit({(1, 0): 5})
    before = desk.coordinator.state.snapshot()
    assert alone.stage(FIRST, {(1, 0): 9, (1, 1): 9}) == ["", ""]
    desk.settle(FIRST)
    assert desk.coordinator.state.snapshot() == before
    assert alone.commit({(1, 0): 8}) == [""]


def test_a_pending_partition_answers_who_keeps_it_waiting(desk: Desk, alone: Consumer) -> None:
    alone.commit({(1, 0): 5, (1, 3): 5})
    alone.stage(FIRST, {(1, 0): 9, (1, 1): 9})
    found = desk.committed("g", "t", 0)
    assert "open transaction id-0101 has staged an offset of partition 0 of t" in found.error.message
    assert (found.error.code, found.error.retry_after_ms) == ("UNAVAILABLE", 200)
    assert not found.HasField("offset")
    assert code(desk, 3) == ""
    everything = desk.coordinator.committed(pb.FetchCommittedRequest(group="g")).partitions
    assert [(part.partition, part.error.code) for part in everything] == [
        (0, "UNAVAILABLE"),
        (1, "UNAVAILABLE"),
        (3, ""),
    ]
    described = desk.coordinator.describe("g", desk.now_s)
    assert [(part.partition, part.offset) for part in described.committed] == [(0, 5), (3, 5)]
    assert [(s.partition, s.offset, s.transaction.producer_id) for s in described.pending] == [
        (0, 9, shown_producer_id(ONE)),
        (1, 9, shown_producer_id(ONE)),
    ]


def test_everything_else_waits_while_an_offset_is_pending(desk: Desk, alone: Consumer) -> None:
    alone.commit({(1, 0): 5})
    alone.stage(FIRST, {(1, 0): 9})
    before, batches = desk.coordinator.state.snapshot(), len(desk.batches)
    assert alone.commit({(1, 0): 10}) == ["UNAVAILABLE"]
    assert alone.stage(OTHER, {(1, 0): 10}) == ["UNAVAILABLE"]
    assert alone.stage(FIRST._replace(number=2), {(1, 0): 10}) == ["UNAVAILABLE"]
    assert alone.stage(FIRST._replace(epoch=2), {(1, 0): 10}) == ["UNAVAILABLE"]
    assert desk.reset("g", pb.OffsetReset(topic="t", partition=0, offset=1)) == ["UNAVAILABLE"]
    with pytest.raises(GroupNotEmpty):
        desk.coordinator.delete("g", desk.now_ms)
    assert (desk.coordinator.state.snapshot(), len(desk.batches)) == (before, batches)
    alone.leave()
    with pytest.raises(Unavailable, match="id-0101"):
        desk.coordinator.delete("g", desk.now_ms)
    assert desk.commit(outside(desk, 1, 3)) == [""]  # another partition does not wait
    desk.settle(FIRST)
    desk.decided(desk.coordinator.delete("g", desk.now_ms))
    assert [record.key for record in desk.coordinator.state.snapshot()] == [b"floor"]


def test_nothing_of_a_group_expires_while_an_offset_is_pending(desk: Desk, alone: Consumer) -> None:
    alone.commit({(1, 0): 5, (1, 1): 5})
    alone.stage(FIRST, {(1, 0): 9})
    alone.leave()
    desk.wait(30 * DAY_S)
    assert desk.committed("g", "t", 1).offset == 5
    desk.settle(FIRST, "g")
    desk.wait(6 * DAY_S)
    assert desk.committed("g", "t", 0).offset == 9
    desk.wait(2 * DAY_S)
    assert [record.key for record in desk.coordinator.state.snapshot()] == [b"floor"]


def test_a_group_without_anything_but_staged_offsets_is_kept(desk: Desk) -> None:
    assert desk.stage(staged_in(FIRST, outside(desk, 0, 5))) == [""]
    desk.wait(30 * DAY_S)
    desk.take_over()
    desk.settle(FIRST, "g")
    assert desk.committed("g", "t", 0).offset == 5


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"epoch": 1}, "STALE_ASSIGNMENT"),
        ({"partition": 9}, "STALE_ASSIGNMENT"),
        ({"topic_id": 0, "topic": "v"}, "UNKNOWN_TOPIC"),
        ({"offset": 1_000_001}, "OFFSET_OUT_OF_RANGE"),
        ({"offset": 4}, "COMMIT_GOES_BACK"),
        ({"counter": 0}, "INVALID_REQUEST"),
        ({"metadata": "ä" * 2049}, "INVALID_REQUEST"),
    ],
)
def test_one_bad_offset_stages_nothing(desk: Desk, alone: Consumer, change: dict[str, object], refusal: str) -> None:
    alone.commit({(1, 0): 5, (1, 1): 5})
    before, batches = desk.coordinator.state.snapshot(), len(desk.batches)
    request = staged_in(FIRST, alone.commit_request({(1, 1): 6, (1, 0): 6}))
    for name, value in change.items():
        setattr(request.commits[1], name, value)
    assert desk.stage(request) == ["", refusal]
    assert (desk.coordinator.state.snapshot(), len(desk.batches)) == (before, batches)
    assert not has_pending(desk, FIRST)
    assert code(desk, 1) == ""


def test_a_transaction_replaces_its_own_offsets_and_keeps_the_others(desk: Desk, alone: Consumer) -> None:
    first = staged_in(FIRST, alone.commit_request({(1, 0): 5, (1, 1): 5}))
    second = staged_in(FIRST, alone.commit_request({(1, 1): 8, (1, 2): 8}))
    assert desk.stage(first) == ["", ""]
    assert desk.stage(second) == ["", ""]
    batches = len(desk.batches)
    for repeated in (first, second):
        assert desk.stage(repeated) == ["", ""]
    assert len(desk.batches) == batches
    assert alone.stage(FIRST, {(1, 1): 7}) == ["COMMIT_GOES_BACK"]
    desk.settle(FIRST, "g")
    assert [desk.committed("g", "t", p).offset for p in range(3)] == [5, 8, 8]


def test_another_offset_under_the_same_counter_is_no_repetition(desk: Desk, alone: Consumer) -> None:
    """It is of another program that uses the same transaction."""
    request = staged_in(FIRST, alone.commit_request({(1, 0): 5}))
    assert desk.stage(request) == desk.stage(request) == [""]
    for change in ({"offset": 6}, {"metadata": "other"}):
        other = pb.StageOffsetsRequest()
        other.CopyFrom(request)
        for name, value in change.items():
            setattr(other.commits[0], name, value)
        assert desk.stage(other) == ["STALE_ASSIGNMENT"]
    desk.settle(FIRST, "g")
    assert desk.committed("g", "t", 0).offset == 5


def test_a_late_offset_behind_a_plain_commit_is_refused(desk: Desk, alone: Consumer) -> None:
    """An answer "staged" with nothing staged would make its transaction impossible to complete."""
    late = staged_in(FIRST, alone.commit_request({(1, 0): 5}))
    assert alone.commit({(1, 0): 5}) == [""]
    assert desk.stage(late) == ["COMMIT_GOES_BACK"]
    assert not has_pending(desk, FIRST)


def test_a_repeated_commit_is_acknowledged_while_a_later_offset_is_pending(desk: Desk, alone: Consumer) -> None:
    plain = alone.commit_request({(1, 0): 5})
    assert desk.commit(plain) == [""]
    alone.stage(FIRST, {(1, 0): 9})
    assert desk.commit(plain) == [""]
    desk.settle(FIRST, "g")
    assert desk.commit(plain) == [""]
    assert desk.committed("g", "t", 0).offset == 9
    assert alone.commit({(1, 0): 9}) == [""]


@pytest.mark.parametrize("committed", [True, False])
def test_the_next_holder_continues_from_what_the_transaction_decided(
    desk: Desk, alone: Consumer, committed: bool
) -> None:
    """The decision comes after the partition went to another member, under a later epoch."""
    for offset in range(5):
        assert alone.commit({(1, 0): offset + 1}) == [""]
    assert alone.stage(FIRST, {(1, 0): 9}) == [""]
    delayed = alone.commit_request({(1, 0): 10})
    alone.leave()
    next_one = Consumer(desk, "g", "b")
    next_one.join()
    assert code(desk, 0) == "UNAVAILABLE"
    assert next_one.commit({(1, 0): 6}) == ["UNAVAILABLE"]
    desk.settle(FIRST, *["g"] * committed)
    found = desk.committed("g", "t", 0)
    assert (found.offset, found.epoch, found.counter) == (9 if committed else 5, next_one.owned[1, 0].epoch, 0)
    desk.take_over()
    with pytest.raises(UnknownMember):
        desk.commit(delayed)
    fresh = next_one.commit_request({(1, 0): found.offset})
    fresh.commits[0].counter = 1  # below the counter that the offset was staged with, under a later epoch
    assert desk.commit(fresh) == [""]
    assert desk.committed("g", "t", 0).counter == 1


def test_a_former_holder_stages_nothing(desk: Desk, alone: Consumer) -> None:
    second = Consumer(desk, "g", "b")
    delayed = staged_in(FIRST, alone.commit_request({(1, p): 5 for p in range(4)}))
    second.join()
    settle([alone, second])
    gone = {p for _, p in second.owned}
    codes = desk.stage(delayed)
    assert {p for p in range(4) if codes[p] == "STALE_ASSIGNMENT"} == gone
    assert not has_pending(desk, FIRST)


def test_the_bare_epoch_is_in_force_after_members_left_with_staged_offsets(desk: Desk, alone: Consumer) -> None:
    alone.stage(FIRST, {(1, 0): 9})
    alone.leave()
    desk.settle(FIRST, "g")
    assert desk.commit(outside(desk, 0, 8)) == ["COMMIT_GOES_BACK"]
    assert desk.commit(outside(desk, 0, 10)) == [""]


def test_completing_drops_what_the_producer_staged_at_or_below(desk: Desk, alone: Consumer) -> None:
    """The order is that of pairs: number 9 of an earlier epoch is below, number 1 of a later one is
    above.
    """
    keys = [PendingKey(ONE, 1, 9), PendingKey(ONE, 2, 3), PendingKey(ONE, 3, 1), PendingKey(TWO, 1, 1)]
    for partition, key in enumerate(keys):
        assert alone.stage(key, {(1, partition): 9}) == [""]
    desk.settle(PendingKey(ONE, 2, 3), "g")
    assert [has_pending(desk, key) for key in keys] == [False, False, True, True]
    assert [desk.committed("g", "t", p).HasField("offset") for p in range(2)] == [False, True]
    desk.take_over()
    assert [has_pending(desk, key) for key in keys] == [False, False, True, True]


def test_offsets_of_groups_that_the_decision_does_not_name_are_dropped(desk: Desk) -> None:
    for group in ("g", "h"):
        assert desk.stage(staged_in(FIRST, outside(desk, 0, 5, group))) == [""]
    [found] = desk.coordinator.pending_transactions(desk.now_ms, 0)
    assert found.groups == ("g", "h")
    before = len(desk.batches)
    desk.settle(FIRST, "h")
    assert len(desk.batches) == before + 1  # both groups, in one batch
    assert desk.committed("h", "t", 0).offset == 5
    assert not desk.committed("g", "t", 0).HasField("offset")


def test_staged_offsets_of_a_removed_topic_are_dropped_at_completion(desk: Desk) -> None:
    desk.catalog.create("u", 1)
    member = Consumer(desk, "g", "a", topics=("t", "u"))
    member.join()
    assert member.stage(FIRST, {(1, 0): 5, (2, 0): 6}) == ["", ""]
    desk.catalog.remove("t")
    desk.wait(0)
    assert has_pending(desk, FIRST)
    desk.settle(FIRST, "g")
    keys = {record.key for record in desk.coordinator.state.snapshot() if record.key.startswith((b"offset", b"pend"))}
    assert keys == {b"offset/g/2/0"}


def test_the_bundle_asks_about_what_has_been_pending_for_long(desk: Desk, alone: Consumer) -> None:
    alone.stage(FIRST, {(1, 0): 5})
    first_ms = desk.now_ms
    desk.wait(8)
    alone.stage(OTHER, {(1, 1): 5})
    alone.stage(FIRST, {(1, 0): 6})
    desk.take_over()
    assert not desk.coordinator.pending_transactions(first_ms + 9_999, 10_000)
    [found] = desk.coordinator.pending_transactions(first_ms + 10_000, 10_000)
    assert (found.transactional_id, found.coordinator, found.groups, found.staged_ms) == (
        "id-0101",
        3,
        ("g",),
        first_ms,
    )
    assert (found.producer_id, found.epoch, found.number) == FIRST
    assert len(desk.coordinator.pending_transactions(first_ms + 18_000, 10_000)) == 2


def test_the_end_is_asked_for_before_an_offset_is_staged(desk: Desk, alone: Consumer) -> None:
    request = staged_in(FIRST, alone.commit_request({(1, 0): 50}))
    assert [(end.topic, end.partition) for end in desk.coordinator.ends_needed(request)] == [("t", 0)]
    answer = desk.coordinator.stage_offsets(request, {}, desk.now_ms).answer
    assert [result.error.code for result in answer.results] == ["UNAVAILABLE"]
    assert desk.stage(request) == [""]


@pytest.mark.parametrize(
    "change", [{"producer_id": b"\x01" * 15}, {"epoch": 0}, {"number": 0}, {"transactional_id": "a/b"}]
)
def test_a_transaction_has_a_full_name(desk: Desk, alone: Consumer, change: dict[str, object]) -> None:
    request = staged_in(FIRST, alone.commit_request({(1, 0): 5}))
    for name, value in change.items():
        setattr(request.transaction, name, value)
    with pytest.raises(InvalidRequest):
        desk.stage(request)


def test_only_a_member_stages_and_never_nothing(desk: Desk, alone: Consumer) -> None:
    stranger = staged_in(FIRST, alone.commit_request({(1, 0): 5}))
    stranger.member_id = "b"
    with pytest.raises(UnknownMember):
        desk.stage(stranger)
    stranger.member_id = ""
    with pytest.raises(GroupNotEmpty):
        desk.stage(stranger)
    with pytest.raises(InvalidRequest, match="stages no offset"):
        alone.stage(FIRST, {})


def test_bounds_of_staged_offsets() -> None:
    catalog = Catalog()
    catalog.create("t", 9)
    desk = Desk(catalog, GroupLimits(partitions_max=4, commits_max=3, pending_max=2, request_bytes_max=2000))
    assert desk.commit(outside(desk, 0, 5)) == [""]
    for partition in (0, 1, 2):
        request = outside(desk, partition, 6)
        assert desk.stage(staged_in(FIRST, request)) == [""]
    with pytest.raises(TransactionTooLarge, match="4 offsets"):
        desk.stage(staged_in(FIRST, outside(desk, 3, 6)))
    assert desk.stage(staged_in(OTHER, outside(desk, 3, 6))) == [""]
    with pytest.raises(ResourceExhausted, match="2 open transactions"):
        desk.stage(staged_in(PendingKey(b"\x03" * 16, 1, 1), outside(desk, 4, 6)))
    with pytest.raises(ResourceExhausted, match="more than 4 partitions"):
        desk.stage(staged_in(OTHER, outside(desk, 4, 6)))
    assert desk.commit(outside(desk, 4, 6)) == ["RESOURCE_EXHAUSTED"]
    assert desk.reset("g", pb.OffsetReset(topic="t", partition=4)) == ["RESOURCE_EXHAUSTED"]
    desk.settle(FIRST)
    assert desk.commit(outside(desk, 4, 6)) == [""]


def test_a_transaction_stages_just_so_many_bytes(desk: Desk, alone: Consumer) -> None:
    desk.coordinator._limits = GroupLimits(request_bytes_max=2000)
    for partition, refusal in enumerate([None, "bytes"]):
        request = staged_in(FIRST, alone.commit_request({(1, partition): 5}))
        request.commits[0].metadata = "m" * 1000
        if refusal is None:
            assert desk.stage(request) == [""]
        else:
            with pytest.raises(TransactionTooLarge, match=refusal):
                desk.stage(request)
