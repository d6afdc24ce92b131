"""Bugs in exclusive producers: in who may write, in what is durable, and in what the next owner knows."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ledgermq.protocol.naming.exclusive_ids import is_exclusive
from ledgermq_broker.bundle.committing.exclusive_writers import ExclusiveWriters
from ledgermq_broker.exclusive.partition import HeldPartitions
from ledgermq_broker.exclusive.state.bundle_holders import BundleHolders, Claim, Standing
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.log.writing.in_flight import Append
from ledgermq_ledger.log.writing.writer import LedgerWriter
from tests.simulation.exclusive_run import exclusive_plan_of
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


def outlives(seed: int) -> bool:
    return exclusive_plan_of(seed).outlives


@mutant("exclusive")
def holder_opened_from_memory(patch: Patch) -> None:
    """A producer learns that it has a partition when the owner has decided it."""
    real = IssuedState.durable

    async def durable(self: IssuedState, *, within_s: float = 0.0) -> None:
        if self.what != "holders":
            await real(self, within_s=within_s)

    patch.setattr(IssuedState, "durable", durable)


@mutant("exclusive")
def former_holder_writes(patch: Patch) -> None:
    """An owner takes the batches of every exclusive producer."""
    real = BundleHolders.check

    def check(self: BundleHolders, key: PartitionId, producer_id: bytes, now_s: float, principal: int = 0) -> bool:
        return is_exclusive(producer_id) or real(self, key, producer_id, now_s, principal)

    patch.setattr(BundleHolders, "check", check)


@mutant("exclusive")
def holder_lease_over_at_a_takeover(patch: Patch) -> None:
    """The next owner takes every lease for over."""
    patch.setattr(BundleHolders, "loaded", lambda self, now_s: None)


@mutant("exclusive")
def shared_beside_exclusive(patch: Patch) -> None:
    """An owner takes the batches of shared producers while an exclusive one has the partition."""
    real = BundleHolders.check

    def check(self: BundleHolders, key: PartitionId, producer_id: bytes, now_s: float, principal: int = 0) -> bool:
        return not is_exclusive(producer_id) or real(self, key, producer_id, now_s, principal)

    patch.setattr(BundleHolders, "check", check)


@mutant("exclusive")
def expired_holder_stays(patch: Patch) -> None:
    """A shared producer writes when the lease is over, and no record removes the holder before."""
    real = BundleHolders.check
    patch.setattr(BundleHolders, "check", lambda self, *given: real(self, *given) or True)


@mutant("exclusive")
def late_claim_counts(patch: Patch) -> None:
    """A claim counts whatever number it names, so a late double of it fences a later holder."""
    real = BundleHolders.hold

    def hold(self: BundleHolders, key: PartitionId, claim: Claim, now_s: float, before: int = 0) -> Decision[Standing]:
        holder = self._holders.get(key)
        if claim.number is not None and holder is not None:
            claim = claim._replace(number=holder.number)
        return real(self, key, claim, now_s, before)

    patch.setattr(BundleHolders, "hold", hold)


@mutant("exclusive")
def fenced_before_repetition(patch: Patch) -> None:
    """A batch of a former holder is refused also where it is stored."""
    real = LedgerWriter._is_next

    def is_next(self: LedgerWriter, append: Append, building: Any) -> bool:
        return self._is_allowed(append) and real(self, append, building)

    patch.setattr(LedgerWriter, "_is_next", is_next)


@mutant("exclusive", outlives)
def renewed_by_a_former_owner(patch: Patch) -> None:
    """A lease is renewed without a fence check."""
    real = IssuedState.confirmed

    async def confirmed(self: IssuedState) -> None:
        if self.what != "holders":
            await real(self)

    patch.setattr(IssuedState, "confirmed", confirmed)


@mutant("exclusive")
def holder_change_ends_with_its_caller(patch: Patch) -> None:
    """A change counts as durable when the call that asked for it is given up."""
    unshielded = SimpleNamespace(**vars(asyncio))
    unshielded.shield = lambda task: task
    patch.setattr("ledgermq_broker.exclusive.partition.asyncio", unshielded)  # the module alone: others keep theirs


@mutant("exclusive")
def written_while_the_holder_changes(patch: Patch) -> None:
    """Batches are taken from the decision on, and not from the moment at which its record is durable."""
    real = HeldPartitions._change

    def change(self: HeldPartitions, key: PartitionId, decision: Decision[Any], what: str) -> asyncio.Task[None]:
        durable = real(self, key, decision, what)
        self._changing = dict.fromkeys(self._changing, 1)
        patched = dict(self._changing)
        patched.pop(key)
        self._changing = _Forgiving(patched)
        return durable

    patch.setattr(HeldPartitions, "_change", change)


class _Forgiving(dict[PartitionId, int]):
    def __missing__(self, key: PartitionId) -> int:
        return 1

    def __delitem__(self, key: PartitionId) -> None:
        self.pop(key, None)


@mutant("exclusive")
def written_before_holders_are_known(patch: Patch) -> None:
    """An owner takes batches before it has loaded who has which partition."""

    def check(self: ExclusiveWriters, key: PartitionId, producer_id: bytes, principal: int = 0) -> None:
        if self.asks is not None:
            self.asks(key, producer_id, principal)

    patch.setattr(ExclusiveWriters, "check", check)
