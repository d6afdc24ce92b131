"""Bugs that let a principal act in the name of another: in queue groups, consumer groups, exclusive producers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.exclusive_ids import is_exclusive
from ledgermq_broker.access.guards.declared import each_guard
from ledgermq_broker.access.permissions import Permissions
from ledgermq_broker.access.state.rules import Operation
from ledgermq_broker.access.waiting_calls import Call
from ledgermq_broker.access.wrappers import authorized, throttled
from ledgermq_broker.exclusive.state.bundle_holders import BundleHolders
from ledgermq_broker.exclusive.state.records import Holder
from ledgermq_broker.paths import find_path
from ledgermq_broker.queues.state.bundle_shares import Answer, BundleShares
from ledgermq_broker.queues.state.records import ShareKey
from ledgermq_broker.queues.state.spans import Span
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.log.partitions.producers import Producers
from ledgermq_offsets.committing.commits import Ends
from ledgermq_offsets.coordinator import GroupCoordinator
from tests.simulation.hostile import is_hostile
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


async def unguarded(may: Permissions, request: Any, call: Call) -> Any:
    return await call(request)


# Queue groups


@mutant("queues", is_hostile)
def queue_words_count_for_a_lease_of_any_group(patch: Patch) -> None:
    """A lease is found by its number, whatever group names it."""
    real = BundleShares.answer

    def answer(self: BundleShares, key: ShareKey, answers: Iterable[Answer]) -> Decision[list[list[Span]]]:
        words = list(answers)
        numbers = {word.number for word in words}
        for other, found in self.partitions.items():
            if other[1:] == key[1:] and any(lease.number in numbers for lease in found._leases.values()):
                key = other
        return real(self, key, words)

    patch.setattr(BundleShares, "answer", answer)


@mutant("queues", is_hostile)
def queue_words_judged_by_the_topic_alone(patch: Patch) -> None:
    """Each reader of a topic may answer for each queue group of it, whose leases it has to name."""
    guard = each_guard(Operation.CONSUME, "partitions", "results", pb.ShareAnswerResponse)
    patch.setitem(authorized.GUARDS, "share_answer", guard)


@mutant("queues", is_hostile)
def queue_reset_without_the_right(patch: Patch) -> None:
    """Each reader of a topic may reset and delete each queue group of it."""
    guard = each_guard(Operation.CONSUME, "resets", "results", pb.ResetSharesResponse)
    patch.setitem(authorized.GUARDS, "reset_shares", guard)


@mutant("queues", is_hostile)
def queue_members_listed_for_each_caller(patch: Patch) -> None:
    """A list of all queue groups shows those that the caller may not use, with their members."""
    patch.setitem(authorized.GUARDS, "list_shares", unguarded)


# Consumer groups


@mutant("groups", is_hostile)
def group_right_judged_when_a_member_joins(patch: Patch) -> None:
    """The right to use a group is judged with JOIN; who knows the id of a member may stay, and leave, in its place."""
    real = authorized.GUARDS["group_heartbeat"]
    assert real is not None

    async def guard(may: Permissions, request: pb.GroupHeartbeatRequest, call: Call) -> Any:
        return await (real if request.step == pb.JOIN else unguarded)(may, request, call)

    patch.setitem(authorized.GUARDS, "group_heartbeat", guard)


@mutant("groups", is_hostile)
def commits_judged_by_the_topic_alone(patch: Patch) -> None:
    """Each reader of a topic may commit for each group, if it names the member and the epoch."""
    guard = each_guard(Operation.CONSUME, "commits", "results", pb.CommitOffsetsResponse)
    patch.setitem(authorized.GUARDS, "commit_offsets", guard)


@mutant("groups", is_hostile)
def group_deleted_without_the_right(patch: Patch) -> None:
    """Each caller may delete a group that has no members."""
    patch.setitem(authorized.GUARDS, "delete_group", unguarded)


@mutant("groups", is_hostile)
def offsets_reset_by_each_reader(patch: Patch) -> None:
    """Each reader of a topic may reset the offsets of each group."""
    guard = each_guard(Operation.CONSUME, "resets", "results", pb.ResetOffsetsResponse)
    patch.setitem(authorized.GUARDS, "reset_offsets", guard)


@mutant("groups", is_hostile)
def member_of_another_group_commits(patch: Patch) -> None:
    """A member is known by its id, whatever group the request names: so a right to any group is enough."""
    real_needed, real_commit = GroupCoordinator.ends_needed, GroupCoordinator.commit

    def renamed(self: GroupCoordinator, request: Any) -> Any:
        for name, group in self.state.groups.items():
            if getattr(request, "member_id", "") in group.members:
                found = type(request)()
                found.CopyFrom(request)
                found.group = name
                return found
        return request

    def ends_needed(self: GroupCoordinator, request: Any) -> Any:
        return real_needed(self, renamed(self, request))

    def commit(self: GroupCoordinator, request: Any, ends: Ends, now_s: float, now_ms: int) -> Any:
        return real_commit(self, renamed(self, request), ends, now_s, now_ms)

    patch.setattr(GroupCoordinator, "ends_needed", ends_needed)
    patch.setattr(GroupCoordinator, "commit", commit)


# Exclusive producers


@mutant("exclusive", is_hostile)
def holder_known_by_its_id_alone(patch: Patch) -> None:
    """Who states the id of the producer that has a topic counts as that producer."""
    patch.setattr(Holder, "is_of", lambda self, producer_id, principal: self.producer_id == producer_id)


@mutant("exclusive", is_hostile)
def topic_given_back_by_any_principal(patch: Patch) -> None:
    """An exclusive producer loses its topic when another principal gives it back."""
    real = BundleHolders.release

    def release(self: BundleHolders, key: PartitionId, producer_id: bytes, principal: int = 0) -> Decision[bool]:
        return real(self, key, producer_id)

    patch.setattr(BundleHolders, "release", release)


@mutant("exclusive", is_hostile)
def any_principal_writes_as_the_holder(patch: Patch) -> None:
    """Batches with the id of the producer that has the partition are taken from any principal."""
    real = BundleHolders.check

    def check(self: BundleHolders, key: PartitionId, producer_id: bytes, now_s: float, principal: int = 0) -> bool:
        return real(self, key, producer_id, now_s, 0 if is_exclusive(producer_id) else principal)

    patch.setattr(BundleHolders, "check", check)


@mutant("exclusive", is_hostile)
def caller_believed_as_it_is_sent(patch: Patch) -> None:
    """A request that says of which principal it is counts as that principal's."""
    real: Callable[[Any, Any], Any] = throttled.ThrottledService._identified

    def identified(self: throttled.ThrottledService, request: Any) -> Any:
        return request if getattr(request, "caller", 0) else real(self, request)

    patch.setattr(throttled.ThrottledService, "_identified", identified)


@mutant("exclusive", is_hostile)
def next_sequence_told_to_any_principal(patch: Patch) -> None:
    """Who states a producer's id learns how to go on in its place."""
    real = Producers.next_sequence

    def next_sequence(self: Producers, producer_id: bytes, topic_id: int, partition: int, principal: int = 0) -> int:
        return real(self, producer_id, topic_id, partition)

    patch.setattr(Producers, "next_sequence", next_sequence)


@mutant("exclusive", is_hostile)
def look_up_shows_producer_ids(patch: Patch) -> None:
    """A reader who looks a message up learns the id of its producer."""
    patch.setattr(find_path, "shown_producer_id", lambda producer_id: producer_id)
