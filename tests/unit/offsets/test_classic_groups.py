"""Classic groups, step by step: which request gets which answer in which state, as in Kafka."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ledgermq.errors import DataDamaged, FormatNotSupported, GroupNotEmpty, UnknownMember
from ledgermq_offsets.classic.coordinator import ClassicGroups
from ledgermq_offsets.classic.records import decode, encode
from ledgermq_offsets.classic.values import (
    ClassicLimits,
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidSessionTimeout,
    JoinAnswer,
    JoinRequest,
    MemberIdRequired,
    RebalanceInProgress,
    State,
    SyncAnswer,
)
from ledgermq_offsets.format import ledgermq_offsets_pb2 as fmt

GOLDEN = Path(__file__).parents[2] / "golden" / "offsets-classic-v1.bin"
LIMITS = ClassicLimits(members_max=3, member_bytes_max=1000, group_bytes_max=1500)
RANGE = (("range", b"r"),)


class World:
    """A coordinator, its log, and a clock. Members are named by their client ids."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.groups = self.load()

    def load(self) -> ClassicGroups:
        ids = iter(range(1000))
        groups = ClassicGroups(LIMITS, lambda client: f"{client}#{self.now_s:g}-{next(ids)}")
        for key, value in self.log:
            groups.apply(key, value)
        groups.start(self.now_s)
        return groups

    def made(self, decision):  # type: ignore[no-untyped-def]
        self.log += [(r.key, None if r.value is None else bytes(r.value)) for r in decision.records]
        return decision

    def join(self, client: str, member_id: str = "", **fields):  # type: ignore[no-untyped-def]
        request = JoinRequest("g", member_id, "consumer", RANGE, client_id=client, rebalance_timeout_ms=20_000)
        request = type(request)(**{name: getattr(request, name) for name in request.__slots__} | fields)
        return self.made(self.groups.join(request, self.now_s, 1)).answer

    def sync(self, member_id: str, generation: int, **fields):  # type: ignore[no-untyped-def]
        return self.made(self.groups.sync("g", member_id, generation, self.now_s, **fields)).answer

    def beat(self, member_id: str, generation: int, instance_id: str = "") -> None:
        self.groups.heartbeat("g", member_id, generation, self.now_s, instance_id)

    def leave(self, *leaving: tuple[str, str]):  # type: ignore[no-untyped-def]
        return self.made(self.groups.leave("g", leaving, self.now_s, 1))

    def wait(self, seconds: float) -> list[tuple[str, str]]:
        """Return whose held calls are answered meanwhile."""
        woken: list[tuple[str, str]] = []
        until = self.now_s + seconds
        while self.groups.next_due_s() <= until:
            self.now_s = max(self.now_s, self.groups.next_due_s())
            if (decision := self.groups.tick(self.now_s, 1)) is not None:
                woken += self.made(decision).woken
        self.now_s = until
        return woken

    @property
    def group(self):  # type: ignore[no-untyped-def]
        return self.groups.groups["g"]

    def stable(self, count: int = 2, **fields) -> list[str]:  # type: ignore[no-untyped-def]
        """Return the members of a group in its first generation; the first one leads."""
        for number in range(count):
            assert self.join(f"c{number}", **fields) is None
        members = [member_id for _, member_id in self.wait(4)]
        for member_id in members:
            assert isinstance(self.groups.held_answer("g", member_id), JoinAnswer)
        for member_id in members[1:]:
            assert self.sync(member_id, 1) is None
        plan = {member_id: b"of " + member_id.encode() for member_id in members}
        assert self.sync(members[0], 1, assignments=plan) == SyncAnswer("consumer", "range", plan[members[0]])
        for member_id in members[1:]:
            assert self.groups.held_answer("g", member_id) == SyncAnswer("consumer", "range", plan[member_id])
        return members


def in_state(state: State) -> tuple[World, list[str]]:
    world = World()
    if state is State.EMPTY:
        members = world.stable()
        world.leave(*((member_id, "") for member_id in members))
        return world, members
    members = world.stable()
    if state is not State.STABLE:
        world.join("c0", members[0])
    if state is State.COMPLETING:
        world.join("c1", members[1])
    assert world.group.state is state
    return world, members


@pytest.mark.parametrize(
    ("state", "beat", "sync", "commit"),
    [
        (State.EMPTY, UnknownMember, UnknownMember, UnknownMember),
        (State.PREPARING, RebalanceInProgress, RebalanceInProgress, None),
        (State.COMPLETING, None, None, RebalanceInProgress),
        (State.STABLE, None, None, None),
    ],
)
def test_what_members_may_do_in_each_state(
    state: State, beat: type[Exception] | None, sync: type[Exception] | None, commit: type[Exception] | None
) -> None:
    """27 lets a client join again under its id; 22 and 25 would make it drop what it holds."""
    world, members = in_state(state)
    generation = world.group.generation
    calls: list[tuple[Callable[[], object], type[Exception] | None]] = [
        (lambda: world.beat(members[1], generation), beat),
        (lambda: world.groups.check_commit("g", members[1], generation, world.now_s), commit),
        (lambda: world.sync(members[1], generation), sync),
    ]
    for call, error in calls:
        if error is None:
            call()
        else:
            with pytest.raises(error):
                call()
    if state is not State.EMPTY:
        for call in (
            lambda: world.beat(members[1], generation - 1),
            lambda: world.sync(members[1], generation + 1),
            lambda: world.groups.check_commit("g", members[1], generation - 1, world.now_s),
        ):
            with pytest.raises(IllegalGeneration):
                call()
    with pytest.raises(UnknownMember):
        world.beat("nobody", generation)


def test_commits_without_a_member() -> None:
    """Consumers that assign themselves, and tools, commit with generation -1 while a group has no members."""
    world, _ = in_state(State.STABLE)
    with pytest.raises(UnknownMember):
        world.groups.check_commit("g", "", -1, 0.0)
    world.groups.check_commit("g", "", -1, 0.0, staged=True)
    world.groups.check_commit("other", "", -1, 0.0)
    in_state(State.EMPTY)[0].groups.check_commit("g", "", -1, 0.0)


def test_the_first_members_wait_for_others() -> None:
    world = World()
    world.join("a")
    assert world.wait(2) == []
    world.join("b")
    assert world.wait(2.9) == []
    assert len(world.wait(0.2)) == 2
    world = World()
    for number in range(3):
        world.join(f"c{number}", rebalance_timeout_ms=4_000)
        woken = world.wait(2.5 if number < 2 else 0.1)
    assert woken == [] or len(woken) == 3  # not beyond the rebalance time-out


def test_new_members_get_an_id_first() -> None:
    world = World()
    with pytest.raises(MemberIdRequired) as found:
        world.join("a", id_required=True)
    with pytest.raises(UnknownMember):
        world.beat(found.value.member_id, 0)
    assert world.join("a", found.value.member_id) is None
    assert world.wait(4) == [("g", found.value.member_id)]
    with pytest.raises(MemberIdRequired):
        world.join("b", id_required=True)
    assert world.group.state is State.COMPLETING  # an id alone begins no rebalance


def test_an_id_that_is_not_used_is_forgotten() -> None:
    world = World()
    with pytest.raises(MemberIdRequired) as found:
        world.join("a", id_required=True)
    world.wait(46)
    assert world.groups.groups == {}
    with pytest.raises(UnknownMember):
        world.join("a", found.value.member_id)


def test_only_changes_and_the_leader_make_a_group_rebalance() -> None:
    world, members = in_state(State.STABLE)
    again = world.join("c1", members[1])
    assert (again.generation, again.leader, again.members) == (1, members[0], ())
    assert world.group.state is State.STABLE
    assert world.join("c1", members[1], protocols=(("range", b"other topics"),)) is None
    assert world.group.state is State.PREPARING
    world, members = in_state(State.STABLE)
    assert world.join("c0", members[0]) is None
    assert world.group.state is State.PREPARING


def test_a_protocol_that_not_all_support_is_refused() -> None:
    world, members = in_state(State.STABLE)
    for fields in ({"protocols": (("sticky", b""),)}, {"protocol_type": "connect"}, {"protocols": ()}):
        with pytest.raises(InconsistentProtocol):
            world.join("c", **fields)
    with pytest.raises(InconsistentProtocol):
        world.sync(members[1], 1, protocol="sticky")
    with pytest.raises(InconsistentProtocol):
        world.sync(members[1], 1, protocol_type="connect")


def test_a_member_that_is_held_is_not_silent() -> None:
    world, members = in_state(State.STABLE)
    world.join("c0", members[0], session_timeout_ms=6_000)
    assert world.wait(15) == []
    assert members[0] in world.group.members
    assert world.wait(6) == [("g", members[0])]  # the other one did not come in time
    assert set(world.group.members) == {members[0]}


def test_a_member_that_does_not_sync_goes() -> None:
    world, members = in_state(State.COMPLETING)
    generation = world.group.generation
    assert world.sync(members[1], generation) is None
    for _ in range(5):
        world.wait(3.9)
        world.beat(members[0], generation)
    world.wait(1)
    assert set(world.group.members) == {members[1]}
    with pytest.raises(RebalanceInProgress):
        world.groups.held_answer("g", members[1])


def test_a_static_member_comes_again_without_a_rebalance() -> None:
    world = World()
    world.join("a", instance_id="one")
    [(_, former)] = world.wait(4)
    world.groups.held_answer("g", former)
    world.sync(former, 1, assignments={former: b"all"})
    again = world.join("a", instance_id="one")
    assert (again.generation, again.leader, again.skip_assignment) == (1, again.member_id, True)
    assert again.member_id != former
    assert world.sync(again.member_id, 1, instance_id="one").assignment == b"all"
    with pytest.raises(FencedInstance):
        world.beat(former, 1, "one")
    with pytest.raises(UnknownMember):
        world.beat(former, 1)
    world.groups = world.load()
    world.beat(again.member_id, 1, "one")
    assert world.leave(("", "one")).answer == (None,)
    assert world.group.state is State.EMPTY


def test_a_static_member_may_be_away_for_a_rebalance() -> None:
    world = World()
    for name in ("one", "two"):
        world.join(name, instance_id=name, session_timeout_ms=60_000)
    members = [member_id for _, member_id in world.wait(4)]
    world.sync(members[0], 1, assignments={})
    world.join("one", members[0], instance_id="one", session_timeout_ms=60_000)
    assert world.wait(21) == [("g", members[0])]
    assert set(world.group.members) == set(members)
    assert world.groups.held_answer("g", members[0]).generation == 2  # type: ignore[union-attr]


def test_no_generation_is_given_out_twice() -> None:
    """Those that were given out and never got whole are in no record, but for the last."""
    world, members = in_state(State.STABLE)
    seen = {1}
    for number in range(4):
        for client, member_id in zip(("c0", "c1"), members, strict=True):
            world.join(client, member_id, protocols=(("range", b"%d" % number),))
        seen.add(world.group.generation)
        records = len(world.log)
    assert seen == {1, 2, 3, 4, 5}
    world.groups = world.load()
    for client, member_id in zip(("c0", "c1"), members, strict=True):
        world.join(client, member_id)
    assert world.group.generation not in seen
    assert len(world.log) > records


def test_members_go_on_after_a_takeover() -> None:
    world, members = in_state(State.STABLE)
    world.now_s += 1000
    world.groups = world.load()
    assert world.wait(44) == []
    for member_id in members:
        world.beat(member_id, 1)
        assert world.sync(member_id, 1).assignment == b"of " + member_id.encode()
    world.wait(46)
    assert world.group.state is State.EMPTY


def test_bounds() -> None:
    world, _ = in_state(State.STABLE)
    for session in (5_999, 1_800_001):
        with pytest.raises(InvalidSessionTimeout):
            world.join("x", session_timeout_ms=session)
    for rebalance in (0, -1, 86_400_001):
        with pytest.raises(InvalidSessionTimeout):
            world.join("x", rebalance_timeout_ms=rebalance)
    for large in (
        {"protocols": (("range", bytes(1001)),)},
        {"protocols": (("range", b""), ("n" * 1001, b""))},
        {"instance_id": "n" * 1001},
        {"client_id": "n" * 1001},
        {"protocols": (("range", b""), *((f"{n:0100}", b"") for n in range(10)))},
    ):
        with pytest.raises(GroupFull, match="take at most 1000 bytes"):
            world.join(**{"client": "x", **large})
    world.join("x", protocols=(("range", bytes(980)),))
    with pytest.raises(GroupFull, match="has 3 members"):
        world.join("y")
    world, members = in_state(State.COMPLETING)
    with pytest.raises(GroupFull, match="assignments"):
        world.sync(members[0], world.group.generation, assignments={members[0]: bytes(1501)})


def test_a_group_with_members_is_not_deleted() -> None:
    world, members = in_state(State.STABLE)
    with pytest.raises(GroupNotEmpty):
        world.groups.delete("g")
    world.leave(*((member_id, "") for member_id in members))
    world.made(world.groups.delete("g"))
    assert world.load().groups == {}
    assert world.groups.delete("g").records == []


def test_those_that_leave_are_judged_one_by_one() -> None:
    world, members = in_state(State.STABLE)
    results = world.leave(("nobody", ""), (members[0], "")).answer
    assert [type(result) for result in results] == [UnknownMember, type(None)]
    assert set(world.group.members) == {members[1]}
    assert [type(result) for result in world.groups.leave("none", [("m", "")], 0.0, 0).answer] == [UnknownMember]


def test_what_tools_see() -> None:
    world, members = in_state(State.STABLE)
    shown = world.groups.describe("g")
    assert shown is not None
    assert (shown.state.value, shown.protocol_type, shown.protocol) == ("Stable", "consumer", "range")
    assert [(m.member_id, m.client_id, m.metadata, m.assignment) for m in shown.members] == [
        (member_id, f"c{number}", b"r", b"of " + member_id.encode()) for number, member_id in enumerate(members)
    ]
    world.join("c0", members[0])
    shown = world.groups.describe("g")
    assert shown is not None
    assert (shown.state.value, shown.protocol, shown.members[0].assignment) == ("PreparingRebalance", "", b"")
    assert world.groups.describe("other") is None


def test_the_golden_value_is_readable_for_ever() -> None:
    name, group = decode(b"classic/g", GOLDEN.read_bytes())
    assert (name, encode(group).key, bytes(encode(group).value or b"")) == ("g", b"classic/g", GOLDEN.read_bytes())
    assert (group.state, group.generation, group.given, group.leader) == (State.STABLE, 7, 8, "a-1")
    [first, second] = group.members.values()
    assert (first.id, first.instance_id, first.client_id, first.client_host) == ("a-1", "one", "a", "/10.0.0.1")
    assert (first.session_timeout_ms, first.rebalance_timeout_ms) == (10_000, 60_000)
    assert first.protocols == (("range", b"\0\1"), ("sticky", b"\2"))
    assert (first.assignment, second.assignment, second.synced) == (b"mine", b"", True)


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"group/g", b"", DataDamaged),
        (b"classic/g", b"\xff\xff", DataDamaged),
        (b"classic/g", fmt.Classic().SerializeToString(), DataDamaged),
        (b"classic/g", fmt.Classic(version=2).SerializeToString(), FormatNotSupported),
        (b"classic/g", fmt.Classic(version=1, members=[fmt.ClassicMember(id="m")]).SerializeToString(), DataDamaged),
    ],
)
def test_records_that_are_not_those_of_a_group(key: bytes, value: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode(key, value)
