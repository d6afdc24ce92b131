"""Members, as a coordinator sees them: joining, letting go, time-outs, static members, topics that
change, bounds.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledgermq.errors import (
    FilterConflict,
    InvalidGroupName,
    InvalidRequest,
    ResourceExhausted,
    StaticIdInUse,
    UnknownMember,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_offsets.limits import GroupLimits
from tests.worlds.coordinators import Catalog, Consumer, Desk, settle


@pytest.fixture
def desk() -> Desk:
    catalog = Catalog()
    catalog.create("t", 4)
    return Desk(catalog)


def two(desk: Desk, **subscription: object) -> tuple[Consumer, Consumer]:
    first, second = (Consumer(desk, "g", name, **subscription) for name in "ab")
    for consumer in (first, second):
        consumer.join()
    return first, second


def test_a_lone_member_gets_everything_at_once(desk: Desk) -> None:
    alone = Consumer(desk, "g", "a")
    alone.join()
    assert sorted(alone.owned) == [(1, p) for p in range(4)]
    assert len(desk.batches) == 1


def test_a_member_gets_a_partition_only_after_the_other_has_let_it_go(desk: Desk) -> None:
    first, second = two(desk)
    assert not second.owned
    still_held = dict(first.owned)
    first.beat()  # hears that it has to let go
    assert len(first.owned) == 2
    second.beat()
    assert not second.owned
    first.beat()  # says that it has
    second.beat()
    assert len(second.owned) == 2
    assert not set(first.owned) & set(second.owned)
    assert all(second.owned[p].epoch > still_held[p].epoch for p in second.owned)
    assert all(first.owned[p].epoch == still_held[p].epoch for p in first.owned)  # read on without a pause


def test_while_it_lets_go_a_member_may_commit(desk: Desk) -> None:
    first, _ = two(desk)
    before = dict(first.owned)
    request = first.commit_request(dict.fromkeys(before, 5))
    first.beat()
    assert desk.commit(request) == [""] * 4
    first.beat()
    assert sorted(first.commit(dict.fromkeys(first.owned, 6))) == ["", ""]
    assert sorted(desk.commit(request)) == ["", "", "STALE_ASSIGNMENT", "STALE_ASSIGNMENT"]


def test_a_held_heartbeat_has_something_to_say_only_when_something_changed(desk: Desk) -> None:
    first, second = two(desk)
    assert ("g", "a") in desk.woken
    settle([first, second])
    assert not desk.coordinator.changed_for("g", "a", first.seen_epoch)
    batches = len(desk.batches)
    first.beat()
    assert len(desk.batches) == batches
    desk.woken.clear()
    second.leave()
    assert desk.woken == {("g", "a"), ("g", "b")}
    assert desk.coordinator.changed_for("g", "a", first.seen_epoch)
    first.take(desk.coordinator.assignment("g", "a"))
    assert len(first.owned) == 4


def test_a_silent_member_is_put_out_and_its_partitions_are_free_at_once(desk: Desk) -> None:
    first, second = two(desk, session_timeout_ms=10_000)
    settle([first, second])
    delayed = second.commit_request(dict.fromkeys(second.owned, 3))
    desk.wait(6)
    first.beat()
    desk.wait(6)
    first.beat()
    assert len(first.owned) == 4
    with pytest.raises(UnknownMember):
        desk.commit(delayed)
    with pytest.raises(UnknownMember):
        second.beat()


def test_a_member_that_does_not_let_go_in_time_is_put_out(desk: Desk) -> None:
    first, second = two(desk, rebalance_timeout_ms=5_000)
    stuck = first.request(pb.STAY)
    for _ in range(4):
        desk.wait(1.0)
        desk.heartbeat(stuck)
        second.beat()
        assert not second.owned
    desk.wait(1.5)
    second.beat()
    assert len(second.owned) == 4
    with pytest.raises(UnknownMember):
        desk.heartbeat(stuck)


def test_a_removed_member_learns_it_before_it_comes_back(desk: Desk) -> None:
    alone = Consumer(desk, "g", "a")
    alone.join()
    desk.wait(60)
    request = alone.request(pb.JOIN)
    with pytest.raises(UnknownMember):
        desk.heartbeat(request)
    before = dict(alone.owned)
    alone.join()
    assert all(alone.owned[p].epoch > before[p].epoch for p in before)


def test_a_member_that_begins_anew_counts_from_one_again(desk: Desk) -> None:
    """It took itself for put out, but no coordinator did: under the old epoch its next commits
    would look like delayed ones.
    """
    alone = Consumer(desk, "g", "a")
    alone.join()
    for offset in (5, 6, 7):
        alone.commit({(1, 0): offset})
    alone.join()
    alone.counters = {}
    assert alone.commit({(1, 0): 9}) == [""]
    assert desk.committed("g", "t", 0).offset == 9


def test_what_was_not_told_is_not_taken_for_let_go(desk: Desk) -> None:
    alone = Consumer(desk, "g", "a")
    desk.heartbeat(alone.request(pb.JOIN))  # the answer is lost
    batches = len(desk.batches)
    alone.beat()
    assert len(alone.owned) == 4
    assert len(desk.batches) == batches  # nothing was given anew


def test_what_comes_back_comes_under_a_new_epoch(desk: Desk) -> None:
    """The member may have let go already, and its word of it may be on its way."""
    first, second = two(desk)
    before = dict(first.owned)
    word = Consumer(desk, "g", "a")
    word.take(desk.coordinator.assignment("g", "a"))  # two of four are to be let go
    late = word.request(pb.STAY)
    second.leave()
    first.take(desk.coordinator.assignment("g", "a"))
    assert len(first.owned) == 4
    assert sum(first.owned[p].epoch > before[p].epoch for p in before) == 2
    desk.heartbeat(late)
    first.beat()
    assert len(first.owned) == 4


def test_leaving_twice_is_no_error(desk: Desk) -> None:
    alone = Consumer(desk, "g", "a")
    alone.join()
    alone.leave()
    alone.leave()
    assert desk.coordinator.groups()[0].state == pb.EMPTY


def test_a_static_member_finds_its_partitions_after_a_restart(desk: Desk) -> None:
    first, second = two(desk)
    second.leave()
    old = Consumer(desk, "g", "old", instance_id="s")
    old.join()
    settle([first, old])
    mine, theirs = dict(old.owned), dict(first.owned)
    delayed = old.commit_request(dict.fromkeys(mine, 9))
    old.leave(pb.LEAVE_FOR_A_WHILE)
    with pytest.raises(UnknownMember):
        desk.commit(delayed)
    with pytest.raises(UnknownMember):
        old.beat()
    desk.wait(5)
    first.beat()
    assert first.owned == theirs
    new = Consumer(desk, "g", "new", instance_id="s")
    new.join()
    assert set(new.owned) == set(mine)
    assert all(new.owned[p].epoch > mine[p].epoch for p in mine)
    first.beat()
    assert first.owned == theirs  # no other member noticed


def test_a_static_member_that_stays_away_is_put_out(desk: Desk) -> None:
    first = Consumer(desk, "g", "a")
    away = Consumer(desk, "g", "b", instance_id="s", session_timeout_ms=10_000)
    for consumer in (first, away):
        consumer.join()
    settle([first, away])
    away.leave(pb.LEAVE_FOR_A_WHILE)
    desk.take_over()  # it is away in the log too
    desk.wait(11)
    settle([first])
    assert len(first.owned) == 4


def test_two_members_with_one_static_id(desk: Desk) -> None:
    first, second = (Consumer(desk, "g", name, instance_id="s") for name in "ab")
    first.join()
    desk.wait(5)
    with pytest.raises(StaticIdInUse) as refused:
        second.join()
    assert refused.value.retry_after_ms == 40_000
    first.beat()
    assert len(first.owned) == 4


def test_a_member_without_an_instance_id_cannot_leave_for_a_while(desk: Desk) -> None:
    alone = Consumer(desk, "g", "a")
    alone.join()
    with pytest.raises(InvalidRequest, match="instance id"):
        alone.leave(pb.LEAVE_FOR_A_WHILE)
    assert len(desk.coordinator.describe("g", 0).members) == 1


def test_a_topic_that_grows_is_noticed(desk: Desk) -> None:
    first, second = two(desk)
    settle([first, second])
    before = {**first.owned, **second.owned}
    desk.catalog.grow("t", 8)
    settle([first, second])
    after = {**first.owned, **second.owned}
    assert (len(first.owned), len(second.owned)) == (4, 4)
    assert all(after[p] == before[p] for p in before)  # nothing has moved


def test_a_topic_created_again_is_another_one(desk: Desk) -> None:
    alone = Consumer(desk, "g", "a")
    alone.join()
    alone.commit({(1, 0): 7})
    delayed = alone.commit_request({(1, 1): 8})
    desk.catalog.remove("t")
    assert desk.commit(delayed) == ["UNKNOWN_TOPIC"]
    desk.catalog.create("t", 2)
    settle([alone])
    assert sorted(alone.owned) == [(2, 0), (2, 1)]
    assert not desk.committed("g", "t", 0).HasField("offset")
    assert not any(record.key.startswith(b"offset/") for record in desk.coordinator.state.snapshot())


def test_a_catalog_that_is_behind_takes_nothing_away(desk: Desk) -> None:
    alone = Consumer(desk, "g", "a")
    desk.catalog.create("u", 2)
    alone.subscription.topics.append("u")
    alone.join()
    behind = Catalog()
    behind.create("t", 2)  # knows neither the topic u nor that t has grown
    desk.coordinator._view = behind
    desk.catalog = behind
    desk.take_over()
    settle([alone])
    assert len(alone.owned) == 6
    assert alone.commit({(1, 3): 5, (2, 1): 5}) == ["", ""]


def test_a_subscription_may_change(desk: Desk) -> None:
    desk.catalog.create("u", 3)
    alone = Consumer(desk, "g", "a")
    alone.join()
    before = dict(alone.owned)
    alone.subscription.topics[:] = ["u", "t"]
    desk.wait(1)
    alone.take(desk.heartbeat(alone.request(pb.JOIN)))
    assert len(alone.owned) == 7
    assert all(alone.owned[p] == before[p] for p in before)


def test_after_a_takeover_nothing_moves(desk: Desk) -> None:
    first, second = two(desk)
    settle([first, second])
    owned = (dict(first.owned), dict(second.owned))
    desk.take_over()
    batches = len(desk.batches)
    settle([first, second])
    assert (first.owned, second.owned) == owned
    assert len(desk.batches) == batches
    desk.wait(44)  # session clocks began anew
    first.beat()
    second.beat()


@pytest.mark.parametrize("assignor", ["uniform", "range", "sticky", "consistent_hash"])
def test_members_agree_on_an_assignor(desk: Desk, assignor: str) -> None:
    first, second = two(desk, assignor=assignor)
    settle([first, second])
    assert len(first.owned) + len(second.owned) == 4
    info = desk.coordinator.describe("g", desk.now_s)
    assert (info.assignor, info.state, info.member_count) == (assignor, pb.STABLE, 2)
    assert [len(member.assigned) for member in info.members] == [len(first.owned), len(second.owned)]


def test_bounds_of_members_groups_and_partitions() -> None:
    catalog = Catalog()
    catalog.create("t", 4)
    catalog.create("big", 11)
    desk = Desk(catalog, GroupLimits(members_max=2, groups_max=2, partitions_max=10, subscriptions_bytes_max=200))
    two(desk)
    before = desk.coordinator.state.snapshot()
    with pytest.raises(ResourceExhausted, match="2 members"):
        Consumer(desk, "g", "c").join()
    Consumer(desk, "h", "a").join()
    for refused in (
        Consumer(desk, "i", "a"),
        Consumer(desk, "h", "b", topics=["big"]),
        Consumer(desk, "h", "b", topics=["x" * 199]),
    ):
        with pytest.raises(ResourceExhausted):
            refused.join()
    with pytest.raises(InvalidRequest, match="this one reports 11"):
        desk.heartbeat(
            pb.GroupHeartbeatRequest(
                group="g", member_id="a", owned=[pb.GivenPartition(partition=n) for n in range(11)]
            )
        )
    assert [r for r in desk.coordinator.state.snapshot() if b"/h" not in r.key] == before


def test_names_and_steps_are_checked(desk: Desk) -> None:
    with pytest.raises(InvalidGroupName):
        desk.heartbeat(pb.GroupHeartbeatRequest(group="a/b", member_id="m", step=pb.JOIN))
    with pytest.raises(InvalidRequest, match="member id"):
        desk.heartbeat(pb.GroupHeartbeatRequest(group="g", member_id="a/b", step=pb.JOIN))
    Consumer(desk, "g", "a").join()
    with pytest.raises(InvalidRequest, match="step"):
        desk.heartbeat(pb.GroupHeartbeatRequest(group="g", member_id="a", step=9))  # type: ignore[arg-type]


def test_the_target_of_a_large_group_is_not_computed_for_every_join() -> None:
    catalog = Catalog()
    catalog.create("t", 5000)
    desk = Desk(catalog)
    consumers = [Consumer(desk, "g", f"m{number}") for number in range(5)]
    for consumer in consumers:
        consumer.join()
    assert [len(consumer.owned) for consumer in consumers] == [5000, 0, 0, 0, 0]
    assert not desk.coordinator.changed_for("g", "m0", consumers[0].seen_epoch)
    desk.wait(0.5)
    assert desk.coordinator.changed_for("g", "m0", consumers[0].seen_epoch)
    settle(consumers, 3)
    assert [len(consumer.owned) for consumer in consumers] == [1000] * 5


# -- filters


def test_a_member_with_another_filter_is_refused_until_the_others_have_left(desk: Desk) -> None:
    first = Consumer(desk, "g", "a", filter="A || B")
    first.join()
    for other in ("A", "", "*"):  # none at all: also a client without filters
        with pytest.raises(FilterConflict, match="g has members with the filter 'A"):
            Consumer(desk, "g", "b", filter=other).join()
    Consumer(desk, "g", "b", filter="A || B").join()
    Consumer(desk, "other", "c", filter="A").join()
    assert set(desk.coordinator.state.groups["g"].members) == {"a", "b"}
    with pytest.raises(FilterConflict):
        Consumer(desk, "g", "a", filter="A").join()  # the other one is still there
    desk.heartbeat(pb.GroupHeartbeatRequest(group="g", member_id="b", step=pb.LEAVE))
    Consumer(desk, "g", "a", filter="A").join()  # alone, it may change its own
    assert desk.coordinator.state.groups["g"].members["a"].subscription.filter == "A"


def test_a_filter_that_no_coordinator_knew_refuses_nobody(desk: Desk) -> None:
    """A coordinator of an earlier release stores members without their filters."""
    first = Consumer(desk, "g", "a", filter="A")
    first.join()
    group = desk.coordinator.state.groups["g"]
    group.members["a"].subscription = replace(group.members["a"].subscription, filter="")
    Consumer(desk, "g", "b", filter="A").join()
    with pytest.raises(FilterConflict):
        Consumer(desk, "g", "c").join()


def test_a_static_member_that_is_away_keeps_no_other_filter_out(desk: Desk) -> None:
    first = Consumer(desk, "g", "a", instance_id="one", filter="A")
    first.join()
    first.leave(pb.LEAVE_FOR_A_WHILE)
    Consumer(desk, "g", "b", filter="B").join()
    with pytest.raises(FilterConflict):
        Consumer(desk, "g", "a2", instance_id="one", filter="A").join()
    Consumer(desk, "g", "a2", instance_id="one", filter="B").join()
