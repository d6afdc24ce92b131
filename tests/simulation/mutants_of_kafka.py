"""Bugs in what serves clients of the Kafka protocol: in transactions whose ends name no counts, in sequences that go on
over transactions, and in members of both kinds of groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.groups import committed
from ledgermq_broker.transactions.partition import TransactionPartition
from ledgermq_broker.transactions.state.added.producers import AddedProducers
from ledgermq_broker.transactions.state.participating.served_bundle import ServedBundle
from ledgermq_broker.transactions.state.types import Part, Transaction
from ledgermq_offsets.classic.coordinator import ClassicGroups
from ledgermq_offsets.consumer import rules
from ledgermq_offsets.state.group import Group, Member
from tests.simulation.kafka_plan import kafka_plan_of
from tests.simulation.mutants import mutant
from tests.simulation.roaming import roams

LOADED = True
Patch = pytest.MonkeyPatch


def _has(*families: str) -> Any:
    def has(seed: int) -> bool:
        return bool(set(families) & set(kafka_plan_of(seed).families))

    return has


def _goes_on_in_its_bundle(seed: int) -> bool:
    own = kafka_plan_of(seed)
    return not roams(seed) and (own.has("transactions") or own.has("processors"))


def _stale_classic(seed: int) -> bool:
    own = kafka_plan_of(seed)
    return own.stale > 0 and own.has("classic")


# Transactions


@mutant("kafka", likely=_has("transactions", "processors"))
def bundles_do_not_join(patch: Patch) -> None:
    """A bundle that stages something does not become part of the transaction, so nobody asks it for its counts."""
    real = AddedProducers.join

    def join(
        self: AddedProducers, name: str, named: Any, bundle: int, place: Any, group: str, now_ms: int, **more: Any
    ) -> Any:
        before = self._ids.open.get(name)
        decision = real(self, name, named, bundle, place, group, now_ms, **more)
        if before is not None and before.bundles:
            self._ids.open[name] = replace(self._ids.open[name], bundles=before.bundles)
        return decision

    patch.setattr(AddedProducers, "join", join)


@mutant("kafka", likely=_goes_on_in_its_bundle)
def next_sequence_is_forgotten(patch: Patch) -> None:
    """A bundle does not know where the sequences of a producer go on after a transaction: it refuses the next one, and
    takes what arrives late, with the sequence 0, for its first batch.
    """
    patch.setattr(ServedBundle, "sequences", lambda self, transaction: {})


@mutant("kafka", likely=_has("transactions"))
def former_epochs_go_on(patch: Patch) -> None:
    """A producer that another one has fenced adds to the open transaction, and ends it."""

    def current(self: AddedProducers, name: str, named: Any) -> Any:
        return self._ids.existing(name)

    patch.setattr(AddedProducers, "_current", current)


@mutant("kafka", likely=_has("processors"))
def pending_offsets_do_not_hold_up(patch: Patch) -> None:
    """A member that asks for stable offsets is told of those before an open transaction."""
    real = committed._fetch_request
    patch.setattr(committed, "_fetch_request", lambda asked, group, part, stable: real(asked, group, part, False))


@mutant("kafka", likely=_has("processors"))
def groups_are_not_counted(patch: Patch) -> None:
    """A commit does not know that the bundle of a group has something staged of it."""
    real = TransactionPartition.count_staged

    async def count_staged(
        self: TransactionPartition, transaction: Transaction, bundle: int, groups: Sequence[str]
    ) -> Part:
        return await real(self, transaction, bundle, ())

    patch.setattr(TransactionPartition, "count_staged", count_staged)


# Groups


@mutant("kafka", likely=_stale_classic)
def any_generation_commits(patch: Patch) -> None:
    """A classic group takes commits of every generation, and of members that it has removed."""
    patch.setattr(ClassicGroups, "check_commit", lambda self, *about, **more: None)


@mutant("kafka", likely=_has("consumers"))
def what_is_not_named_is_let_go(patch: Patch) -> None:
    """A partition that a member does not name is given to another one, also if it is about to begin with it."""
    patch.setattr(rules, "_may_be_taking", lambda member, partition, seen: False)


@mutant("kafka", likely=_has("consumers"))
def withdrawn_is_let_go(patch: Patch) -> None:
    """A heartbeat counts as letting go all that the member was to let go, whatever it still names."""

    def note_heartbeat(
        group: Group, member: Member, request: pb.GroupHeartbeatRequest, seen: int, now_s: float
    ) -> None:
        member.heard_s, member.seen_epoch = now_s, seen
        rules._let_go(group, member, rules._withdrawn(member))

    patch.setattr(rules, "note_heartbeat", note_heartbeat)
