"""Answer what bundles ask about their staged data, and say which outcomes they have to receive.

`Bundles.to_complete` may return decisions that are not durable yet: wait for the log before a bundle receives
one (X1).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from ledgermq.protocol.naming.producer_ids import kafka_producer_id
from ledgermq_broker.transactions.state.checks import check_parts, check_transaction
from ledgermq_broker.transactions.state.coordinating.served_ids import Asked, ServedIds
from ledgermq_broker.transactions.state.records import IdValue
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from ledgermq_ledger.log.log_record import Decision

T = TypeVar("T")


class Bundles:
    def __init__(self, ids: ServedIds) -> None:
        self._ids = ids

    # Questions

    def fate(self, transaction: Transaction, part: Part, now_ms: int) -> Decision[State]:
        """Answer a bundle that holds staged data of a transaction.

        ABORTED: the bundle drops it; the abort is recorded first (X3). PREPARED, UNDECIDED, UNRESOLVED:
        the bundle asks again later. The first question starts the transaction's time-out. COMMITTED is
        never an answer: the coordinator sends commits to the bundles (`to_complete`).
        """
        check_transaction(transaction)
        known = self._ids.known.get(transaction.transactional_id)
        if known is None or known.producer_id != transaction.producer_id or transaction.epoch != known.epoch:
            return Decision([], State.ABORTED)  # over, or never begun: an epoch is durable before its producer has it
        if transaction.number < known.number:
            return Decision([], State.ABORTED)
        if known.kind is not Kind.ORDINARY and transaction.number > 1:
            return Decision([], State.ABORTED)  # only number 1 of such an id can ever be committed
        if transaction.number == known.number:
            return Decision([], _fate_of_decided(known))
        if not known.complete:
            return Decision([], State.UNDECIDED)
        waited_ms = self.asked_for_ms(transaction, now_ms)
        if known.kind is Kind.HALF_MESSAGE and transaction.number == 1 and part.counts:
            waited_ms = max(waited_ms, self._ids.waited_ms(transaction.transactional_id, known, now_ms))
            if waited_ms < self._ids.limits.check_after_ms:
                return Decision([], State.UNDECIDED)
            counted = check_parts([part], self._ids.limits)
            return self._ids.decide(transaction, known, State.PREPARED, counted, now_ms, State.PREPARED)
        if waited_ms < known.timeout_ms:
            return Decision([], State.UNDECIDED)
        return self._ids.decide(transaction, known, State.ABORTED, (), now_ms, State.ABORTED)

    def may_prepare(self, transaction: Transaction, part: Part) -> bool:
        """Return whether the answer of `fate` may be PREPARED by what the bundle has counted."""
        known = self._ids.known.get(transaction.transactional_id)
        return known is not None and known.kind is Kind.HALF_MESSAGE and bool(part.counts)

    def asked_for_ms(self, transaction: Transaction, now_ms: int) -> float:
        """Return how long ago a bundle first asked about an undecided transaction in this term."""
        asked = self._ids.asked.get(transaction.transactional_id)
        if asked is None or asked.transaction.pair < transaction.pair:
            asked = self._ids.asked[transaction.transactional_id] = Asked(transaction, now_ms, self._ids.loop_s())
        return (self._ids.loop_s() - asked.first_s) * 1000

    def confirm(self, transaction: Transaction) -> State:
        """Return COMMITTED while the transaction is committed and not complete in all its bundles, else
        ABORTED. Here ABORTED means only that nothing more of it may become visible.
        """
        known = self._ids.same(transaction)
        return State.COMMITTED if known and known.state.is_commit and not known.complete else State.ABORTED

    def is_fenced(self, transaction: Transaction) -> bool:
        """Return True if a later epoch of the transaction's id has begun."""
        known = self._ids.known.get(transaction.transactional_id)
        return known is not None and known.producer_id == transaction.producer_id and known.epoch > transaction.epoch

    def is_expired(self, transaction: Transaction) -> bool:
        """Return True if the id has expired, so that a bundle may drop its note about the producer (X16)."""
        known = self._ids.known.get(transaction.transactional_id)
        return known is None or known.producer_id != transaction.producer_id

    # Completion

    def to_complete(self, only: str | None = None) -> list[tuple[Transaction, State, Part]]:
        """Return the outcomes that have to be sent to bundles now: COMMITTED, ABORTED or UNRESOLVED.

        An UNRESOLVED one is sent as an abort, once its copy for operators is durable (X19). `only`:
        return those of this id.
        """
        found: list[tuple[Transaction, State, Part]] = []
        incomplete = self._ids.incomplete
        for name in incomplete if only is None else [only] if only in incomplete else []:
            known = self._ids.known[name]
            state = State.COMMITTED if known.state.is_commit else known.state
            state = State.ABORTED if state.is_abort else state
            found += [
                (self._ids.named(name, known), state, part)
                for part in known.parts
                if part.bundle in known.missing and not _waits(part, known)
            ]
        return found

    def is_missing(self, transaction: Transaction, bundle: int) -> bool:
        """Return True while the transaction is decided and the bundle has not answered "done"."""
        known = self._ids.same(transaction)
        return known is not None and bundle in known.missing

    def completed(self, transaction: Transaction, bundle: int, now_ms: int) -> Decision[None]:
        """Record that a bundle answered "done"; a late or repeated call changes nothing."""
        known = self._ids.same(transaction)
        if known is None or bundle not in known.missing:
            return Decision([], None)
        return self.complete_in(transaction.transactional_id, known, bundle, now_ms, None)

    def complete_in(self, name: str, known: IdValue, bundle: int, now_ms: int, answer: T) -> Decision[T]:
        missing = tuple(other for other in known.missing if other != bundle)
        # operators ask what an unresolved message was meant for
        complete, parts = not missing, known.parts if missing or known.state is State.UNRESOLVED else ()
        self._ids.troubles.get(name, {}).pop(bundle, None)
        changed_ms = max(known.changed_ms, now_ms)
        new = replace(known, missing=missing, complete=complete, parts=parts, changed_ms=changed_ms)
        return self._ids.decided(name, new, answer)

    def trouble(self, transaction: Transaction, bundle: int, text: str) -> None:
        """Keep the reason why a bundle does not complete a transaction, for `infos`."""
        known = self._ids.same(transaction)
        if known is not None and bundle in known.missing:
            self._ids.troubles.setdefault(transaction.transactional_id, {})[bundle] = text


def _waits(part: Part, known: IdValue) -> bool:
    """Return whether a part is completed after others: of a Kafka client, those with offsets of groups are the last
    ones, so that who reads from these offsets on finds everything else (X23).
    """
    if not part.groups or kafka_producer_id(known.producer_id) is None:
        return False
    return any(other.bundle in known.missing and not other.groups for other in known.parts)


def _fate_of_decided(known: IdValue) -> State:
    if known.state in (State.PREPARED, State.UNRESOLVED) and not known.complete:
        return known.state
    if known.state.is_commit and not known.complete:
        return State.UNDECIDED
    return State.ABORTED  # complete: a batch that is still staged is a late double, which was not counted
