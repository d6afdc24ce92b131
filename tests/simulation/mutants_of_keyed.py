"""Bugs in the cleaning of keyed topics (docs/decisions/0022)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ledgermq_ledger.garbage.topics.versions
import ledgermq_ledger.keyed.latest
import ledgermq_ledger.keyed.replaced
import ledgermq_ledger.keyed.round
from ledgermq_ledger.keyed.plan import CleaningPlan
from ledgermq_ledger.object_store.contract import ObjectStore
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("keyed")
def old_records_stay_beside_new_ones(patch: Patch) -> None:
    """Whether the dirty part holds a later record of a key is not looked at."""

    def survivors(self: Any, keys: pa.ChunkedArray, offsets: pa.ChunkedArray) -> pa.ChunkedArray:
        return pc.is_valid(offsets)

    patch.setattr(ledgermq_ledger.keyed.latest.LatestOffsets, "survivors", survivors)


@mutant("keyed")
def log_deleted_above_the_version(patch: Patch) -> None:
    """The log goes whether or not a version holds what is in it."""

    async def aged_end(store: ObjectStore, cluster: Any, place: Any) -> int:
        return 2**62

    patch.setattr(ledgermq_ledger.garbage.topics.versions, "aged_end", aged_end)


@mutant("keyed")
def files_of_earlier_rounds_deleted(patch: Patch) -> None:
    """Only the files that were made for the newest version count as its own, not those that it has
    taken over.
    """
    real = ledgermq_ledger.keyed.replaced._files_of

    async def files_of(store: ObjectStore, place: Any, number: int) -> set[str]:
        return {key for key in await real(store, place, number) if f"-{number}-" in key}

    patch.setattr(ledgermq_ledger.keyed.replaced, "_files_of", files_of)


@mutant("keyed")
def version_published_before_its_last_file(patch: Patch) -> None:
    """A group of files is left out of the version."""
    real = ledgermq_ledger.keyed.round._run

    async def run(compaction: Any, bundle: int, plan: CleaningPlan, *rest: Any) -> Any:
        return await real(
            compaction, bundle, replace(plan, groups=plan.groups[:-1] if len(plan.groups) > 1 else plan.groups), *rest
        )

    patch.setattr(ledgermq_ledger.keyed.round, "_run", run)
