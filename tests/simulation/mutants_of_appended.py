"""Bugs in the column `appended` of Parquet files (design Q9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ledgermq_ledger.parquet.compacting.round
from ledgermq_ledger.log.history import History
from ledgermq_ledger.object_store.contract import ObjectStore
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("rounds")
def appended_by_the_clock_of_each_owner(patch: Patch) -> None:
    """A plan takes the time that a segment's owner wrote into it, by the clock of its machine."""

    async def find_dates(store: ObjectStore, history: History) -> None:
        for at, segment in enumerate(history.segments):
            history.segments[at] = replace(segment, stored_ms=segment.index.created_ms)

    patch.setattr(ledgermq_ledger.parquet.compacting.round, "_find_dates", find_dates)
