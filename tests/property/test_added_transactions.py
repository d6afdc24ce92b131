"""Random lives of a producer of the Kafka protocol, its coordinator and two bundles: what is committed is visible once,
in order; nothing else ever is. Batches come late and twice, answers are lost, owners change, times run out.

The states are the product's; the network and the client are the test's. Clients speak the first protocol of Kafka's
transactions, or the second one, which gives each transaction an epoch (KIP-890). Each planted bug is one rule of
docs/design.md (X6, X21, X22, X24, X28) that is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ledgermq_broker.transactions.state.added.by_records import ByRecords
from ledgermq_broker.transactions.state.added.ids import AddedIds
from ledgermq_broker.transactions.state.added.producers import AddedProducers, Named
from ledgermq_broker.transactions.state.added.records import OpenValue
from ledgermq_broker.transactions.state.coordinating.served_ids import ServedIds
from ledgermq_broker.transactions.state.participating.intake import ToStage
from ledgermq_broker.transactions.state.types import Transaction
from ledgermq_ledger.log.log_record import LogRecord
from tests.property.added_life import Life

SEEDS = 60


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_random_lives(first: int, second: bool) -> None:
    for seed in range(first, first + 20):
        try:
            Life(seed, second=second).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


# Planted bugs


def sequences_begin_anew(patch: pytest.MonkeyPatch) -> None:
    def any_sequence(self: ByRecords, transaction: Transaction, stream: object, batch: ToStage) -> int:
        return self._state.rows(transaction, stream).batches  # type: ignore[arg-type]

    patch.setattr(ByRecords, "_numbered", any_sequence)


def an_abort_has_no_parts(patch: pytest.MonkeyPatch) -> None:
    end = AddedProducers.end

    def without(self: AddedProducers, transaction, opened, outcome, parts, now_ms, **more):  # type: ignore[no-untyped-def]
        decision = end(self, transaction, opened, outcome, parts, now_ms, **more)
        if decision is None or outcome.is_commit:
            return decision
        for bundle in opened.bundles:  # complete at once, unheard by bundles
            completed = self._bundles.completed(transaction, bundle, now_ms)
            decision.records.extend(completed.records)
        return decision

    patch.setattr(AddedProducers, "end", without)


def a_time_out_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AddedIds, "decide", ServedIds.decide)


def a_bundle_does_not_join(patch: pytest.MonkeyPatch) -> None:
    join = AddedProducers.join

    def first_only(self: AddedProducers, name, named, bundle, place, group, now_ms, **more):  # type: ignore[no-untyped-def]
        known = self._ids.open.get(name)
        at = next(iter(known.bundles)) if known is not None and known.bundles else bundle
        return join(self, name, named, at, place, group, now_ms, **more)

    patch.setattr(AddedProducers, "join", first_only)


def an_end_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AddedIds, "_next_producer", lambda self, known: b"")


def an_abort_of_nothing_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    end = AddedProducers.end

    def kept(self: AddedProducers, transaction, opened, outcome, parts, now_ms, renews):  # type: ignore[no-untyped-def]
        return end(self, transaction, opened, outcome, parts, now_ms, renews=renews and bool(opened.bundles))

    patch.setattr(AddedProducers, "end", kept)


def a_time_out_of_the_second_protocol_keeps_the_epoch(patch: pytest.MonkeyPatch) -> None:
    decide = AddedIds.decide

    def asked(self: AddedIds, *decided: Any) -> Any:
        self.ends_as_asked = True
        return decide(self, *decided)

    patch.setattr(AddedIds, "decide", asked)


def an_epoch_begins_during_a_commit(patch: pytest.MonkeyPatch) -> None:
    def at_once(self: AddedProducers, name: str, named: Named) -> OpenValue:
        self._current(name, named)
        return self._opened(name)

    def begin(self: AddedProducers, name: str, now_ms: int) -> list[LogRecord]:
        known = self._ids.known[name]
        begun = self._ids.begun(known, now_ms)
        return [] if begun is known else list(self._ids.decided(name, begun, None).records)

    patch.setattr(AddedProducers, "_to_add", at_once)
    patch.setattr(AddedProducers, "_begin", begin)


@pytest.mark.parametrize(
    "plant",
    [
        sequences_begin_anew,
        an_abort_has_no_parts,
        a_time_out_keeps_the_epoch,
        a_bundle_does_not_join,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_caught(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(_fails(seed) for seed in range(200)), "no life saw it"


@pytest.mark.parametrize(
    "plant",
    [
        an_end_keeps_the_epoch,
        an_abort_of_nothing_keeps_the_epoch,
        a_time_out_of_the_second_protocol_keeps_the_epoch,
        an_epoch_begins_during_a_commit,
        a_bundle_does_not_join,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_of_the_second_protocol_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(_fails(seed, second=True) for seed in range(200)), "no life saw it"


def _fails(seed: int, *, second: bool = False) -> bool:
    try:
        Life(seed, second=second).run()
    except AssertionError:
        return True
    return False
