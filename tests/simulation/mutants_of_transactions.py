"""Bugs in transactions: in coordinators and participants, in the broker around them, and in the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ledgermq.client.producing.producer import Producer
from ledgermq.client.transactions import once
from ledgermq.errors import TransactionAborted
from ledgermq_broker.bundle.committing.group_commit import GroupCommit
from ledgermq_broker.internal.issued_state import IssuedState
from ledgermq_broker.transactions.coordinating.completer import Completer
from ledgermq_broker.transactions.housekeeper import Housekeeper
from ledgermq_broker.transactions.participating.staged_log import StagedLog
from ledgermq_broker.transactions.state.coordinating import producers
from ledgermq_broker.transactions.state.coordinating.bundles import Bundles
from ledgermq_broker.transactions.state.coordinating.producers import Producers
from ledgermq_broker.transactions.state.participating.completing import Chunk, Completing, Completion
from ledgermq_broker.transactions.state.participating.intake import Intake
from ledgermq_broker.transactions.state.participating.served_bundle import ServedBundle
from ledgermq_broker.transactions.state.participating.upkeep import CarryItem, Upkeep
from ledgermq_broker.transactions.state.records import Former, IdValue, NoteValue, ReferencesEntry, ReferencesValue
from ledgermq_broker.transactions.state.types import Part, Reference, State, Transaction
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.log.segments.stored_batch import StoredBatch
from ledgermq_ledger.log.writing.in_flight import Append
from ledgermq_offsets.committing import pending
from tests.simulation.mutants import mutant
from tests.simulation.transactions_plan import transactions_plan_of

LOADED = True
Patch = pytest.MonkeyPatch


def _stages_stale(seed: int) -> bool:
    return transactions_plan_of(seed).stages_stale


def _has_twins(seed: int) -> bool:
    return transactions_plan_of(seed).twins


def _has_thief(seed: int) -> bool:
    return transactions_plan_of(seed).thief


@mutant("transactions", likely=_has_thief, hangs=True)
def two_ids_of_a_producer(patch: Patch) -> None:
    """What is staged beside another transactional id is dropped with all that the producer has staged. What is seen
    of it is a group whose input is never worked off.
    """

    def dropped(self: ServedBundle, transaction: Transaction, last: tuple[int, int]) -> list[Any]:
        return [
            ReferencesEntry(transaction.producer_id, *pair, n, None)
            for pair, staged in self.of_producer(transaction.producer_id).items()
            if pair <= last
            for n in staged.records
        ]

    def check_open(self: Intake, transaction: Transaction) -> None:
        if self._state.is_over(transaction) or self._state.is_begun(transaction):
            raise TransactionAborted("over")

    patch.setattr(Intake, "other_id", lambda self, transaction: None)
    patch.setattr(Intake, "check_open", check_open)
    patch.setattr(ServedBundle, "dropped", dropped)


@mutant("transactions", likely=_has_twins)
def repeated_by_another_program(patch: Patch) -> None:
    """Two programs begin one xid, and the second is told what became of the first one's transaction."""
    patch.setattr(Producers, "_check_same_object", lambda self, name, known, nonce: None)
    patch.setattr(Producers, "_check_counted", lambda self, transaction, known, parts: None)


@mutant("transactions")
def completion_before_its_decision_is_durable(patch: Patch) -> None:
    """Bundles complete a commit that a takeover may undo."""
    real = Completer.__init__

    class Hasty:
        def __init__(self, state: IssuedState) -> None:
            self._state = state

        def __getattr__(self, name: str) -> Any:
            return getattr(self._state, name)

        async def durable(self) -> None:
            return None

    def init(self: Completer, state: IssuedState, *others: Any) -> None:
        real(self, Hasty(state), *others)  # type: ignore[arg-type]

    patch.setattr(Completer, "__init__", init)


@mutant("transactions")
def transactions_answered_without_a_fence_check(patch: Patch) -> None:
    """A former coordinator says what it knew, as if it still decided."""
    patch.setattr(IssuedState, "confirmed", IssuedState.durable)


@mutant("transactions")
def final_refusals_without_a_fence_check(patch: Patch) -> None:
    """A former coordinator refuses for good what its successor may know to be right."""

    async def judged(self: IssuedState, ask: Any) -> Any:
        return self.ask(ask)

    patch.setattr(IssuedState, "judged", judged)


@mutant("transactions")
def transactions_answered_before_they_are_durable(patch: Patch) -> None:
    """A commit is acknowledged when the coordinator has decided it."""

    async def durable(self: IssuedState, **how: Any) -> None:
        self.check()

    patch.setattr(IssuedState, "durable", durable)


@mutant("transactions", hangs=True)
def abort_told_and_not_recorded(patch: Patch) -> None:
    """A bundle that asks about an old transaction receives "aborted" before that is recorded, and then
    the producer commits. What is seen of it is a commit that never ends.
    """
    real = Bundles.fate

    def fate(self: Bundles, transaction: Transaction, part: Part, now_ms: int) -> Decision[State]:
        known = self._ids.known.get(transaction.transactional_id)
        is_open = (
            known is not None
            and known.complete
            and (known.producer_id, known.epoch) == (transaction.producer_id, transaction.epoch)
            and known.number < transaction.number
        )
        if is_open and known is not None and self.asked_for_ms(transaction, now_ms) >= known.timeout_ms:
            return Decision([], State.ABORTED)
        return real(self, transaction, part, now_ms)

    patch.setattr(Bundles, "fate", fate)


@mutant("transactions")
def batches_not_counted(patch: Patch) -> None:
    """Whatever is staged becomes visible, also what the decision left out."""
    real = Completing.complete

    def complete(
        self: Completing, transaction: Transaction, outcome: State, part: Part, **more: Any
    ) -> Decision[Completion]:
        staged = self._state.find(transaction)
        counts = staged.counts() if staged is not None and part.counts else part.counts
        return real(self, transaction, outcome, replace(part, counts=counts), **more)

    patch.setattr(Completing, "complete", complete)


@mutant("transactions", hangs=True)
def transactions_in_order_of_numbers_alone(patch: Patch) -> None:
    """An old epoch's transaction drops what a later epoch has staged under a lower number. What is seen of it is a
    commit that never ends.
    """
    patch.setattr(Transaction, "pair", property(lambda self: (0, self.number)))


@mutant("transactions", hangs=True)
def bundle_forgets_what_it_completed(patch: Patch) -> None:
    """A bundle that gets the same completion again does not find that it is done."""
    patch.setattr(ServedBundle, "is_over", lambda self, transaction: False)


@mutant("transactions")
def epoch_begins_during_a_commit(patch: Patch) -> None:
    """A new epoch takes the place of a commit that is not complete everywhere."""
    patch.setattr(Producers, "check_reuse", lambda self, name, known, kind: None)


@mutant("transactions", likely=_stages_stale)
def staged_offsets_of_a_zombie(patch: Patch) -> None:
    """Offsets are staged under any epoch of the group, by any former member."""
    patch.setattr(pending, "is_current", lambda group, member, partition, commit: True)


@mutant("transactions")
def staged_offsets_ignored(patch: Patch) -> None:
    """The next member gets the committed offset of a partition while another one is staged."""
    patch.setattr(pending, "check_settled", lambda group, partition: None)


@mutant("transactions")
def copies_apart_from_their_note(patch: Patch) -> None:
    """Copies become visible in one segment, and what says so comes in a later one."""
    real = IssuedState.take

    def take(
        self: IssuedState,
        decision: Decision[Any],
        data: Sequence[Batch] = (),
        more: Callable[[], Mapping[PartitionId, Sequence[LogRecord]]] = dict,
        *,
        within_s: float = 0.0,
    ) -> Any:
        if data and any(record.key.startswith(b"done/") for record in decision.records):
            self._log.append({}, data)
            records = more()
            asyncio.get_running_loop().call_later(0.2, lambda: real(self, decision, (), lambda: records))
            return decision.answer
        return real(self, decision, data, more, within_s=within_s)

    patch.setattr(IssuedState, "take", take)


@mutant("transactions")
def atomic_groups_split(patch: Patch) -> None:
    """Batches that were appended together go into several segments."""
    real = GroupCommit._take_segment

    def take(self: GroupCommit) -> list[Append]:
        taken = real(self)
        for append in reversed(taken[1:]):
            self._queue.appendleft(append)
            self._queued_bytes += len(append.batch.data)
        if len(taken) > 1:
            self._arrivals.appendleft((asyncio.get_running_loop().time(), len(taken) - 1))
        return taken[:1]

    patch.setattr(GroupCommit, "_take_segment", take)


@mutant("transactions")
def note_forgets_what_is_copied(patch: Patch) -> None:
    """A completion of several segments begins again after the first of them. After each would copy without end."""
    real = Completing._advanced
    begun = set()

    def advanced(self: Completing, chunk: Chunk, part: Part) -> NoteValue:
        note = real(self, chunk, part)
        if chunk.transaction in begun:
            return note
        begun.add(chunk.transaction)
        return replace(note, copied={})

    patch.setattr(Completing, "_advanced", advanced)


@mutant("transactions", hangs=True)
def copies_with_a_session(patch: Patch) -> None:
    """Copies are numbered like the batches of a producer. The ledger refuses the second, since its content is another
    one, and the transaction is never completed.
    """
    real = StagedLog._as_meant

    def as_meant(self: StagedLog, reference: Reference, batch: StoredBatch) -> Batch:
        return replace(real(self, reference, batch), producer=ProducerSession(b"transaction's id", 1, 0, 2**40))

    patch.setattr(StagedLog, "_as_meant", as_meant)


@mutant("transactions")
def dead_batches_carried_forward(patch: Patch) -> None:
    """What was completed while its bytes were read is staged again."""
    real = Upkeep.carry

    def carry(self: Upkeep, item: CarryItem, next_offset: int, now_ms: int) -> Decision[bool]:
        found = real(self, item, next_offset, now_ms)
        if found.answer:
            return found
        sizes = [reference.record_count for reference in item.references]
        moved = [replace(reference, offset=next_offset + sum(sizes[:i])) for i, reference in enumerate(item.references)]
        value = ReferencesValue(item.transaction, now_ms, tuple(moved))
        return self._state.decided([ReferencesEntry(*item.transaction[2:], item.n, value)], True)

    patch.setattr(Upkeep, "carry", carry)


@mutant("transactions")
def log_start_passes_what_is_staged(patch: Patch) -> None:
    """The log start of staged batches moves to their end, whatever is still open."""

    async def move_log_start(self: Housekeeper) -> None:
        self._freed.clear()
        await self._state.durable()
        await self._staged.move_log_start(self._staged.next_offset)

    patch.setattr(Housekeeper, "move_log_start", move_log_start)


@mutant("transactions")
def nobody_asks_about_old_transactions(patch: Patch) -> None:
    """What a dead producer has staged stays for ever."""

    async def ask_fates(self: Housekeeper) -> None:
        return None

    patch.setattr(Housekeeper, "ask_fates", ask_fates)


@mutant("transactions")
def committed_without_a_flush(patch: Patch) -> None:
    """The SDK commits what is stored by then."""

    async def settle(self: Producer) -> None:
        return None

    patch.setattr(Producer, "settle", settle)


@mutant("transactions")
def prepared_branches_time_out(patch: Patch) -> None:
    """A coordinator aborts what is prepared when a bundle asks about it."""
    real = Bundles.fate

    def fate(self: Bundles, transaction: Transaction, part: Part, now_ms: int) -> Decision[State]:
        known = self._ids.same(transaction)
        if known is not None and known.state is State.PREPARED:
            return self._ids.decide(transaction, known, State.ABORTED, (), now_ms, State.ABORTED)
        return real(self, transaction, part, now_ms)

    patch.setattr(Bundles, "fate", fate)


def _repeats(seed: int) -> bool:
    return transactions_plan_of(seed).repeats


@mutant("transactions", likely=_repeats)
def repeated_call_does_not_look(patch: Patch) -> None:
    """A repeatable call sends its records whatever the id has committed before."""
    patch.setattr(once, "COMMITTED", ())


@mutant("transactions", likely=_repeats)
def decision_before_the_last_epoch_forgotten(patch: Patch) -> None:
    """The coordinator answers what the epoch before has decided, and not what was decided last."""
    former = property(lambda self: Former(self.epoch, self.number, self.state, self.content))
    patch.setattr(IdValue, "as_former", former)


@mutant("transactions", likely=_repeats)
def any_contents_repeat(patch: Patch) -> None:
    """A call with other contents is told that it repeats what was committed."""
    patch.setattr(producers, "_same_content", lambda name, former, content: former)
