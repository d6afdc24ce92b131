"""Share sessions: epochs, partitions, bounds. And the members that a coordinator knows."""

from __future__ import annotations

import pytest

from ledgermq_broker.kafka.handlers.groups import share_members
from ledgermq_broker.kafka.handlers.groups.share_members import SESSION_S, Member, ShareMembers, TooManyMembers
from ledgermq_broker.kafka.handlers.shares import sessions as shares
from ledgermq_broker.kafka.handlers.shares.leases import Held, Place
from ledgermq_broker.kafka.handlers.shares.sessions import (
    ENDS,
    INT32_MAX,
    SESSIONS_MAX,
    Room,
    SessionRefused,
    Sessions,
)
from ledgermq_broker.kafka.wire.errors import Code


def code_of(sessions: Sessions, epoch: int, member: str = "m", *, fetches: bool = True) -> Code:
    try:
        (sessions.fetching if fetches else sessions.next)("g", member, epoch)
    except SessionRefused as refused:
        return refused.code
    return Code.NONE


def test_requests_come_in_the_order_of_their_epochs() -> None:
    sessions = Sessions(Room())
    assert code_of(sessions, 1) == Code.SHARE_SESSION_NOT_FOUND
    assert code_of(sessions, ENDS) == Code.SHARE_SESSION_NOT_FOUND
    assert code_of(sessions, 0, fetches=False) == Code.INVALID_SHARE_SESSION_EPOCH
    assert code_of(sessions, 0) == Code.NONE
    assert code_of(sessions, 2) == Code.INVALID_SHARE_SESSION_EPOCH
    assert code_of(sessions, 1) == Code.NONE
    assert code_of(sessions, 1) == Code.INVALID_SHARE_SESSION_EPOCH, "sent again"
    assert code_of(sessions, 2, fetches=False) == Code.NONE, "both APIs count"
    assert code_of(sessions, 3, member="other") == Code.SHARE_SESSION_NOT_FOUND
    session = sessions.next("g", "m", ENDS)
    sessions.end(session)
    assert code_of(sessions, 3) == Code.SHARE_SESSION_NOT_FOUND


def test_after_the_last_epoch_comes_one() -> None:
    sessions = Sessions(Room())
    sessions.fetching("g", "m", 0).epoch = INT32_MAX
    assert code_of(sessions, INT32_MAX) == Code.NONE
    assert code_of(sessions, 1) == Code.NONE


def test_a_session_that_begins_anew_keeps_what_the_member_holds() -> None:
    sessions, place = Sessions(Room()), Place(bytes(16), 0)
    first = sessions.fetching("g", "m", 0)
    first.read([place], [])
    first.leases.note(place, [Held(0, 1, 1, 1, 100.0)], 0.0)
    again = sessions.fetching("g", "m", 0)
    assert (again.epoch, list(again.partitions), bool(again.leases)) == (1, [], True)


def test_sessions_and_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(Room())
    for number in range(SESSIONS_MAX):
        assert code_of(sessions, 0, member=str(number)) == Code.NONE
    assert code_of(sessions, 0) == Code.SHARE_SESSION_LIMIT_REACHED
    assert code_of(sessions, 0, member="3") == Code.NONE, "one that is there may begin anew"
    monkeypatch.setattr(shares, "PARTITIONS_MAX", 3)
    session = sessions.next("g", "3", 1)
    with pytest.raises(SessionRefused):
        session.read([Place(bytes(16), number) for number in range(4)], [])
    assert len(session.partitions) == 3
    session.read([Place(bytes(16), 9)], [Place(bytes(16), 0)])
    assert [place.partition for place in session.partitions] == [1, 2, 9]


def places(*numbers: int) -> list[Place]:
    return [Place(bytes(16), number) for number in numbers]


def test_sessions_of_all_connections_share_their_places_by_hosts() -> None:
    room = Room(11)
    one, two, other = Sessions(room), Sessions(room), Sessions(room)
    first = one.fetching("g", "m", 0, "/10.0.0.1")
    first.read(places(0, 1, 2), [])
    second = two.fetching("g", "n", 0, "/10.0.0.1")  # of the same host: five places are taken now
    with pytest.raises(SessionRefused) as refused:
        second.read(places(0, 1), [])
    assert refused.value.code == Code.SHARE_SESSION_LIMIT_REACHED
    assert list(second.partitions) == [], "it reads what it read before"
    second.read(places(0), [])
    session = other.fetching("g", "o", 0, "/10.0.0.2")
    session.read(places(0, 1), [])
    with pytest.raises(SessionRefused):
        session.read(places(2), [])
    first.read([], places(0, 1))
    session.read(places(2), [])
    one.close()
    two.end(second)
    two.end(second)
    session.read(places(*range(5)), [])
    again = other.fetching("g", "o", 0, "/10.0.0.2")
    again.read(places(*range(5)), [])
    other.close()
    whole = one.fetching("g", "m", 0, "/10.0.0.1")
    whole.read(places(*range(5)), [])
    with pytest.raises(SessionRefused):
        whole.read(places(5), [])


def test_partitions_take_turns() -> None:
    session = Sessions(Room()).fetching("g", "m", 0)
    session.read([Place(bytes(16), number) for number in range(5)], [])
    assert [[place.partition for place in session.next_partitions(2)] for _ in range(3)] == [[0, 1], [2, 3], [4, 0]]
    assert len(session.next_partitions(9)) == 5


def member(group: str, name: str, *topics: str, host: str = "/10.0.0.1") -> Member:
    return Member(group, name, "client", host, topics=topics)


def test_a_member_hears_of_its_partitions_when_they_change() -> None:
    one = member("g", "m", "t")
    assert one.give(((b"1", "t", 2),), 0, says_all=True)
    assert one.epoch == 1
    assert not one.give(((b"1", "t", 2),), 1, says_all=False)
    assert one.give(((b"1", "t", 3),), 1, says_all=False), "the topic has grown"
    assert one.epoch == 2
    assert one.give(((b"1", "t", 3),), 1, says_all=False), "it did not get the answer"
    assert one.epoch == 2
    later = member("g", "m", "t")  # at another coordinator
    assert later.give(((b"1", "t", 3),), 2, says_all=True)
    assert later.epoch == 3, "an epoch never goes back"
    last = member("g", "m")
    last.give((), INT32_MAX, says_all=True)
    assert last.epoch == 1


def test_silent_members_are_forgotten() -> None:
    members = ShareMembers()
    members.keep(member("g", "a", "t"), 0.0)
    members.keep(member("g", "b", "t"), 1.0)
    assert [one.id for one in members.members("g", SESSION_S)] == ["a", "b"]
    assert [one.id for one in members.members("g", SESSION_S + 0.5)] == ["b"]
    assert members.groups(SESSION_S + 0.5) == ["g"]
    members.remove("g", "b")
    assert members.groups(SESSION_S + 0.5) == []


def test_the_members_of_one_host_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_members, "PLACES_MAX", 20)
    members = ShareMembers()
    with pytest.raises(TooManyMembers):
        members.keep(member("g", "all", *map(str, range(20))), 0.0)
    for number in range(5):
        members.keep(member("g", str(number), "t"), 0.0)
    with pytest.raises(TooManyMembers):
        members.keep(member("g", "more", "t"), 0.0)
    members.keep(member("g", "4", "t"), 0.0)  # it is there already
    members.keep(member("g", "other", "t", "u", host="/10.0.0.2"), 0.0)
    for number in range(5):
        members.remove("g", str(number))
    members.keep(member("h", "more", "t"), 0.0)
