"""Bugs in Delta tables over the files of topics (design Z1 to Z9), and in their typed values (design R8, R9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import ledgermq_broker.metadata.topic_changes as topic_changes
from ledgermq.errors import Unavailable
from ledgermq_ledger import keys
from ledgermq_ledger.delta import latest, names, versions
from ledgermq_ledger.delta.actions import Add, Txn
from ledgermq_ledger.delta.checkpoint import encode_log_checkpoint
from ledgermq_ledger.delta.names import commit_name
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.delta.versions import Draft
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.topics import removed
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint, partition_of
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.tables import registrar
from ledgermq_ledger.tables.formats import delta as delta_log
from ledgermq_ledger.tables.formats.contract import Committed
from ledgermq_ledger.tables.formats.delta import DeltaLog
from ledgermq_ledger.tables.registrar import Registrar
from ledgermq_ledger.topics import tables
from ledgermq_ledger.topics.settings import TopicSettings
from ledgermq_ledger.topics.tables import bundle_before
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.typed import shape
from ledgermq_ledger.typed.children import Decoders
from ledgermq_ledger.typed.chunk import Work
from tests.simulation.mutants import mutant
from tests.simulation.tables_plan import is_keyed, is_silent, is_typed, tables_plan_of

LOADED = True
Patch = pytest.MonkeyPatch


def lets_go(seed: int) -> bool:
    """Return whether tables are unset because of what they hold back, and others are set beside that."""
    plan = tables_plan_of(seed)
    return plan.hold_max_bytes == 1 and plan.changes > 0


def cleans(seed: int) -> bool:
    return tables_plan_of(seed).log_checkpoint_every < 10


@mutant("tables")
def named_files_are_deleted(patch: Patch) -> None:
    """Retention asks no table before it deletes a file."""
    patch.setattr(Gate, "_why_tables_keep", lambda self, file: "")


@mutant("tables")
def gate_by_the_newest_version_alone(patch: Patch) -> None:
    """A file may go as soon as the newest version does not name it: readers of the one before it lose it."""
    real = DeltaLog.read_held

    async def read_held(self: DeltaLog, keep_ms: int) -> tuple[Table, Table]:
        return await real(self, 0)

    patch.setattr(DeltaLog, "read_held", read_held)


@mutant("tables")
def a_version_is_as_old_as_itself(patch: Patch) -> None:
    """A version of long ago that was replaced a moment ago loses its files."""

    def lowest_held(commits: Mapping[int, int], newest: int, now_ms: int, keep_ms: int) -> int:
        held = newest
        while held - 1 in commits and now_ms - commits[held - 1] < keep_ms:
            held -= 1
        return held

    patch.setattr(names, "lowest_held", lowest_held)


@mutant("tables", likely=is_silent)
def unknown_version_is_cleaned_up(patch: Patch) -> None:
    """A registrar that does not know whether its version was put deletes it, to begin again."""
    real = DeltaLog.commit

    async def commit(self: DeltaLog, base: Table, draft: Draft, now_ms: int) -> Committed:
        outcome = await real(self, base, draft, now_ms)
        if outcome is Committed.UNKNOWN:
            await self._store.delete([self._folder + commit_name(base.version + 1)])
        return outcome

    patch.setattr(DeltaLog, "commit", commit)


@mutant("tables")
def gap_is_registered(patch: Patch) -> None:
    """Where several files are new, the first one is left out: another registrar is thought to have it."""
    real = versions._rows

    def rows(table: Table, topic: Any, lists: Any, named: Any) -> Draft:
        draft = real(table, topic, lists, named)
        adds = [action for action in draft.actions if isinstance(action, Add)]
        if len(adds) > 1:
            draft.actions.remove(adds[0])
        return draft

    patch.setattr(versions, "_rows", rows)


@mutant("tables")
def version_is_rebased_without_a_second_look(patch: Patch) -> None:
    """A registrar that lost a number to another one puts the same files under the next number."""
    real = DeltaLog.commit

    async def commit(self: DeltaLog, base: Table, draft: Draft, now_ms: int) -> Committed:
        outcome = await real(self, base, draft, now_ms)
        return outcome if outcome is not Committed.LOST else await real(self, await self.read(), draft, now_ms)

    patch.setattr(DeltaLog, "commit", commit)


@mutant("tables")
def partition_registered_by_the_bundle_it_left(patch: Patch) -> None:
    """The list of a partition is read where the catalog of this process has it, whoever is in charge of it."""

    async def in_charge(self: Registrar, place: PartitionId) -> fmt.Checkpoint | None:
        checkpoint = await newest_checkpoint(self._store, bundle_before(self._set, place.partition))
        self._check_that_knows(checkpoint)
        return checkpoint

    patch.setattr(Registrar, "_in_charge", in_charge)


@mutant("tables", likely=lets_go)
def any_generation_is_unset(patch: Patch) -> None:
    """A table is unset because it holds back too much, although that was said of one that was set before it."""
    real = tables.with_generation

    def with_generation(
        raw: Mapping[str, str],
        settings: TopicSettings,
        before: TopicSettings,
        offset: int,
        *,
        rebuild: bool = False,
        let_go: tuple[int, int] = (0, 0),
    ) -> tuple[dict[str, str], TopicSettings]:
        any_of = (before.table_generation, let_go[1]) if let_go[0] else let_go
        return real(raw, settings, before, offset, rebuild=rebuild, let_go=any_of)

    patch.setattr(topic_changes, "with_generation", with_generation)


@mutant("tables")
def rebuild_forgets_what_is_held(patch: Patch) -> None:
    """Once a table is rebuilt, versions of before are kept no longer."""
    real = DeltaLog.read_held

    async def read_held(self: DeltaLog, keep_ms: int) -> tuple[Table, Table]:
        lowest, newest = await real(self, keep_ms)
        is_rebuilt = lowest.metadata != newest.metadata
        return (newest, newest) if is_rebuilt else (lowest, newest)

    patch.setattr(DeltaLog, "read_held", read_held)


@mutant("tables", likely=cleans)
def log_checkpoint_without_ends(patch: Patch) -> None:
    """A checkpoint of the table's log leaves out how far partitions are registered."""
    real = encode_log_checkpoint

    def encode(table: Table, **more: Any) -> Any:
        return real(replace(table, txns=dict[str, Txn]()), **more)

    patch.setattr(delta_log, "encode_log_checkpoint", encode)


@mutant("tables", likely=cleans)
def log_cleaned_at_once(patch: Patch) -> None:
    """What the newest version does not need goes from the table's log, though readers have older ones open."""
    real = DeltaLog.clean

    async def clean(self: DeltaLog, keep_ms: int) -> list[str]:
        return await real(self, 0)

    patch.setattr(DeltaLog, "clean", clean)


@mutant("tables")
def removals_beside_new_rows(patch: Patch) -> None:
    """A version adds files and removes others: a stream over the table stops, or misses rows."""
    real = versions.draft_version

    def draft_version(table: Table, topic: Any, lists: Any, now_ms: int, *, adds: bool = True) -> Draft:
        draft = real(table, topic, lists, now_ms, adds=adds)
        if draft.operation == "WRITE":
            removal = versions._removal(table, topic, lists, versions._named_files(table, topic), now_ms)
            said = {action.app_id for action in draft.actions if isinstance(action, Txn)}
            more = [each for each in removal.actions if not (isinstance(each, Txn) and each.app_id in said)]
            draft.actions = [*more, *draft.actions]
        return draft

    patch.setattr(registrar, "draft_version", draft_version)


@mutant("tables")
def gate_that_no_version_says(patch: Patch) -> None:
    """The gate of a partition goes by its log start, where versions name none of its files below that: a registrar
    that slept adds one that has gone meanwhile.
    """

    async def raise_gate(self: Registrar, place: PartitionId, start: int) -> bool:
        checkpoint = await self._in_charge(place)
        if checkpoint is None:
            return False
        ledger = LedgerRef(self._store, checkpoint.bundle, self._cluster, self._sources)
        above = partition_of(checkpoint, *place).log_start
        return await advance_checkpoint(ledger, self._gate_move(place, above)) is not None

    patch.setattr(Registrar, "_raise_gate", raise_gate)


def deletes(seed: int) -> bool:
    return tables_plan_of(seed).deletions > 0 and not is_keyed(seed)


@mutant("tables", likely=deletes)
def log_of_a_table_goes_with_its_topic(patch: Patch) -> None:
    """The log of a removed topic's table is deleted: the next topic of the name begins at numbers that are free, which
    a version of the former one can win.
    """
    real = removed.empty_table

    async def empty_table(store: ObjectStore, cluster_id: str, topic: Topic, *more: Any) -> None:
        await real(store, cluster_id, topic, *more)
        await store.delete([info.key async for info in store.list(f"{keys.parquet_topic(topic.name)}_delta_log/")])

    patch.setattr(removed, "empty_table", empty_table)


@mutant("tables", likely=is_keyed)
def keyed_version_is_shown_in_two_steps(patch: Patch) -> None:
    """The new files of a keyed version come by one version of the table, and the replaced ones go by the next."""
    real = latest._replace

    def replace_files(draft: Draft, table: Table, topic: Any, *of: Any) -> None:
        real(draft, table, topic, *of)
        adds = [action for action in draft.actions if isinstance(action, Add)]
        if adds and len(adds) < len([action for action in draft.actions if not isinstance(action, Txn)]):
            draft.actions = [*adds]

    patch.setattr(latest, "_replace", replace_files)


@mutant("tables", likely=is_keyed)
def keyed_files_kept_by_the_hour_alone(patch: Patch) -> None:
    """A replaced version goes when it is old enough, whatever versions of the table show it."""
    patch.setattr(Gate, "_why_tables_keep_version", lambda self, version: "")


@mutant("tables", likely=is_typed)
def a_dead_decoder_stops_its_round(patch: Patch) -> None:
    """A value that ends its decoder is an error of the round: the same value waits in the next one."""

    def into(self: Decoders, work: Work, values: pa.Array, parts: list[pa.RecordBatch]) -> None:
        found = self._tried(work, values)
        if isinstance(found, str):
            raise Unavailable(found)
        parts.append(found)

    patch.setattr(Decoders, "_into", into)


@mutant("tables", likely=is_typed)
def a_dead_decoder_takes_its_neighbours_along(patch: Patch) -> None:
    """All values that were decoded beside a value that ends the decoder have its error."""

    def into(self: Decoders, work: Work, values: pa.Array, parts: list[pa.RecordBatch]) -> None:
        found = self._tried(work, values)
        if isinstance(found, str):
            columns = [pa.nulls(len(values), work.wanted), pa.array([found] * len(values), pa.string())]
            found = pa.RecordBatch.from_arrays(columns, schema=work.answer)
        parts.append(found)

    patch.setattr(Decoders, "_into", into)


@mutant("tables", likely=is_typed)
def a_column_is_as_narrow_as_its_schema(patch: Patch) -> None:
    """A column of `int` is made as such: files that were made once the schema says `long` have another type."""
    patch.setattr(shape, "_TYPES", {**shape._TYPES, "int": pa.int32()})
