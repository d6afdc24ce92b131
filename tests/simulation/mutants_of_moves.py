"""Bugs in what a ledger and its owner do with partitions that move (docs/design.md, Moved partitions)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

import ledgermq_ledger.log.chains.checkpoint as checkpoints
from ledgermq_broker.bundle.moving import Moving
from ledgermq_broker.bundle.reading import former
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage import sweep
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.topics import cleaned_files, expired_files, unreferenced_files, versions
from ledgermq_ledger.keyed import round as keyed_round
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.history import History
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.partitions.moves import SLOT_BITS, Moves, open_after
from ledgermq_ledger.log.recovery import advance_checkpoint, recover
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.parquet import hand_over
from ledgermq_ledger.parquet.compacting import commit, plan
from ledgermq_ledger.rounds import runner
from ledgermq_ledger.topics import facts
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import PartitionMove, Topic
from tests.simulation.moves_ambushes import cleans_between, lists_between
from tests.simulation.moves_broker import is_keyed, overtakes
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("moves")
def batches_taken_behind_the_seal(patch: Patch) -> None:
    """A sealed partition takes records as before."""
    patch.setattr(Moves, "check_here", lambda self, key: None)

    def append(self: LedgerState, entry: fmt.BatchEntry, key: PartitionId) -> None:
        self.ends[key] = entry.base_offset + entry.record_count
        self.producers.add(entry, self.slot)
        self.ids.add(entry, self.slot)

    patch.setattr(LedgerState, "append", append)


@mutant("moves")
def seals_not_in_the_checkpoint(patch: Patch) -> None:
    """Seals and opens are recovered from the tail only."""
    real = LedgerState.from_proto.__func__  # type: ignore[attr-defined]

    def from_proto(cls: type[LedgerState], proto: fmt.LedgerState, states_max: int) -> LedgerState:
        state: LedgerState = real(cls, proto, states_max)
        state.moves = Moves()
        return state

    patch.setattr(LedgerState, "from_proto", classmethod(from_proto))


@mutant("moves")
def slots_of_the_other_ledger_believed(patch: Patch) -> None:
    """An opened slot counts, whichever ledger it was read from."""
    patch.setattr(Moves, "slot_here", lambda self, key, opened_slot: opened_slot & ((1 << SLOT_BITS) - 1))


@mutant("moves")
def seal_without_what_is_in_flight(patch: Patch) -> None:
    """A seal names the end that is durable, and records that are on their way to the store come behind it."""
    real = LedgerWriter.seal

    def seal(self: LedgerWriter, key: PartitionId, move: int, target: int, after: int = 0) -> object:
        if self._issued.end(*key) != self.durable.end(*key):
            self._issued.ends[key] = self.durable.end(*key)
        return real(self, key, move, target, after)

    patch.setattr(LedgerWriter, "seal", seal)


@mutant("moves")
def opened_without_a_seal(patch: Patch) -> None:
    """A partition is opened by the catalog alone, at the end that the other ledger has at the moment."""

    async def open_from(self: Moving, source: int, wanted: Sequence[tuple[PartitionId, PartitionMove]]) -> bool:
        state = (await recover(replace(self._context.ledger(source), known=None))).state
        for key, move in wanted:
            seal = state.moves.seal_of(key)
            if seal is None or seal.move != move.id:
                seal = state.seal_now(key, move.id, self._bundle, state.moves.move(key))
            if seal is not None and (opened := self._writer.open_partition(open_after(seal, source))) is not None:
                await opened
        return all(self._writer.durable.moves.move(key) >= move.id for key, move in wanted)

    patch.setattr(Moving, "_open_from", open_from)


@mutant("moves")
def served_before_it_is_open(patch: Patch) -> None:
    """The owner of the new bundle takes records of a partition as soon as the catalog names its bundle."""
    patch.setattr(Moving, "check_arrived", lambda self, topic_id, partition: None)


@mutant("moves")
def frozen_before_it_is_drained(patch: Patch) -> None:
    """The file list of what has left is frozen while records of it are in segments only."""
    real = hand_over.freezes_due

    def freezes_due(history: History, catalog: Catalog, undrained: Iterable[PartitionId]) -> list[fmt.PlannedFreeze]:
        return real(history, catalog, ())

    patch.setattr(plan, "freezes_due", freezes_due)
    patch.setattr(commit, "freeze", _freeze)


def _freeze(draft: fmt.Checkpoint, counters: fmt.PartitionCheckpoint, planned: fmt.PlannedFreeze) -> None:
    counters.frozen, counters.forgotten = planned.move, False


@mutant("moves")
def files_made_before_the_list_came(patch: Patch) -> None:
    """Rounds of the new bundle bring what it has of the partition to Parquet at once."""
    patch.setattr(plan, "waits_for_files", lambda moves, key, counters: False)


@mutant("moves")
def deleted_between_two_bundles(patch: Patch) -> None:
    """Records of a partition are deleted by whichever bundle is asked."""
    for module in (facts, checkpoints):
        patch.setattr(module, "is_in_charge", lambda checkpoint, topic_id, partition: True)


@mutant("moves", overtakes)
def log_start_of_the_former_ledger_read_once(patch: Patch) -> None:
    """The new owner reads the other ledger's checkpoint once: a deletion that a seal has overtaken is not seen."""
    patch.setattr(former, "is_in_charge", lambda checkpoint, topic_id, partition: False)


@mutant("moves")
def forgotten_before_the_files_are_taken_over(patch: Patch) -> None:
    """The old bundle forgets the partition as soon as its list is frozen."""

    async def forget_handed_over(ledger: LedgerRef, checkpoint: fmt.Checkpoint) -> None:
        frozen = {
            PartitionId(part.topic_id, part.partition): part.frozen for part in checkpoint.partitions if part.frozen
        }
        await advance_checkpoint(ledger, hand_over.forget_move(frozen))

    patch.setattr(runner, "forget_handed_over", forget_handed_over)


@mutant("moves", lists_between)
def collected_by_lists_of_different_moments(patch: Patch) -> None:
    """A Parquet file goes that no list named, although they were read one after another, while the partition went from
    one that was read later to one that was read earlier.
    """
    patch.setattr(unreferenced_files, "is_in_charge", lambda checkpoint, topic_id, partition: True)


@mutant("transactions")
def sealed_while_something_keeps_it(patch: Patch) -> None:
    """A partition is sealed while open transactions have batches for it, or such batches are under way."""
    patch.setattr(Moving, "_check_free", lambda self, key: None)


@mutant("moves", cleans_between)
def cleaned_between_two_bundles(patch: Patch) -> None:
    """A keyed partition is cleaned, and what that replaces is deleted, by whichever bundle is asked."""
    real = facts.may_remove

    def may_remove(checkpoint: fmt.Checkpoint, topic: Topic, partition: int) -> bool:
        patched, facts.is_in_charge = facts.is_in_charge, lambda checkpoint, topic_id, partition: True
        try:
            return real(checkpoint, topic, partition)
        finally:
            facts.is_in_charge = patched

    for module in (keyed_round, expired_files, cleaned_files, sweep, versions):
        patch.setattr(module, "may_remove", may_remove)


@mutant("moves", is_keyed)
def log_of_a_keyed_partition_deleted_in_the_old_bundle(patch: Patch) -> None:
    """The log is deleted up to the end of an old version, wherever it begins by the list."""

    async def remove_cleaned(ledger: LedgerRef, topic: Topic, place: PartitionId) -> list[str]:
        gate = Gate(checkpoint=await cleaned_files.newest_checkpoint(ledger.store, ledger.bundle))
        end = await versions.aged_end(ledger.store, ledger.cluster, place)
        return await cleaned_files._delete_below(ledger.store, gate, topic, place, end)

    patch.setattr(cleaned_files, "remove_cleaned", remove_cleaned)
