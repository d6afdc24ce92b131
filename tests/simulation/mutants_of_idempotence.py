"""Bugs in a ledger's memory of its producers (docs/design.md, Produce)."""

from __future__ import annotations

import pytest

import ledgermq_ledger.log.chains.checkpoint
import ledgermq_ledger.log.chains.plans
import ledgermq_ledger.log.recovery
import ledgermq_ledger.log.writing.writer
import ledgermq_ledger.parquet.compacting.round
from ledgermq.client.producing.dispatching.produce_stream import ProduceStream
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.fold import LedgerState
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.partitions.producers import (
    ProducerMemory,
    Producers,
    ProducerSession,
    RememberedBatch,
    memory_key,
)
from ledgermq_ledger.log.recovery import Recovered
from tests.simulation.mutants import mutant

LOADED = True
Patch = pytest.MonkeyPatch


@mutant("ledger")
def idempotence_not_in_the_checkpoint(patch: Patch) -> None:
    """Producer states are recovered from the tail only."""
    real = LedgerState.from_proto.__func__  # type: ignore[attr-defined]

    def from_proto(cls: type[LedgerState], proto: fmt.LedgerState, states_max: int) -> LedgerState:
        state: LedgerState = real(cls, proto, states_max)
        state.producers = Producers(states_max)
        return state

    patch.setattr(LedgerState, "from_proto", classmethod(from_proto))


@mutant("ledger")
def idempotence_not_recovered(patch: Patch) -> None:
    """A new owner knows no producer."""
    real = ledgermq_ledger.log.writing.writer.recover

    async def recover(ref: LedgerRef) -> Recovered:
        recovered = await real(ref)
        recovered.state.producers = Producers(ref.cluster.producer_states_max)
        return recovered

    patch.setattr(ledgermq_ledger.log.writing.writer, "recover", recover)


@mutant("ledger")
def sequences_not_looked_at(patch: Patch) -> None:
    """Every batch is taken for a new one."""
    patch.setattr(Producers, "judge", lambda *_: None)


@mutant("ledger", hangs=True)
def window_smaller_than_what_is_in_flight(patch: Patch) -> None:
    """Fewer batches are remembered than clients may have unacknowledged."""
    patch.setattr("ledgermq_ledger.log.partitions.producers.WINDOW_BATCHES", 1)


@mutant("cluster")
def answers_taken_for_those_of_the_oldest_frame(patch: Patch) -> None:
    """A client takes answers for those of its frames in their order, though they come as they are known."""
    take = ProduceStream._take
    patch.setattr(ProduceStream, "_take", lambda self, number, put_ms: take(self, 0, put_ms))


@mutant("ledger")
def forgotten_producer_taken_for_a_new_one(patch: Patch) -> None:
    """Sequence 0 of an unknown producer is taken whenever it learned the end of the ledger."""

    def judge_unknown(self: Producers, session: ProducerSession) -> None:
        if session.sequence != 0:
            raise ledgermq_ledger.log.partitions.producers.UnknownProducer("begins in the middle")

    patch.setattr(Producers, "_judge_unknown", judge_unknown)


@mutant("ledger")
def any_sequence_of_an_unknown_producer(patch: Patch) -> None:
    """An unknown producer may begin in the middle."""
    patch.setattr(Producers, "_judge_unknown", lambda self, session: None)


@mutant("ledger")
def repeated_batch_told_another_offset(patch: Patch) -> None:
    """A retry of a stored batch is answered with where the log ends now."""
    real = Producers.judge

    def judge(
        self: Producers, session: ProducerSession, topic_id: int, partition: int, *batch: int
    ) -> RememberedBatch | None:
        stored = real(self, session, topic_id, partition, *batch)
        if stored is None:
            return None
        memory: ProducerMemory = self._memory[memory_key(session.id, topic_id, partition)]
        return memory.batches[-1]

    patch.setattr(Producers, "judge", judge)


@mutant("ledger")
def producer_forgotten_by_the_clock(patch: Patch) -> None:
    """A new owner forgets producers of which it has not heard for a second, and no trace of them is
    left.
    """
    real = ledgermq_ledger.log.writing.writer.recover

    async def recover(ref: LedgerRef) -> Recovered:
        recovered = await real(ref)
        memory = recovered.state.producers._memory
        recent = {tail.index.slot for tail in recovered.tail[-3:]}
        for key in [key for key, known in memory.items() if known.last_slot not in recent]:
            del memory[key]
        return recovered

    patch.setattr(ledgermq_ledger.log.writing.writer, "recover", recover)
