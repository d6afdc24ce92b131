"""Check that transactions keep their promises in random lives, and that the same machine finds rules that
are broken on purpose.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from ledgermq.errors import DataDamaged, LedgerMQError, Unavailable
from ledgermq_broker.transactions.state.coordinating.bundles import Bundles
from ledgermq_broker.transactions.state.coordinating.expiry import Expiry
from ledgermq_broker.transactions.state.coordinating.producers import Producers
from ledgermq_broker.transactions.state.participating import intake
from ledgermq_broker.transactions.state.participating.completing import Chunk, Completing
from ledgermq_broker.transactions.state.participating.intake import Intake, ToStage
from ledgermq_broker.transactions.state.participating.served_bundle import Entries, ServedBundle
from ledgermq_broker.transactions.state.participating.staged import BundleState
from ledgermq_broker.transactions.state.records import IdValue, NoteEntry, ReferencesEntry
from ledgermq_broker.transactions.state.types import Kind, Part, Reference, State, Transaction
from ledgermq_ledger.log.log_record import Decision
from tests.property.transaction_life import TransactionLife

LIVES = settings(max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
HUNT = settings(
    LIVES,
    max_examples=10_000,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    print_blob=False,
)
Mutate = Callable[[pytest.MonkeyPatch], None]


def test_random_lives_of_transactions() -> None:
    run_state_machine_as_test(TransactionLife, settings=LIVES)


def duplicates_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    def same(transaction: Transaction, stored: Reference, batch: ToStage) -> LedgerMQError | None:
        return None

    patch.setattr(intake, "_duplicate", same)


def a_chunk_is_not_judged_again(patch: pytest.MonkeyPatch) -> None:
    true = Completing.next_chunk
    made: dict[bytes, Chunk | None] = {}

    def next_chunk(self: Completing, producer_id: bytes) -> Chunk | None:
        made[producer_id] = true(self, producer_id)
        return made[producer_id]

    def admit(self: Completing, chunk: Chunk) -> Decision[bool]:
        patch.setattr(Completing, "next_chunk", lambda self, producer_id: chunk)
        try:
            return judge(self, chunk) if self._state.doing(chunk.transaction.producer_id) else Decision([], False)
        finally:
            patch.setattr(Completing, "next_chunk", next_chunk)

    judge = Completing.admit
    patch.setattr(Completing, "admit", admit)


def what_is_over_is_staged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Intake, "check_open", lambda self, transaction: None)


def completions_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServedBundle, "is_over", lambda self, transaction: False)


def the_order_is_that_of_numbers(patch: pytest.MonkeyPatch) -> None:
    def dropped(self: ServedBundle, transaction: Transaction, last: tuple[int, int]) -> Entries:
        return [
            ReferencesEntry(transaction.producer_id, *pair, n, None)
            for pair, staged in self.of_producer(transaction.producer_id).items()
            if pair[1] <= last[1]
            for n in staged.records
        ]

    patch.setattr(ServedBundle, "dropped", dropped)


def leftovers_stay(patch: pytest.MonkeyPatch) -> None:
    true = ServedBundle.dropped
    patch.setattr(
        ServedBundle, "dropped", lambda self, transaction, last: [e for e in true(self, transaction, last) if e.n == 0]
    )


def copied_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BundleState, "copied", lambda self, transaction: {})


def commits_are_not_confirmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Bundles, "confirm", lambda self, transaction: State.COMMITTED)


def an_abort_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    true = Bundles.fate

    def fate(self: Bundles, transaction: Transaction, part: Part, now_ms: int) -> Decision[State]:
        known = self._ids.known.get(transaction.transactional_id)
        answer = true(self, transaction, part, now_ms)
        if answer.records and answer.answer is State.ABORTED and known is not None:
            self._ids.known[transaction.transactional_id] = known
            return Decision([], State.ABORTED)
        return answer

    patch.setattr(Bundles, "fate", fate)


def an_epoch_begins_during_a_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producers, "check_reuse", lambda self, name, known, kind: None)


def what_is_incomplete_expires(patch: pytest.MonkeyPatch) -> None:
    def may_expire(self: Expiry, name: str, known: IdValue, now_ms: int) -> bool:
        return now_ms - known.changed_ms >= 1000 and known.kind is Kind.ORDINARY

    patch.setattr(Expiry, "_may_expire", may_expire)


def what_is_prepared_expires(patch: pytest.MonkeyPatch) -> None:
    def may_expire(self: Expiry, name: str, known: IdValue, now_ms: int) -> bool:
        return now_ms - known.changed_ms >= 1000 and known.state is State.PREPARED

    patch.setattr(Expiry, "_may_expire", may_expire)


def the_next_is_decided_before_the_last_is_complete(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producers, "_check_end", lambda self, transaction, known, outcome, parts: None)


def tombstones_are_not_written(patch: pytest.MonkeyPatch) -> None:
    true = ServedBundle.decided

    def decided(self: ServedBundle, entries: Entries, answer: object) -> Decision[object]:
        decision = true(self, entries, answer)
        return Decision([record for record in decision.records if record.value is not None], decision.answer)

    patch.setattr(ServedBundle, "decided", decided)


def notes_are_not_written(patch: pytest.MonkeyPatch) -> None:
    true = ServedBundle.decided

    def decided(self: ServedBundle, entries: Entries, answer: object) -> Decision[object]:
        return true(self, [entry for entry in entries if not isinstance(entry, NoteEntry)], answer)

    patch.setattr(ServedBundle, "decided", decided)


MUTANTS: list[Mutate] = [
    duplicates_are_not_compared,
    a_chunk_is_not_judged_again,
    what_is_over_is_staged,
    completions_are_not_remembered,
    the_order_is_that_of_numbers,
    leftovers_stay,
    copied_is_not_counted,
    commits_are_not_confirmed,
    an_abort_is_not_recorded,
    an_epoch_begins_during_a_commit,
    what_is_incomplete_expires,
    what_is_prepared_expires,
    the_next_is_decided_before_the_last_is_complete,
    tombstones_are_not_written,
    notes_are_not_written,
]


@pytest.mark.slow
@pytest.mark.timeout(1500)  # most are caught by tens of examples
@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_broken_rule_is_caught(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine finds it by an assertion about a promise, or by an error that reports damage or an
    endless completion.
    """
    mutate(monkeypatch)
    with pytest.raises((AssertionError, KeyError, DataDamaged, Unavailable)):
        run_state_machine_as_test(TransactionLife, settings=HUNT)
