"""Bugs in Iceberg tables over the files of topics (design Z1 to Z7). Some are those of `mutants_of_tables` once more:
seeds with an Iceberg table are tried first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyiceberg.table import Table as Stored
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertTableUUID, TableUpdate

from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.delta.versions import Draft
from ledgermq_ledger.iceberg import snapshots, writing
from ledgermq_ledger.tables.formats import iceberg
from ledgermq_ledger.tables.formats.contract import Committed
from ledgermq_ledger.tables.formats.iceberg import IcebergLog
from tests.simulation.mutants import mutant
from tests.simulation.mutants_of_tables import (
    gap_is_registered,
    named_files_are_deleted,
    partition_registered_by_the_bundle_it_left,
)
from tests.simulation.tables_plan import is_iceberg, is_silent, tables_plan_of

LOADED = True
Patch = pytest.MonkeyPatch


def lets_go(seed: int) -> bool:
    return is_iceberg(seed) and tables_plan_of(seed).log_checkpoint_every < 10


def is_silent_iceberg(seed: int) -> bool:
    return is_iceberg(seed) and is_silent(seed)


@mutant("tables", likely=is_iceberg)
def iceberg_files_that_are_named_are_deleted(patch: Patch) -> None:
    """Retention asks no table before it deletes a file."""
    named_files_are_deleted(patch)


@mutant("tables", likely=is_iceberg)
def gap_is_registered_in_iceberg(patch: Patch) -> None:
    """Where several files are new, the first one is left out: another registrar is thought to have it."""
    gap_is_registered(patch)


@mutant("tables", likely=is_iceberg)
def iceberg_partition_registered_by_the_bundle_it_left(patch: Patch) -> None:
    """The list of a partition is read where the catalog of this process has it, although another broker may own it."""
    partition_registered_by_the_bundle_it_left(patch)


@mutant("tables", likely=is_iceberg)
def gate_by_the_newest_snapshot_alone(patch: Patch) -> None:
    """A file may go as soon as the newest snapshot does not name it: readers of the one before it lose it."""
    real = IcebergLog.read_held

    async def read_held(self: IcebergLog, keep_ms: int) -> tuple[Table, Table]:
        _, newest = await real(self, keep_ms)
        return newest, newest

    patch.setattr(IcebergLog, "read_held", read_held)


@mutant("tables", likely=is_iceberg)
def a_snapshot_is_as_old_as_itself(patch: Patch) -> None:
    """A snapshot of long ago that was replaced a moment ago loses its files, as by PyIceberg's `older_than`."""
    real = snapshots.came_ms
    patch.setattr(snapshots, "came_ms", lambda said, chain, index: real(said, chain, min(index + 1, len(chain) - 1)))


@mutant("tables", likely=is_iceberg)
def rebuilt_iceberg_forgets_what_is_held(patch: Patch) -> None:
    """Once a table is rebuilt, snapshots of before are kept no longer."""
    real = IcebergLog.read_held

    async def read_held(self: IcebergLog, keep_ms: int) -> tuple[Table, Table]:
        lowest, newest = await real(self, keep_ms)
        return (newest, newest) if lowest.metadata != newest.metadata else (lowest, newest)

    patch.setattr(IcebergLog, "read_held", read_held)


@mutant("tables", likely=is_silent_iceberg)
def manifests_of_an_unknown_commit_are_deleted(patch: Patch) -> None:
    """A registrar that gets no answer to its commit deletes the manifests that it has written for it, as PyIceberg
    does after a commit that failed.
    """
    _clean_up(patch, Committed.UNKNOWN)


@mutant("tables", likely=is_iceberg)
def a_conflict_is_believed(patch: Patch) -> None:
    """A registrar whose commit is refused deletes the manifests that it has written for it, though the catalog may
    have taken the commit when it was sent before.
    """
    real = IcebergLog._settle

    async def settle(self: IcebergLog, put_id: str, *, is_refused: bool) -> Committed:
        return Committed.LOST if is_refused else await real(self, put_id, is_refused=is_refused)

    patch.setattr(IcebergLog, "_settle", settle)
    _clean_up(patch, Committed.LOST)


def _clean_up(patch: Patch, after: Committed) -> None:
    written = list[tuple[Stored, Snapshot]]()
    real_staged, real_commit = writing.staged, IcebergLog.commit

    def staged(table: Stored, *of: Any) -> tuple[TableUpdate, ...]:
        updates = real_staged(table, *of)
        written.extend((table, update.snapshot) for update in updates if hasattr(update, "snapshot"))
        return updates

    async def commit(self: IcebergLog, base: Table, draft: Draft, now_ms: int) -> Committed:
        written.clear()
        outcome = await real_commit(self, base, draft, now_ms)
        for table, snapshot in written if outcome is after else ():
            table.io.delete(snapshot.manifest_list)
        return outcome

    patch.setattr(iceberg, "staged", staged)
    patch.setattr(IcebergLog, "commit", commit)


@mutant("tables", likely=is_iceberg)
def snapshot_is_rebased_without_a_second_look(patch: Patch) -> None:
    """A registrar that lost to another one adds the same files to that one's snapshot, as PyIceberg's retries do."""
    real = IcebergLog.commit

    async def commit(self: IcebergLog, base: Table, draft: Draft, now_ms: int) -> Committed:
        outcome = await real(self, base, draft, now_ms)
        return outcome if outcome is not Committed.LOST else await real(self, await self.read(), draft, now_ms)

    patch.setattr(IcebergLog, "commit", commit)


@mutant("tables", likely=is_iceberg)
def snapshot_is_put_whatever_is_current(patch: Patch) -> None:
    """A commit asks the catalog for the table alone, not for the snapshot from which it was computed: of two
    registrars the later one undoes what the other has put.
    """

    def commit(catalog: Any, table: Stored, updates: tuple[TableUpdate, ...]) -> None:
        catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), updates)

    patch.setattr(iceberg, "commit", commit)


@mutant("tables", likely=lets_go)
def snapshots_let_go_of_at_once(patch: Patch) -> None:
    """All snapshots but the newest go from the metadata, though readers have them open."""
    real = IcebergLog.tidy

    async def tidy(self: IcebergLog, table: Table, now_ms: int, keep_ms: int, every: int) -> None:
        await real(self, table, now_ms + keep_ms, 0, every)

    patch.setattr(IcebergLog, "tidy", tidy)


@mutant("tables", likely=lets_go)
def manifests_of_other_snapshots_are_deleted(patch: Patch) -> None:
    """With a snapshot that is let go of all its manifests go, also those that later ones name."""

    def drop_unused(table: Stored, old: Sequence[Snapshot]) -> None:
        gone = {manifest.manifest_path for snapshot in old for manifest in snapshot.manifests(table.io)}
        for path in sorted(gone):
            table.io.delete(path)

    patch.setattr(iceberg, "drop_unused", drop_unused)
