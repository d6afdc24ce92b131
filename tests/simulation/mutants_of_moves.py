"""Bugs in what a ledger does with partitions that move (docs/design.md, Moved partitions)."""

from __future__ import annotations

import pytest

from ledger.format import ledgermq_format_pb2 as fmt
from ledger.keys import PartitionId
from ledger.log.fold import LedgerState
from ledger.log.moves import SLOT_BITS, Moves
from ledger.log.writer import LedgerWriter
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("moves")
def batches_taken_behind_the_seal(patch: Patch) -> None:
    """A sealed partition takes records as before."""
    patch.setattr(Moves, "check_here", lambda self, key: None)

    def append(self: LedgerState, entry: fmt.BatchEntry) -> None:
        key = PartitionId(entry.topic_id, entry.partition)
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
