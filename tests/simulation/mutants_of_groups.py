"""Bugs in consumer groups: in members, in coordinators, in decisions, and in the cleaning of
committed offsets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from ledgermq.client.groups.holding.progress import Progress
from ledgermq_broker.internal.bundle_log import BundleLog
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.snapshot import InternalRecord, clean
from ledgermq_ledger.parquet.compacting import snapshot_build
from ledgermq_ledger.root.two_clocks import TwoClocks
from ledgermq_offsets.committing import commits
from ledgermq_offsets.membership import members
from ledgermq_offsets.state.group import Group, Member
from tests.simulation.cluster_plan import cluster_plan_of
from tests.simulation.groups_clients import groups_plan_of
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


def _acks_singly(seed: int) -> bool:
    return "acked" in groups_plan_of(seed).modes


@mutant("groups", _acks_singly)
def commit_with_gaps(patch: Patch) -> None:
    """The SDK commits behind the highest message that is finished, whatever is still open before
    it.
    """
    real = Progress.ack

    def ack(self: Progress, offset: int, generation: int) -> bool:
        counts = real(self, offset, generation)
        if counts and offset >= self.finished:
            self.finish_through(offset + 1)
        return counts

    patch.setattr(Progress, "ack", ack)


@mutant("groups")
def zombie_commit(patch: Patch) -> None:
    """A commit stands under any epoch, and of any former member."""
    patch.setattr(commits, "is_current", lambda group, member, partition, commit: True)


@mutant("groups")
def commits_may_go_back(patch: Patch) -> None:
    """The last commit counts, not the highest."""
    patch.setattr(commits, "is_news", lambda stored, commit: True)
    patch.setattr(commits, "goes_back", lambda stored, commit: False)


@mutant("groups")
def coordinator_answers_from_a_stale_state(patch: Patch) -> None:
    """The coordinator answers committed offsets without a look whether another broker has claimed
    the bundle.
    """

    patch.setattr(IssuedState, "confirmed", IssuedState.durable)


@mutant("groups")
def coordinator_answers_before_it_is_durable(patch: Patch) -> None:
    """A commit is acknowledged when the coordinator has decided it."""

    async def durable(self: BundleLog, **how: Any) -> None:
        return None

    patch.setattr(BundleLog, "durable", durable)


@mutant("groups")
def cleaner_drops_a_live_key(patch: Patch) -> None:
    """A snapshot keeps no key that is older than the round before."""

    def forgetful(records: Iterable[InternalRecord]) -> list[InternalRecord]:
        return [record for record in clean(records) if not record.key.startswith(b"offset/")]

    patch.setattr(snapshot_build, "clean", forgetful)


@mutant("groups")
def rebalance_gives_one_partition_to_two_members(patch: Patch) -> None:
    """What a member is told to let go is given to the next one at once."""
    real = Group.give

    def give(self: Group, member: Member, partition: PartitionId, topic: str) -> None:
        self.holders.pop(partition, None)
        real(self, member, partition, topic)

    def withdraw(self: Group, member: Member, partition: PartitionId, now_s: float) -> None:
        self.notify(member)
        self.holders.pop(partition, None)

    patch.setattr(Group, "give", give)
    patch.setattr(Group, "withdraw", withdraw)


@mutant("groups", hangs=True)
def members_begin_anew_under_the_old_epoch(patch: Patch) -> None:
    """A member that takes itself for put out joins again, counts its commits from 1, and they are
    taken for delayed ones.
    """
    real = members.join

    def join(group: Group, member_id: str, subscription: Any, owned: Any, now_s: float, now_ms: int) -> Member:
        known = group.members.get(member_id)
        return real(group, member_id, subscription, owned if known is None else known.held.keys(), now_s, now_ms)

    patch.setattr(members, "join", join)


def _clocks_are_wrong(seed: int) -> bool:
    return bool(groups_plan_of(seed).clocks_wrong_s) and not cluster_plan_of(seed).is_s3


@mutant("groups", _clocks_are_wrong)
def expiry_by_our_clock_alone(patch: Patch) -> None:
    """A coordinator whose clock is ahead forgets committed offsets as soon as it has the bundle."""

    async def earlier_ms(self: TwoClocks) -> int:
        return self.our_ms()

    patch.setattr(TwoClocks, "earlier_ms", earlier_ms)


@mutant("groups", _clocks_are_wrong)
def stamps_by_our_clock_alone(patch: Patch) -> None:
    """What a coordinator whose clock is behind has stamped is forgotten too early by every other
    one.
    """
    patch.setattr(TwoClocks, "stamp_ms", TwoClocks.our_ms)


@mutant("groups")
def reset_without_a_new_epoch(patch: Patch) -> None:
    """Members go on where they were, and their commits stand."""
    patch.setattr(Group, "renew", lambda self, member, partition: None)
