"""Bugs in legal holds, archives, deletion on demand and the sweep of a whole root
(docs/decisions/0025).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import ledgermq_ledger.garbage.sweep
import ledgermq_ledger.garbage.topics.cleaned_files
import ledgermq_ledger.garbage.topics.expired_files
import ledgermq_ledger.garbage.topics.retention
import ledgermq_ledger.parquet.archiving.archive
from ledgermq_ledger import keys
from ledgermq_ledger.garbage import heartbeats
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.ledgers import segments
from ledgermq_ledger.garbage.listing import Listing
from ledgermq_ledger.object_store.contract import AlreadyExists, ObjectMissing, ObjectStore, StoreUncertain
from ledgermq_ledger.topics import facts as topic_facts
from ledgermq_ledger.topics import removal as topic_removal
from tests.simulation.archive_ambushes import OLD, SILENT, ambush_of_archives
from tests.simulation.mutants import mutant
from tests.simulation.rounds_plan import rounds_plan_of

LOADED = True
Patch = pytest.MonkeyPatch


def _holds(seed: int) -> bool:
    return rounds_plan_of(seed).holds > 0


def _archives(seed: int) -> bool:
    return rounds_plan_of(seed).archives


def _sweeps(seed: int) -> bool:
    return rounds_plan_of(seed).sweeps > 0


_REMOVING = (
    ledgermq_ledger.garbage.topics.cleaned_files,
    ledgermq_ledger.garbage.topics.expired_files,
    ledgermq_ledger.garbage.topics.retention,
)


@mutant("rounds", likely=_holds)
def hold_ignored(patch: Patch) -> None:
    """Log starts move and files go whatever is held."""
    for module in _REMOVING:
        patch.setattr(module, "may_remove", lambda checkpoint, topic, partition: True)
    patch.setattr(ledgermq_ledger.garbage.topics.retention, "is_held", lambda checkpoint, topic_id: False)
    patch.setattr(ledgermq_ledger.garbage.topics.retention, "refuse_held", lambda checkpoint, topic: None)


@mutant("rounds", likely=lambda seed: _holds(seed) and rounds_plan_of(seed).stale_catalog > 0)
def hold_known_from_the_catalog_alone(patch: Patch) -> None:
    """Checkpoints do not name holds: who read the catalog before the hold goes on deleting."""
    patch.setattr(topic_removal, "facts_in", lambda catalog, bundle: [])


@mutant("rounds", likely=lambda seed: ambush_of_archives(seed) == OLD)
def settings_that_were_replaced(patch: Patch) -> None:
    """Who knows only older settings of a topic deletes by these what has to go to the archive now."""

    def may_remove(checkpoint: Any, topic: Any, partition: int) -> bool:
        return not topic.settings.legal_hold and not topic_facts.is_held(checkpoint, topic.id)

    for module in _REMOVING:
        patch.setattr(module, "may_remove", may_remove)


@mutant("rounds", likely=lambda seed: ambush_of_archives(seed) == SILENT)
def archive_not_read_back(patch: Patch) -> None:
    """A file goes once its copy was sent, whatever became of that."""

    async def keep(self: Any, key: str, url: str) -> None:
        try:
            data = await self._store.get(key)
            await (await self.store(url)).put_if_absent(keys.archived(key), [data])
        except (ObjectMissing, StoreUncertain, AlreadyExists):
            return

    patch.setattr(ledgermq_ledger.parquet.archiving.archive.Archives, "keep", keep)


@mutant("rounds", likely=_archives)
def archive_after_the_original_is_gone(patch: Patch) -> None:
    """A file is moved: read, deleted, then put into the archive."""

    async def keep(self: Any, key: str, url: str) -> None:
        try:
            data = await self._store.get(key)
        except ObjectMissing:
            return
        await self._store.delete([key])
        await (await self.store(url)).put_if_absent(keys.archived(key), [data])

    patch.setattr(ledgermq_ledger.parquet.archiving.archive.Archives, "keep", keep)


@mutant("rounds", likely=_sweeps)
def sweep_takes_what_no_plan_names(patch: Patch) -> None:
    """All slots below the trim slot are taken for garbage, claims and void segments too."""

    def find(listing: Listing) -> list[Removable]:
        return [
            Removable.of(Kind.SEGMENT, info, "below the trim slot")
            for slot, info in listing.segments.items()
            if slot < listing.checkpoint.trim_slot
        ]

    patch.setattr(segments, "find", find)


@mutant("rounds", likely=_sweeps)
def sweep_takes_segments_of_open_plans(patch: Patch) -> None:
    """What any plan names is taken to be in Parquet, finished or not, trimmed or not."""

    def find(listing: Listing) -> list[Removable]:
        return [
            Removable.of(Kind.SEGMENT, listing.segments[slot], "named by a plan")
            for plan in listing.read
            for slot in plan.slots
            if slot in listing.segments
        ]

    async def remove(store: ObjectStore, bundle: int, found: Sequence[Removable]) -> None:
        await store.delete([each.key for each in found])

    patch.setattr(segments, "find", find)
    patch.setattr(segments, "remove", remove)


@mutant("rounds", likely=_sweeps)
def sweep_takes_strangers_for_garbage(patch: Patch) -> None:
    """What no LedgerMQ process puts is removed, not only shown."""
    real = ledgermq_ledger.garbage.sweep._Search._foreign

    async def foreign(self: Any) -> None:
        await real(self)
        self.found.removable += [Removable(Kind.HEARTBEAT, key, 0, 0, "foreign") for key in self.found.foreign]

    async def remove(store: ObjectStore, found: Sequence[Removable]) -> None:
        await store.delete([each.key for each in found])

    patch.setattr(ledgermq_ledger.garbage.sweep._Search, "_foreign", foreign)
    patch.setattr(heartbeats, "remove", remove)
