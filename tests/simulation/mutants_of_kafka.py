"""Bugs in what serves clients of the Kafka protocol: in transactions whose ends name no counts, in sequences that go on
over transactions, and in members of both kinds of groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.groups import committed
from ledgermq_broker.kafka.handlers.shares import acknowledging, leases
from ledgermq_broker.kafka.handlers.shares.burying import Burying
from ledgermq_broker.kafka.handlers.shares.fetching import ShareHandler
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.transactions import partition
from ledgermq_broker.transactions.partition import TransactionPartition
from ledgermq_broker.transactions.state.added.ids import AddedIds
from ledgermq_broker.transactions.state.added.producers import AddedProducers
from ledgermq_broker.transactions.state.participating.served_bundle import ServedBundle
from ledgermq_broker.transactions.state.types import Part, Transaction
from ledgermq_offsets.classic.coordinator import ClassicGroups
from ledgermq_offsets.consumer import rules
from ledgermq_offsets.state import records
from ledgermq_offsets.state.group import Group, Member
from tests.simulation.kafka_plan import kafka_plan_of
from tests.simulation.kafka_restorer import restores
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


def _renews(seed: int) -> bool:
    own = kafka_plan_of(seed)
    return own.is_second and (own.has("transactions") or own.has("processors"))


def _stands_still(seed: int) -> bool:
    return _renews(seed) and bool(kafka_plan_of(seed).dies) and kafka_plan_of(seed).timeout_ms < 5000


def _withdraws_in_ambush(*, kills: bool) -> Any:
    def withdraws(seed: int) -> bool:
        own = kafka_plan_of(seed)
        return own.withdraws and own.kills_at_withdrawals == kills

    return withdraws


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


@mutant("kafka", likely=_renews)
def end_keeps_the_epoch(patch: Patch) -> None:
    """The end of a transaction of the second protocol does not end its epoch: the next one goes on in it, and takes
    what arrives late.
    """
    patch.setattr(AddedIds, "_next_producer", lambda self, known: b"")


@mutant("kafka", likely=_stands_still)
def time_out_keeps_the_epoch_of_the_second_protocol(patch: Patch) -> None:
    """A transaction that is aborted at its time-out leaves its producer the epoch: what it sends next begins another
    one, which is committed without its first half.
    """
    real = AddedIds.decide

    def decide(self: AddedIds, *decided: Any) -> Any:
        self.ends_as_asked = True
        return real(self, *decided)

    patch.setattr(AddedIds, "decide", decide)


@mutant("kafka", likely=_renews)
def epoch_begins_beside_its_commit(patch: Patch) -> None:
    """The next epoch begins while bundles have not completed the transaction before: it is forgotten there."""

    def to_add(self: AddedProducers, name: str, named: Any) -> Any:
        self._current(name, named)
        return self._opened(name)

    def begin(self: AddedProducers, name: str, now_ms: int) -> Any:
        known = self._ids.known[name]
        begun = self._ids.begun(known, now_ms)
        return [] if begun is known else list(self._ids.decided(name, begun, None).records)

    patch.setattr(AddedProducers, "_to_add", to_add)
    patch.setattr(AddedProducers, "_begin", begin)


@mutant("kafka", likely=lambda seed: restores(kafka_plan_of(seed)))
def end_is_told_before_it_is_durable(patch: Patch) -> None:
    """The latest offset is told when a bundle has appended what a transaction committed, and not yet stored it: it lies
    before that.
    """

    async def settled(self: TransactionPartition, place: Any, end_s: float) -> None:
        await partition.settle(self.participant, self.peers, place, end_s)

    patch.setattr(TransactionPartition, "settle", settled)


# Groups


@mutant("kafka", likely=_stale_classic)
def any_generation_commits(patch: Patch) -> None:
    """A classic group takes commits of every generation, and of members that it has removed."""
    patch.setattr(ClassicGroups, "check_commit", lambda self, *about, **more: None)


@mutant("kafka", likely=_withdraws_in_ambush(kills=True))
def withdrawals_lose_their_epochs_at_a_takeover(patch: Patch) -> None:
    """A new coordinator does not know under which epoch a partition was withdrawn: it takes for let go what a member
    has not begun with yet.
    """
    real = records._member_of

    def member_of(data: bytes) -> Any:
        found = real(data)
        held = {partition: one._replace(withdrawn_in=0) for partition, one in found.held.items()}
        return replace(found, held=held)

    patch.setattr(records, "_member_of", member_of)


@mutant("kafka", likely=_withdraws_in_ambush(kills=False))
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


# Share groups


@mutant("kafka", likely=lambda seed: kafka_plan_of(seed).is_shared)
def late_words_of_share_members_count(patch: Patch) -> None:
    """A member is told that its word counts, although another one holds the message by then."""
    real = acknowledging._heard

    def heard(result: Any, spans: acknowledging.Spans) -> acknowledging.Heard:
        is_judged = isinstance(result, pb.SharePartitionResult)
        return acknowledging.Heard(spans=spans) if is_judged else real(result, spans)

    patch.setattr(acknowledging, "_heard", heard)


@mutant("kafka", likely=lambda seed: kafka_plan_of(seed).is_shared)
def refused_words_of_share_members_count(patch: Patch) -> None:
    """An owner that cannot store a word is taken for one that has."""
    patch.setattr(acknowledging, "_code", lambda error: Code.NONE)


@mutant("kafka", likely=lambda seed: kafka_plan_of(seed).is_shared)
def lost_lines_accept(patch: Patch) -> None:
    """What a connection held when it ended is finished."""
    real = ShareHandler._give_back

    async def give_back(self: ShareHandler, api: Any, session: Any, word: Any) -> None:
        await real(self, api, session, pb.ACCEPT)

    patch.setattr(ShareHandler, "_give_back", give_back)


@mutant("kafka", likely=lambda seed: kafka_plan_of(seed).is_shared)
def releases_finish(patch: Patch) -> None:
    """A message that a share member gives back is finished."""
    patch.setitem(leases.WORDS, leases.RELEASE, pb.ACCEPT)


@mutant("kafka", likely=lambda seed: kafka_plan_of(seed).is_shared)
def worn_out_messages_are_dropped(patch: Patch) -> None:
    """A message that was delivered to share members as often as is allowed is finished without a dead letter."""

    async def copy(self: Burying, *about: Any) -> None:
        """Store nothing."""

    patch.setattr(Burying, "_copy", copy)


@mutant("kafka", likely=lambda seed: kafka_plan_of(seed).is_shared)
def dead_messages_are_finished_before_their_copies(patch: Patch) -> None:
    """A message of share members that is dead is finished first, and then copied: it is lost if that fails."""
    real = Burying.bury

    async def bury(self: Burying, api: Any, group: str, failed: Any, *more: Any) -> Any:
        part, word = failed.part, pb.REJECT
        spans = [
            pb.SharedSpan(first=each.first, last=each.last, epoch=part.epoch, lease=part.lease, word=word)
            for each in failed.ranges
        ]
        said = pb.SharePartitionAnswer(topic=part.topic, partition=part.partition, spans=spans)
        with suppress(LedgerMQError):
            await api.share_answer(pb.ShareAnswerRequest(group=group, member_id="member", partitions=[said]))
        return await real(self, api, group, failed, *more)

    patch.setattr(Burying, "bury", bury)
