"""Bugs in what a ledger remembers of the ids of messages (docs/design.md, Produce)."""

from __future__ import annotations

import pytest

import ledgermq_ledger.log.writing.writer
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.partitions.message_ids import MessageIds
from ledgermq_ledger.log.recovery import Recovered
from ledgermq_ledger.log.writing.writer import LedgerWriter
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("ids")
def ids_forgotten_at_a_takeover(patch: Patch) -> None:
    """A new owner begins with an empty window."""
    real = ledgermq_ledger.log.writing.writer.recover

    async def recover(ref: LedgerRef) -> Recovered:
        recovered = await real(ref)
        recovered.state.ids = MessageIds(ref.cluster.producer_states_max)
        return recovered

    patch.setattr(ledgermq_ledger.log.writing.writer, "recover", recover)


@mutant("ids")
def ids_not_in_the_checkpoint(patch: Patch) -> None:
    """Ids are recovered from the tail only."""
    real = LedgerState.from_proto.__func__  # type: ignore[attr-defined]

    def from_proto(cls: type[LedgerState], proto: fmt.LedgerState, states_max: int) -> LedgerState:
        state: LedgerState = real(cls, proto, states_max)
        state.ids = MessageIds(states_max)
        return state

    patch.setattr(LedgerState, "from_proto", classmethod(from_proto))


@mutant("ids")
def ids_not_looked_at(patch: Patch) -> None:
    """Every message is taken for a new one."""
    patch.setattr(MessageIds, "judge", lambda *_: None)


@mutant("ids")
def ids_dropped_to_make_room(patch: Patch) -> None:
    """Above the bound the oldest ids are forgotten before their time."""

    def check_room(self: MessageIds, more: int, now_us: int, principal: int) -> None:
        while self.count + more > self.ids_max and self._runs:
            oldest = min(self._runs, key=lambda key: self._runs[key][0].until_us)
            self.expire(self._runs[oldest][0].until_us)

    patch.setattr(MessageIds, "_check_room", check_room)


@mutant("ids")
def duplicates_answered_before_originals_are_durable(patch: Patch) -> None:
    """A producer is told of an original that is on its way to the store."""
    real = LedgerWriter._has_new_ids

    def has_new_ids(self: LedgerWriter, append: object, building: object) -> bool:
        in_flight, self._in_flight = self._in_flight, type(self._in_flight)()
        slot, self.durable.slot = self.durable.slot, 2**40
        try:
            return real(self, append, building)  # type: ignore[arg-type]
        finally:
            self._in_flight, self.durable.slot = in_flight, slot

    patch.setattr(LedgerWriter, "_has_new_ids", has_new_ids)
