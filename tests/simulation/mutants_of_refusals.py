"""Bugs about puts that the store certainly refuses: a full store ends no term, and proves nothing
about any other put.
"""

from __future__ import annotations

from typing import Any

import pytest

import ledgermq_ledger.parquet.compacting.round
from ledgermq.errors import LedgerMQError, StoreFull
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.writing.in_flight import succeed
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.object_store import settle
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome
from tests.simulation.mutants import mutant
from tests.simulation.plan import plan_of
from tests.simulation.rounds_plan import rounds_plan_of

Patch = pytest.MonkeyPatch


def fills_up(seed: int) -> bool:
    return plan_of(seed).full > 0


@mutant("ledger", likely=fills_up)
def refused_put_acknowledged(patch: Patch) -> None:
    """Waiters of a segment that the store refused are answered as if it were stored."""
    real = LedgerWriter._take_refusal

    def take_refusal(self: LedgerWriter, flight: Any, error: LedgerMQError) -> None:
        for append, base_offset in flight.answers:
            succeed(append, base_offset)
        real(self, flight, error)

    patch.setattr(LedgerWriter, "_take_refusal", take_refusal)


@mutant("ledger", likely=lambda seed: plan_of(seed).faults.late + plan_of(seed).faults.after > 0.02)
def unknown_outcome_taken_as_refused(patch: Patch) -> None:
    """A put whose outcome cannot be told is taken as one that the store refused, and the term goes
    on.
    """
    real = LedgerWriter._take_outcome

    def take_outcome(self: LedgerWriter, flight: Any, outcome: PutOutcome) -> None:
        if outcome is PutOutcome.UNKNOWN:
            self._take_refusal(flight, StoreFull("not to be told"))
        else:
            real(self, flight, outcome)

    patch.setattr(settle, "ATTEMPTS_MAX", 2)
    patch.setattr(LedgerWriter, "_take_outcome", take_outcome)


@mutant("ledger", likely=fills_up)
def own_void_segments_forgotten(patch: Patch) -> None:
    """After a refused put the slot behind it is taken as free, though a segment that links to the
    refused one has landed there.
    """

    def pass_voids(self: LedgerWriter, state: LedgerState) -> None:
        pass

    patch.setattr(LedgerWriter, "_pass_voids", pass_voids)


@mutant("ledger", likely=fills_up)
def not_taken_back(patch: Patch) -> None:
    """After a refused put offsets and sequences are given out behind those of the segment that was
    never stored.
    """
    real = LedgerWriter._go_on_if_settled

    def go_on(self: LedgerWriter) -> None:
        ends, producers = dict(self._issued.ends), self._issued.producers
        was_refusing = self._refusal is not None
        real(self)
        if was_refusing and self._refusal is None:
            self._issued.ends, self._issued.producers = ends, producers

    patch.setattr(LedgerWriter, "_go_on_if_settled", go_on)


@mutant("rounds", likely=lambda seed: plan_of(seed).full > 0 and not rounds_plan_of(seed).is_s3)
def plan_cut_short_with_its_fence_open(patch: Patch) -> None:
    """Where there is no room what is there is committed, while other runners of the plan may go on
    and put the rest.
    """

    async def cut_short(store: ObjectStore, plan: fmt.CompactionPlan) -> None:
        pass

    patch.setattr(ledgermq_ledger.parquet.compacting.round, "cut_short", cut_short)


LOADED = True
