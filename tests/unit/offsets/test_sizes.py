"""The bytes of all groups of a partition have one bound, and each principal a share of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from ledgermq.errors import LedgerMQError, QuotaExceeded, ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_offsets.classic.both_kinds import BothKinds
from ledgermq_offsets.classic.values import ClassicLimits, JoinRequest, MemberIdRequired
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.state.records import PendingKey
from tests.worlds.coordinators import Catalog, staged_in

MOST = 64 * 1024
LIMITS = GroupLimits(bytes_max=MOST)
MALLORY, VICTIM = 5, 6
TEXT = "x" * 4000
NOW_MS = 1_700_000_000_000


class World:
    """A coordinator of both kinds, and its log."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.catalog.create("t", 1000)
        self.log: list[LogRecord] = []
        self.coordinator = self.load()

    def load(self) -> BothKinds:
        ids = iter(range(1_000_000))
        loaded = BothKinds(LIMITS, self.catalog, ClassicLimits(), lambda name: f"{name}-{next(ids)}")
        for record in self.log:
            loaded.apply(record.key, record.value)
        loaded.start(1.0)
        return loaded

    def made(self, decision: Decision) -> object:  # type: ignore[type-arg]
        self.log += decision.records
        for result in getattr(decision.answer, "results", ()):
            if result.HasField("error"):
                raise error_from_proto(result.error)
        return decision.answer

    def used(self, principal: int) -> int:
        return self.coordinator.state.sizes.shares.of(principal)

    # Ways to make a group larger

    def commit(self, group: str, caller: int, at: int, text: str = TEXT) -> object:
        request = pb.CommitOffsetsRequest(group=group, caller=caller, commits=[self._commit(group, at, text)])
        return self.made(self.coordinator.commit(request, {PartitionId(1, at): 100}, 1.0, NOW_MS))

    def stage(self, group: str, caller: int, at: int) -> object:
        commits = pb.CommitOffsetsRequest(group=group, commits=[self._commit(group, at, TEXT)])
        request = staged_in(PendingKey(b"\x01" * 16, 1, at + 1), commits)
        request.caller = caller
        return self.made(self.coordinator.stage_offsets(request, {PartitionId(1, at): 100}, NOW_MS))

    def _commit(self, group: str, at: int, text: str) -> pb.OffsetCommit:
        asked = pb.FetchCommittedRequest(group=group, partitions=[pb.TopicPartition(topic="t", partition=at)])
        [seen] = self.coordinator.committed(asked).partitions
        return pb.OffsetCommit(
            topic="t", partition=at, offset=seen.offset, metadata=text, epoch=seen.epoch, counter=seen.counter + 1
        )

    def reset(self, group: str, caller: int, at: int) -> object:
        resets = [pb.OffsetReset(topic="t", partition=15 * at + n, offset=0) for n in range(15)]
        request = pb.ResetOffsetsRequest(group=group, caller=caller, resets=resets)
        ends = {PartitionId(1, 15 * at + n): 100 for n in range(15)}
        return self.made(self.coordinator.reset(request, ends, 1.0, NOW_MS))

    def join(self, group: str, caller: int, at: int) -> object:
        asked = pb.GroupSubscription(topics=[f"{n:03}" + "x" * 200 for n in range(20)])
        request = pb.GroupHeartbeatRequest(
            group=group, member_id=f"m{at}", step=pb.JOIN, subscription=asked, caller=caller
        )
        return self.made(self.coordinator.heartbeat(request, 1.0, NOW_MS))

    def kafka_commit(self, group: str, caller: int, at: int) -> object:
        commits = [pb.GenerationCommit(topic="t", partition=at, metadata=TEXT)]
        request = pb.CommitForGenerationRequest(group=group, caller=caller, outside=True, commits=commits)
        return self.made(self.coordinator.commit_for_generation(request, 1.0, NOW_MS))

    def kafka_join(self, group: str, caller: int, at: int, *, id_required: bool = False) -> object:
        request = JoinRequest(
            group, "", "consumer", (("range", TEXT.encode()),), principal=caller, id_required=id_required
        )
        return self.made(self.coordinator.join(request, 1.0, NOW_MS))

    def kafka_ids(self, group: str, caller: int, at: int) -> object:
        for _ in range(8):
            with pytest.raises(MemberIdRequired):
                self.kafka_join(group, caller, at, id_required=True)
        return None


WAYS: dict[str, Callable[[World], Callable[[str, int, int], object]]] = {
    name: partial(lambda name, world: getattr(world, name), name)
    for name in ("commit", "stage", "reset", "join", "kafka_commit", "kafka_join", "kafka_ids")
}


def filled(grow: Callable[[str, int, int], object], group: str, caller: int) -> tuple[int, LedgerMQError]:
    for n in range(100):
        try:
            grow(group, caller, n)
        except LedgerMQError as error:
            return n, error
    raise AssertionError("it was never refused")


@pytest.mark.parametrize("way", WAYS)
def test_a_principal_fills_half_of_the_bytes_by_no_way_more(way: str) -> None:
    """Ten thousand groups of 8 MiB each, and offsets with metadata above that, fitted into one partition."""
    world = World()
    grow = WAYS[way](world)
    taken, error = filled(grow, "mine", MALLORY)
    assert isinstance(error, QuotaExceeded)
    assert error.limit == "group_bytes"
    assert taken
    assert MOST // 2 - 6_000 < world.used(MALLORY) <= MOST // 2 + 3_000, "the last one may begin below the share"
    for other, another in WAYS.items():
        _, refused = filled(another(world), f"mine-{other}", MALLORY)
        assert isinstance(refused, QuotaExceeded), "there is no other way around it"
    assert world.used(MALLORY) <= MOST // 2 + 3_000
    grow("victim", VICTIM, 500 if way != "reset" else 30)
    assert world.used(VICTIM)


def test_the_bytes_of_the_assignments_of_a_leader_count() -> None:
    world = World()
    joined = world.kafka_join("g", MALLORY, 0)
    assert isinstance(joined, str)
    world.made(world.coordinator.tick(10.0, NOW_MS))
    given = pb.SyncClassicGroupRequest(group="g", member_id=joined, generation=1)
    given.assignments.add(member_id=joined, assignment=bytes(MOST - 10_000))
    with pytest.raises(QuotaExceeded, match="bytes of consumer groups"):
        world.coordinator.sync(given, 10.0)
    given.assignments[0].assignment = bytes(1000)
    before = world.used(MALLORY)
    world.made(world.coordinator.sync(given, 10.0))
    assert world.used(MALLORY) == before + 1000


def test_what_does_not_grow_is_never_refused() -> None:
    world = World()
    taken, _ = filled(world.commit, "mine", MALLORY)
    world.commit("mine", MALLORY, 0)
    world.commit("mine", MALLORY, 0, "shorter")
    world.commit("mine", MALLORY, taken, "now there is room for a little")
    stay = pb.GroupHeartbeatRequest(group="mine", member_id="m", step=pb.JOIN, caller=MALLORY)
    stay.subscription.topics.append("t")
    world.made(world.coordinator.heartbeat(stay, 1.0, NOW_MS))
    filled(world.kafka_commit, "other", MALLORY)
    for step in (pb.JOIN, pb.STAY, pb.LEAVE):
        stay.step = step
        world.made(world.coordinator.heartbeat(stay, 1.0, NOW_MS))


def test_the_next_owner_counts_the_same_and_a_deleted_group_frees_its_bytes() -> None:
    world = World()
    for way in ("commit", "stage", "reset", "join"):
        WAYS[way](world)(f"g-{way}", MALLORY, 20)
    used = world.used(MALLORY)
    again = world.load()
    assert (again.state.sizes.total, again.state.sizes.shares.of(MALLORY)) == (used, used)
    world.coordinator.settle_pending(b"\x01" * 16, 1, 21, ["g-stage"], NOW_MS, "")
    for way in ("commit", "reset"):
        world.made(world.coordinator.delete(f"g-{way}", NOW_MS))
    left = sum(each.size_bytes for each in world.coordinator.state.groups.values())
    assert world.coordinator.state.sizes.total == world.used(MALLORY) == left < used


def test_without_a_principal_the_bound_is_the_only_one() -> None:
    world = World()
    taken, error = filled(world.commit, "g", 0)
    assert type(error) is ResourceExhausted
    assert taken == MOST // (4000 + 256)
