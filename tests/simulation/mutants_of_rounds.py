"""Bugs in Parquet compaction, retention, removal of topics and garbage collection (docs/design.md,
Parquet compaction and Deletion).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import ledgermq_ledger.garbage.topics.expired_files
import ledgermq_ledger.garbage.topics.removed
import ledgermq_ledger.garbage.topics.retention
import ledgermq_ledger.garbage.topics.unreferenced_files
import ledgermq_ledger.log.chains.plans
import ledgermq_ledger.parquet.compacting.group_build
import ledgermq_ledger.parquet.compacting.plan
import ledgermq_ledger.parquet.compacting.round
import ledgermq_ledger.parquet.compacting.task
from ledgermq.errors import LedgerMQError, Unavailable
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.ledgers import checkpoints, pages, plans, snapshots
from ledgermq_ledger.garbage.listing import Listing
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.compacting.group_build import Built
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.files.columns import ParquetBuilder
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.topics import removal as topic_removal
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("rounds")
def plan_not_frozen(patch: Patch) -> None:
    """Who loses the put of a plan runs its own all the same."""
    real = ledgermq_ledger.parquet.compacting.round.put_plan

    async def put_plan(store: ObjectStore, plan: fmt.CompactionPlan, sources: Any) -> bool:
        await real(store, plan, sources)
        await store.open_fence(ledgermq_ledger.log.chains.plans.fence_of(plan))
        return True

    async def read_plan(store: ObjectStore, bundle: int, number: int) -> None:
        return None

    patch.setattr(ledgermq_ledger.parquet.compacting.round, "put_plan", put_plan)
    patch.setattr(ledgermq_ledger.parquet.compacting.round, "read_plan", read_plan)


@mutant("rounds")
def parquet_deleted_in_any_order(patch: Patch) -> None:
    """Expired files are deleted newest first."""

    async def remove_expired(ledger: LedgerRef, *rest: Any) -> int:
        store, bundle = ledger.store, ledger.bundle
        checkpoint = await newest_checkpoint(store, bundle)
        for part in checkpoint.partitions:
            files = await PageReader(store, bundle).files_from(part, part.parquet_start)
            for file in reversed([file for file in files if file.last_offset < part.log_start]):
                await store.delete([file.key])
        return 0

    patch.setattr(ledgermq_ledger.garbage.topics.expired_files, "remove_expired", remove_expired)


@mutant("rounds")
def retention_deletes_one_file_too_many(patch: Patch) -> None:
    """The file that holds the log start is deleted too."""

    async def remove_expired(ledger: LedgerRef, *rest: Any) -> int:
        store, bundle = ledger.store, ledger.bundle
        checkpoint = await newest_checkpoint(store, bundle)
        for part in checkpoint.partitions:
            for file in await PageReader(store, bundle).files_from(part, part.parquet_start):
                if part.log_start and file.first_offset <= part.log_start:
                    await store.delete([file.key])
        return 0

    patch.setattr(ledgermq_ledger.garbage.topics.expired_files, "remove_expired", remove_expired)


@mutant("rounds")
def name_freed_without_a_barrier(patch: Patch) -> None:
    """A deleted topic's files are looked for before plans that may still write some are finished."""
    patch.setattr(topic_removal, "is_past_barrier", lambda checkpoint, topic_id: True)
    patch.setattr(ledgermq_ledger.garbage.topics.removed, "is_past_barrier", lambda checkpoint, topic_id: True)


@mutant("rounds")
def name_freed_with_files_left(patch: Patch) -> None:
    """A deleted topic's name is free though its Parquet files are still there."""

    async def delete_files(self: Any) -> None:
        return None

    patch.setattr(ledgermq_ledger.garbage.topics.removed._Removal, "_delete_files", delete_files)


@mutant("rounds")
def garbage_collection_reads_before_it_lists(patch: Patch) -> None:
    """What is live is found out first, then everything is listed and the rest deleted."""

    async def find(store: ObjectStore, cluster: Any, listing: Any) -> dict[int, list[Removable]]:
        known = await _live(store, cluster)
        found: dict[int, list[Removable]] = {}
        async for info in store.list(keys.PARQUET):
            if info.key not in known and (name := keys.parse_parquet(info.key)) is not None:
                found.setdefault(1 + name.partition % (cluster.bundles - 1), []).append(
                    Removable.of(Kind.PARQUET, info, "unknown")
                )
        return found

    async def remove(store: ObjectStore, cluster: Any, bundle: int, files: Any) -> list[str]:
        await store.delete([each.key for each in files])
        return []

    patch.setattr(ledgermq_ledger.garbage.topics.unreferenced_files, "find_unreferenced", find)
    patch.setattr(ledgermq_ledger.garbage.topics.unreferenced_files, "remove_unreferenced", remove)


@mutant("rounds")
def snapshot_keeps_the_oldest(patch: Patch) -> None:
    """Cleaning an internal topic keeps the first record of each key, not the last."""
    from ledgermq_ledger.log.chains.snapshot import InternalRecord

    def clean(records: Any) -> list[InternalRecord]:
        first: dict[bytes, InternalRecord] = {}
        for record in records:
            first.setdefault(record.key, record)
        return sorted((r for r in first.values() if r.value is not None), key=lambda r: r.offset)

    patch.setattr("ledgermq_ledger.parquet.compacting.snapshot_build.clean", clean)


@mutant("rounds")
def file_without_its_last_record(patch: Patch) -> None:
    """A plan's file ends one record early; the next begins behind the gap."""
    real = ledgermq_ledger.parquet.compacting.plan._file

    def file(backlog: Any, plan: int) -> fmt.PlannedFile:
        found = real(backlog, plan)
        if found.key and found.last_offset > found.first_offset:
            parsed = keys.parse_parquet(found.key)
            assert parsed is not None
            found.key = replace(parsed, last_offset=found.last_offset - 1).key
        return found

    patch.setattr(ledgermq_ledger.parquet.compacting.plan, "_file", file)


@mutant("rounds")
def commit_of_a_plan_that_was_finished(patch: Patch) -> None:
    """A runner that was asleep commits its plan again."""
    real = ledgermq_ledger.parquet.compacting.round.commit_move

    def commit_move(plan: fmt.CompactionPlan, stored: Any, **more: Any) -> Any:
        move = real(plan, stored, **more)

        def again(draft: fmt.Checkpoint) -> bool:
            if draft.finished_plan >= plan.number:
                draft.finished_plan = plan.number - 1
            return bool(move(draft))

        return again

    patch.setattr(ledgermq_ledger.parquet.compacting.round, "commit_move", commit_move)


async def _live(store: ObjectStore, cluster: Any) -> set[str]:
    live: set[str] = set()
    for bundle in range(cluster.bundles):
        for part in (await newest_checkpoint(store, bundle)).partitions:
            if part.newest_page:
                live.update(file.key for file in await PageReader(store, bundle).files_from(part, 0))
    return live


@mutant("rounds")
def task_does_not_look(patch: Patch) -> None:
    """Who reads a plan writes its files, whatever the newest checkpoint says."""

    async def require_open(store: ObjectStore, plan: fmt.CompactionPlan) -> fmt.Checkpoint:
        return await newest_checkpoint(store, plan.bundle)

    patch.setattr(ledgermq_ledger.parquet.compacting.round, "require_open", require_open)
    patch.setattr(ledgermq_ledger.parquet.compacting.task, "require_open", require_open)


@mutant("rounds")
def next_plan_before_the_last_is_finished(patch: Patch) -> None:
    """A plan is made behind the newest plan, finished or not."""

    async def open_plan(compaction: Compaction, bundle: int, catalog: Any, **how: bool) -> Any:
        store, sources = compaction.store, compaction.sources
        numbers = [keys.number(info.key) async for info in store.list(keys.compactions(bundle))]
        history = await ledgermq_ledger.parquet.compacting.round.read_history(compaction.ledger(bundle))
        plan = ledgermq_ledger.parquet.compacting.round.make_plan(
            history, catalog, now_ms=sources.now_ms(), put_id=sources.new_id(), **how
        )
        if plan is None:
            return None
        plan.number = max([plan.number, *(number + 1 for number in numbers)])
        for file in plan.files:
            parsed = keys.parse_parquet(file.key)
            assert parsed is not None
            file.key = replace(parsed, plan=plan.number).key
        return plan if await ledgermq_ledger.parquet.compacting.round.put_plan(store, plan, sources) else None

    async def require_open(store: ObjectStore, plan: fmt.CompactionPlan) -> fmt.Checkpoint:
        return await newest_checkpoint(store, plan.bundle)

    patch.setattr(ledgermq_ledger.parquet.compacting.round, "_open_plan", open_plan)
    patch.setattr(ledgermq_ledger.parquet.compacting.round, "require_open", require_open)
    patch.setattr(ledgermq_ledger.parquet.compacting.task, "require_open", require_open)


@mutant("rounds")
def range_dropped_while_files_are_left(patch: Patch) -> None:
    """Records below the log start are left out, though the partition has Parquet files before them."""
    patch.setattr(
        ledgermq_ledger.parquet.compacting.plan,
        "_first_offset",
        lambda counters: max(counters.log_start, counters.parquet_end),
    )
    patch.setattr(ledgermq_ledger.parquet.compacting.plan, "check_plan", lambda history, plan, backlogs: None)


@mutant("rounds")
def log_start_forgets_what_is_left(patch: Patch) -> None:
    """Parquet is said to begin at the log start before the files below it are gone."""
    real = ledgermq_ledger.garbage.topics.retention.log_start_move

    def log_start_move(starts: Any, *more: Any) -> Any:
        move = real(starts, *more)

        def both(draft: fmt.Checkpoint) -> bool:
            moved = bool(move(draft))
            for part in draft.partitions:
                part.parquet_start = max(part.parquet_start, min(part.log_start, part.parquet_end))
            return moved

        return both

    patch.setattr(ledgermq_ledger.garbage.topics.retention, "log_start_move", log_start_move)


@mutant("rounds")
def uncertain_commit_undone(patch: Patch) -> None:
    """The files of a plan are deleted when its commit could not be told, or was another's."""
    real = ledgermq_ledger.parquet.compacting.round._commit

    async def commit(compaction: Compaction, plan: fmt.CompactionPlan, stored: Any, **more: Any) -> bool:
        try:
            done = await real(compaction, plan, stored, **more)
        except Unavailable:
            done = False
        if not done:
            await compaction.store.delete([file.key for file in stored])
        return done

    patch.setattr(ledgermq_ledger.parquet.compacting.round, "_commit", commit)


@mutant("rounds")
def topic_dropped_before_the_checkpoint_names_it(patch: Patch) -> None:
    """A plan leaves out the records of a topic that the catalog does not know: it is removed, or it
    is newer than the catalog.
    """
    real = ledgermq_ledger.parquet.compacting.plan.fate_of

    def fate_of(topic_id: int, history: Any, catalog: Any) -> Any:
        fate = real(topic_id, history, catalog)
        return (
            ledgermq_ledger.parquet.compacting.plan.Fate.DROP
            if fate is ledgermq_ledger.parquet.compacting.plan.Fate.WAIT
            else fate
        )

    patch.setattr(ledgermq_ledger.parquet.compacting.plan, "fate_of", fate_of)
    patch.setattr(ledgermq_ledger.parquet.compacting.round, "needs_newer_catalog", lambda history, catalog: False)


@mutant("rounds")
def task_reads_a_slot_that_was_created_again(patch: Patch) -> None:
    """The put id that the plan says is not looked at, and what is not there is an empty input."""

    async def read_planned_index(
        store: ObjectStore, plan: fmt.CompactionPlan, slot: fmt.PlannedSlot
    ) -> fmt.SegmentIndex:
        from ledgermq_ledger.log.segments.segment import read_index

        return (await read_index(store, plan.bundle, slot.slot)).index

    async def refuse(store: ObjectStore, plan: fmt.CompactionPlan, key: str, what: str) -> LedgerMQError:
        return ObjectMissing(key)

    async def read_slot(*args: Any) -> Any:
        try:
            return await real(*args)
        except ObjectMissing:
            return []

    def built(self: Any) -> list[Built]:
        return [
            self.failures.get(key) or Built(file, self.builders.get(key) or ParquetBuilder(file))
            for key, file in self.files.items()
        ]

    real = ledgermq_ledger.parquet.compacting.group_build._read_slot
    patch.setattr(ledgermq_ledger.parquet.compacting.group_build._Group, "built", built)
    patch.setattr(ledgermq_ledger.parquet.compacting.group_build, "read_planned_index", read_planned_index)
    patch.setattr(ledgermq_ledger.parquet.compacting.group_build, "refuse", refuse)
    patch.setattr(ledgermq_ledger.parquet.compacting.group_build, "_read_slot", read_slot)


@mutant("rounds")
def snapshot_in_force_deleted(patch: Patch) -> None:
    """All snapshots but the newest are deleted, whichever one the checkpoint names."""

    def find(listing: Listing) -> list[Removable]:
        return [Removable.of(Kind.SNAPSHOT, info, "not the newest") for info in [*listing.snapshots.values()][:-1]]

    async def remove(store: ObjectStore, found: Sequence[Removable], gate: Gate | None = None) -> None:
        await asyncio.sleep(0.1)
        await store.delete([each.key for each in found])

    patch.setattr(snapshots, "find", find)
    patch.setattr(snapshots, "remove", remove)


@mutant("rounds")
def page_in_use_deleted(patch: Patch) -> None:
    """All pages but the newest of each bundle are deleted, whatever leads to them."""

    def find(listing: Listing) -> list[Removable]:
        return [Removable.of(Kind.PAGE, info, "not the newest") for info in [*listing.pages.values()][:-1]]

    patch.setattr(pages, "find", find)


@mutant("rounds")
def open_plan_deleted(patch: Patch) -> None:
    """Plans are deleted whether or not they are finished."""

    def find(listing: Listing, segments_kept: Any = ()) -> list[Removable]:
        return [Removable.of(Kind.PLAN, info, "a plan") for info in listing.plans.values()]

    patch.setattr(plans, "find", find)


@mutant("rounds")
def newest_checkpoint_deleted_after_a_round(patch: Patch) -> None:
    """Tidying deletes the newest checkpoint, too: recovery begins anew from slot 1."""

    def find(listing: Listing) -> list[Removable]:
        return [Removable.of(Kind.CHECKPOINT, info, "a checkpoint") for info in listing.checkpoints.values()]

    patch.setattr(checkpoints, "find", find)
