"""Bugs in half messages: in their states, in the checks, and in the copies for operators (X18, X19)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.transactions.coordinating.unresolved import UnresolvedCopies
from ledgermq_broker.transactions.state.coordinating.bundles import Bundles
from ledgermq_broker.transactions.state.coordinating.expiry import Expiry
from ledgermq_broker.transactions.state.coordinating.half_messages import HalfMessages
from ledgermq_broker.transactions.state.coordinating.producers import Producers
from ledgermq_broker.transactions.state.coordinating.served_ids import ServedIds
from ledgermq_broker.transactions.state.records import IdValue
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.topics.topic import Topic
from tests.simulation.lost_answers import share_lost
from tests.simulation.mutants import mutant
from tests.simulation.transactions_plan import transactions_plan_of

LOADED = True
Patch = pytest.MonkeyPatch


def _has_far_clocks(seed: int) -> bool:
    return transactions_plan_of(seed).far_clocks


@mutant("transactions")
def half_messages_time_out(patch: Patch) -> None:
    """A half message is aborted when its bundle asks about it, as an ordinary transaction."""
    real = Bundles.fate

    def fate(self: Bundles, transaction: Transaction, part: Part, now_ms: int) -> Decision[State]:
        decision = real(self, transaction, part, now_ms)
        known = self._ids.same(transaction)
        if decision.records and known is not None and known.kind is Kind.HALF_MESSAGE:
            return self._ids.decide(transaction, known, State.ABORTED, (), now_ms, State.ABORTED)
        return decision

    patch.setattr(Bundles, "fate", fate)


@mutant("transactions")
def half_messages_expire_before_they_end(patch: Patch) -> None:
    """Ids of half messages are forgotten by their age, whether they are decided or not."""
    real = Expiry.expire_half

    def expire_half(self: Expiry, now_ms: int) -> Decision[int]:
        decision = real(self, now_ms)
        old_ms = now_ms - self._ids.limits.half_expiry_ms
        known = {name: self._ids.known[name] for name in self._ids.prepared}
        old = [name for name, value in known.items() if value.kind is Kind.HALF_MESSAGE and value.changed_ms <= old_ms]
        more = [record for name in old for record in self._ids.decided(name, None, None).records]
        return Decision([*decision.records, *more], decision.answer + len(more))

    patch.setattr(Expiry, "expire_half", expire_half)


@mutant("transactions")
def half_messages_checked_for_ever(patch: Patch) -> None:
    """Checks are not counted, so what no program knows of never ends."""
    patch.setattr(HalfMessages, "_is_unresolved", lambda self, name, known, now_ms: False)


@mutant("transactions")
def unresolved_after_the_first_check(patch: Patch) -> None:
    """One answer that is late or lost ends the checks."""
    patch.setattr(HalfMessages, "_is_unresolved", lambda self, name, known, now_ms: known.checks >= 1)


@mutant("transactions", likely=_has_far_clocks, hangs=True)
def unresolved_by_stored_times_alone(patch: Patch) -> None:
    """The last check was stamped by a clock that is ahead; the message stays undecided until others reach it."""
    patch.setattr(ServedIds, "term_ms", lambda self, name: 0.0)


@mutant("transactions", hangs=True)
def unresolved_not_final(patch: Patch) -> None:
    """A program that commits after the last check makes its message visible, which operators have too. What is seen of
    it is a commit that never ends.
    """
    real = Producers._end_again

    def end_again(
        self: Producers, transaction: Transaction, known: IdValue, outcome: State, parts: Sequence[Part], now_ms: int
    ) -> Decision[State]:
        if known.state is State.UNRESOLVED and outcome is State.COMMITTED:
            return self._ids.decide(transaction, known, outcome, parts or known.parts, now_ms, outcome)
        return real(self, transaction, known, outcome, parts, now_ms)

    patch.setattr(Producers, "_end_again", end_again)


@mutant("transactions")
def unresolved_is_aborted(patch: Patch) -> None:
    """What no program knows of is dropped after the last check, and operators never see it."""

    def declare(self: HalfMessages, transaction: Transaction, now_ms: int) -> Decision[bool]:
        known = self._ids.same(transaction)
        if (
            known is not None
            and known.state is State.PREPARED
            and self._is_unresolved(transaction.transactional_id, known, now_ms)
        ):
            return self._ids.decide(transaction, known, State.ABORTED, known.parts, now_ms, True)
        return Decision([], False)

    patch.setattr(HalfMessages, "declare_unresolved", declare)


@mutant("transactions")
def unresolved_copied_after_it_is_dropped(patch: Patch) -> None:
    """The bundle drops what is staged while the copy is being stored."""
    real = UnresolvedCopies.store

    async def store(self: UnresolvedCopies, *about: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(0.5)
            with suppress(LedgerMQError):
                await real(self, *about)

        self._later = asyncio.create_task(later())  # type: ignore[attr-defined]

    patch.setattr(UnresolvedCopies, "store", store)


@mutant("transactions", likely=lambda seed: share_lost(seed) > 0)
def unresolved_copies_without_a_session(patch: Patch) -> None:
    """A copy that is attempted again is stored again."""
    real = UnresolvedCopies._produce

    async def produce(self: UnresolvedCopies, topic: Topic, batch: pb.StagedData, session: Any, headers: Any) -> None:
        await real(self, topic, batch, None, headers)  # type: ignore[arg-type]

    patch.setattr(UnresolvedCopies, "_produce", produce)
