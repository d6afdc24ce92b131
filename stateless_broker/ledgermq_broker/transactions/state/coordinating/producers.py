"""Decide what producers ask for: the next epoch of an id, the end of a transaction, its outcome.

Special cases:
* `outcome` of an ORDINARY id needs the number of the transaction, because another one of the id may be
  open. It takes no producer id: if the id has expired and was initialized again, the answer is about the
  new producer. A program that asks after days needs a TWO_PHASE id, whose commit is kept until it is
  forgotten.
* A half message has all its batches in one bundle. Its producer may prepare it, which starts the checks
  at once. A decided one expires after `half_expiry_ms`, because each message takes an id.
* `init` of an id that is used once may be repeated by the object that began it, until a decision is
  recorded. It then changes nothing, because a new epoch would drop batches that are staged and acknowledged
  under the present one. The nonce of the call shows that it is the same object; another one is refused.
* A repeated decision is answered as before only if it names the same counts (`IdValue.counted`): of
  clients without nonces nothing else shows which one calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ledgermq.errors import (
    InvalidRequest,
    ResourceExhausted,
    TransactionAborted,
    TransactionFenced,
    TransactionIdReused,
    TransactionUnknown,
)
from ledgermq.protocol.limits import check_content, check_nonce
from ledgermq.protocol.naming.producer_ids import kafka_producer_id, shown_producer_id
from ledgermq_broker.transactions.state.checks import (
    about_copy,
    check_group,
    check_kept,
    check_parts,
    check_timeout,
    check_transaction,
    check_transactional_id,
    describe,
)
from ledgermq_broker.transactions.state.coordinating.served_ids import ServedIds
from ledgermq_broker.transactions.state.limits import EPOCH_MAX, RETRY_FULL_MS
from ledgermq_broker.transactions.state.records import Former, IdValue, digest_of
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL


class Identity(NamedTuple):
    """The identity of a producer until the next `init` of its transactional id."""

    producer_id: bytes
    epoch: int
    coordinator: int
    timeout_ms: int
    former: State = State.UNDECIDED
    """What was decided last before this epoch; UNDECIDED: nothing."""


class Outcome(NamedTuple):
    state: State
    complete: bool
    """Whether the transaction is visible, or dropped, in all its bundles."""


class Producers:
    """`new_id`: returns 16 random bytes."""

    def __init__(self, ids: ServedIds, new_id: Callable[[], bytes]) -> None:
        self._ids = ids
        self._new_id = new_id

    def init(
        self,
        transactional_id: str,
        kind: Kind,
        timeout_ms: int,
        check_group_name: str,
        now_ms: int,
        nonce: bytes = b"",
        principal: int = NO_PRINCIPAL,
        kept_ms: int = 0,
        content: bytes = b"",
    ) -> Decision[Identity]:
        """Begin the next epoch of an id. This aborts an undecided transaction of the epoch before.

        `nonce`: of the object that calls, the same in all its attempts; empty: an earlier client.
        `principal`: a hash of the name of the principal that calls; 0: not known. `kept_ms`: how long the
        id stays after its last use; 0: as long as the broker keeps ids. `content`: see `IdValue`.

        Raises InvalidRequest, also if the id has another kind, or is used once and was used, or another
        object has begun it (X9); TransactionAborted instead if another half message has the id;
        TransactionIdReused if the id has committed other content (X26); Unavailable while a commit of the
        epoch before is incomplete (X6); ResourceExhausted; QuotaExceeded if the principal has its share of
        the ids.
        """
        check_transactional_id(transactional_id)
        check_group(kind, check_group_name)
        check_nonce(nonce)
        check_content(content)
        timeout_ms = check_timeout(timeout_ms, self._ids.limits)
        check_kept(kept_ms, timeout_ms, kind)
        known = self._ids.known.get(transactional_id)
        if known is None:
            self.check_room(principal)
            new = IdValue(self._new_id(), 1, kind, timeout_ms, now_ms, check_group=check_group_name, nonce=nonce)
            new = replace(new, principal=principal)
        else:
            self.check_reuse(transactional_id, known, kind)
            if kind is not Kind.ORDINARY:
                self._check_same_object(transactional_id, known, nonce)
                return Decision([], Identity(known.producer_id, known.epoch, self._ids.partition, known.timeout_ms))
            new = IdValue(known.producer_id, known.epoch + 1, kind, timeout_ms, now_ms, nonce=nonce)
            new = replace(new, former=_same_content(transactional_id, known.as_former, content))
            new = replace(new, principal=known.principal or principal)
            if kafka_producer_id(known.producer_id) is not None:  # nothing of ours is staged under such an id
                new = replace(new, producer_id=self._new_id())
        new = replace(new, kept_ms=kept_ms, content=content)
        former = State.UNDECIDED if new.former is None else new.former.state
        identity = Identity(new.producer_id, new.epoch, self._ids.partition, timeout_ms, former)
        return self._ids.decided(transactional_id, new, identity)

    def _check_same_object(self, transactional_id: str, known: IdValue, nonce: bytes) -> None:
        """Raise if another object has begun this id, which is used once and was not decided yet.

        An id without a nonce was begun through an earlier client or broker: callers are then told apart
        by what they count, when they decide.
        """
        if known.nonce in (b"", nonce):
            return
        if known.kind is Kind.HALF_MESSAGE:
            raise TransactionAborted(
                f"half message {transactional_id!r} was begun by another call of send, and may be stored; nothing of "
                "this one is stored: use another transactional id, or leave the other message to its checks"
            )
        raise InvalidRequest(
            f"transactional id {transactional_id!r} was used: another program has begun its transaction and not ended "
            "it, and an id of this kind names one transaction; use a new id, or, if that program is gone, ask for the "
            "outcome of the id, which rolls it back, and have it forgotten"
        )

    def check_room(self, principal: int) -> None:
        """Raise ResourceExhausted or QuotaExceeded if there is no room for one more id of a principal."""
        where = f"partition {self._ids.partition} of __transactions"
        free = self._ids.limits.ids_max - len(self._ids.known)
        if free <= 0:
            raise ResourceExhausted(
                f"{where} has {self._ids.limits.ids_max} transactional ids already, "
                "which is the maximum; reuse transactional ids, and forget two-phase transactions that are complete",
                retry_after_ms=RETRY_FULL_MS,
            )
        self._ids.shares.check(principal, 1, free, where=where, retry_after_ms=RETRY_FULL_MS)

    def check_reuse(self, transactional_id: str, known: IdValue, kind: Kind) -> None:
        """Check that the next epoch of an id may begin. Raises InvalidRequest; Unavailable (X6)."""
        if known.kind is not kind:
            raise InvalidRequest(
                f"transactional id {transactional_id!r} is one of kind {known.kind.name}, not {kind.name}; "
                "use another id"
            )
        if kind is not Kind.ORDINARY and known.number:
            raise InvalidRequest(
                f"transactional id {transactional_id!r} was used, and its transaction is {known.state.name}: an id of "
                f"kind {kind.name} names one transaction; use a new id for the next one"
            )
        if known.epoch >= EPOCH_MAX:
            raise InvalidRequest(f"transactional id {transactional_id!r} has had {EPOCH_MAX} epochs; use another id")
        if not known.complete and known.state.is_commit:
            raise self._ids.not_complete(self._ids.named(transactional_id, known))

    def end(self, transaction: Transaction, outcome: State, parts: Sequence[Part], now_ms: int) -> Decision[State]:
        """Commit, abort or prepare a transaction, and return its state. A repeated call returns it again.

        Any process may end a prepared transaction by its id alone, without producer id and parts. An answer
        to a check names the shown producer id, which is enough for the same.
        Raises InvalidRequest, TransactionUnknown, TransactionFenced; TransactionAborted if a commit finds
        the transaction aborted; Unavailable while the transaction before is incomplete (X6).
        """
        if outcome not in (State.COMMITTED, State.ABORTED, State.PREPARED):
            raise InvalidRequest(f"a transaction ends COMMITTED, ABORTED or PREPARED, not {outcome.name}")
        parts = check_parts(parts, self._ids.limits)
        known = self._ids.existing(transaction.transactional_id)
        is_checked = known.kind is Kind.HALF_MESSAGE and transaction.producer_id == shown_producer_id(known.producer_id)
        if is_checked:
            parts = ()  # a program that answers a check has not counted anything
        if is_checked or not transaction.producer_id:
            transaction = self._once(transaction.transactional_id, known, outcome)
        self._check_holder(check_transaction(transaction), known)
        if transaction.number < known.number:
            raise TransactionFenced(
                f"{describe(transaction)} is over: transaction {known.number} was decided after it; "
                "initialize the transactional id again"
            )
        if transaction.number == known.number:
            return self._end_again(transaction, known, outcome, parts, now_ms)
        self._check_end(transaction, known, outcome, parts)
        return self._ids.decide(transaction, known, outcome, parts, now_ms, outcome)

    def _once(self, transactional_id: str, known: IdValue, outcome: State) -> Transaction:
        """Return the one transaction of an id that is used once, for a caller that passes only the id."""
        if known.kind is Kind.ORDINARY or outcome is State.PREPARED:
            raise InvalidRequest(
                f"to end a transaction of {transactional_id!r} as {outcome.name}, name its producer id, epoch and "
                "number; the id alone is enough only to commit or abort what is prepared"
            )
        if not known.number:
            raise InvalidRequest(
                f"transaction {transactional_id!r} is not prepared; ask for its outcome, which aborts it if it is "
                "undecided"
            )
        return self._ids.named(transactional_id, known)

    def _check_holder(self, transaction: Transaction, known: IdValue) -> None:
        if (known.producer_id, known.epoch) != (transaction.producer_id, transaction.epoch):
            raise TransactionFenced(
                f"{describe(transaction)} is fenced: another producer began epoch {known.epoch} of the id, and that "
                "aborted the undecided transaction; only one process may use a transactional id"
            )

    def _check_end(self, transaction: Transaction, known: IdValue, outcome: State, parts: Sequence[Part]) -> None:
        """Check the first decision about a transaction."""
        if not known.complete:
            raise self._ids.not_complete(self._ids.named(transaction.transactional_id, known))
        if transaction.number != known.number + 1:
            raise InvalidRequest(
                f"{describe(transaction)} is not the next one, which is {known.number + 1}; end transactions in the "
                "order of their numbers"
            )
        if known.kind is not Kind.ORDINARY and transaction.number != 1:
            raise InvalidRequest(f"{describe(transaction)}: an id of kind {known.kind.name} names one transaction")
        if known.kind is Kind.HALF_MESSAGE and outcome is not State.ABORTED and len(parts) > 1:
            raise InvalidRequest(
                f"{describe(transaction)} is a half message in {len(parts)} bundles; a half message lies in one "
                "partition: use a two-phase transaction for more"
            )
        if outcome is not State.PREPARED:
            return
        if known.kind is Kind.HALF_MESSAGE and not any(part.counts for part in parts):
            raise InvalidRequest(
                f"{describe(transaction)} is a half message without a message: there is nothing to ask about; "
                "stage the message first"
            )
        if known.kind is Kind.ORDINARY:
            raise InvalidRequest(
                f"{describe(transaction)} is ORDINARY; only a transaction of kind TWO_PHASE can be prepared"
            )
        if any(part.groups for part in parts):
            raise InvalidRequest(
                f"{describe(transaction)} has offsets of groups, and cannot be prepared: the groups' partitions would "
                "wait until it is ended; commit it in one phase, or commit the offsets outside it"
            )

    def _end_again(
        self, transaction: Transaction, known: IdValue, outcome: State, parts: Sequence[Part], now_ms: int
    ) -> Decision[State]:
        if known.state is not State.PREPARED:
            if outcome is not State.ABORTED and not known.state.is_commit:
                raise _aborted(transaction, known)
            if outcome is State.PREPARED or (outcome is State.COMMITTED and parts):
                self._check_counted(transaction, known, parts)
            return Decision([], known.state)
        if outcome is State.PREPARED:
            if known.kind is not Kind.HALF_MESSAGE:  # the bundle's question has counted a half message
                self._check_counted(transaction, known, parts)
            return Decision([], known.state)
        if parts and known.kind is Kind.HALF_MESSAGE:
            counted = tuple(parts)  # by the producer; the stored count is the bundle's, from its question
            if len(counted) > 1:
                raise InvalidRequest(f"{describe(transaction)} is a half message; all its batches lie in one bundle")
            return self._ids.decide(transaction, known, outcome, counted, now_ms, outcome)
        if parts and outcome is State.COMMITTED and tuple(parts) != known.parts:
            raise InvalidRequest(
                f"{describe(transaction)} was prepared with other counts of batches; commit it without counts, or "
                "roll it back"
            )
        return self._ids.decide(transaction, known, outcome, known.parts, now_ms, outcome)

    def _check_counted(self, transaction: Transaction, known: IdValue, parts: Sequence[Part]) -> None:
        """Check that a call repeats the decision: it counts the same batches. `counted` is empty if an
        earlier release recorded the decision.
        """
        if known.counted and known.counted != digest_of(parts):
            raise TransactionFenced(
                f"{describe(transaction)} is {known.state.name} with other batches than this call counts: another "
                "program has used the id, and nothing that this one has staged becomes visible; use a new id"
            )

    def outcome(self, transactional_id: str, epoch: int, number: int, now_ms: int) -> Decision[Outcome]:
        """Return the final outcome of a transaction. An undecided one is aborted first (X17); of a prepared
        one the answer is PREPARED.

        `epoch` 0: the one transaction of an id that is used once. Raises InvalidRequest;
        TransactionUnknown if the transaction was never begun, or its outcome is no longer kept;
        Unavailable.
        """
        known = self._ids.existing(transactional_id)
        if epoch == 0 and known.kind is not Kind.ORDINARY:
            epoch, number = known.epoch, 1
        transaction = check_transaction(self._ids.named(transactional_id, known)._replace(epoch=epoch, number=number))
        if epoch < known.epoch and (state := _former_outcome(known.former, transaction)) is not None:
            return Decision([], Outcome(state, True))
        if transaction.pair < (known.epoch, known.number) or epoch > known.epoch:
            raise TransactionUnknown(
                f"the outcome of {describe(transaction)} is not known: outcomes are kept of the newest transaction "
                f"(number {known.number}, epoch {known.epoch}) and of the last one before this epoch; ask before the "
                "next transaction is decided"
            )
        if number > known.number + 1:
            raise TransactionUnknown(
                f"{describe(transaction)} was never begun: the newest decided one is {known.number}; pass the number "
                "of a transaction that was begun"
            )
        if number == known.number:
            return Decision([], Outcome(known.state, known.complete))
        if not known.complete:
            raise self._ids.not_complete(self._ids.named(transactional_id, known))
        return self._ids.decide(transaction, known, State.ABORTED, (), now_ms, Outcome(State.ABORTED, True))


def _same_content(transactional_id: str, former: Former, content: bytes) -> Former:
    """Return what was decided last. Raises TransactionIdReused if that is a commit of other content."""
    if former.state.is_commit and former.content and content and former.content != content:
        raise TransactionIdReused(
            f"transactional id {transactional_id!r} has committed a transaction with other contents, so this call is no"
            " repetition of it: nothing of this call was written; use a new id, or send the same contents again"
        )
    return former


def _former_outcome(former: Former | None, transaction: Transaction) -> State | None:
    """Return the outcome of a transaction of an earlier epoch; None if it is not known, or was never
    begun. What was not decided when the next epoch began is aborted.
    """
    if former is None:
        return None
    if transaction.pair == (former.epoch, former.number):
        return former.state
    first = former.number + 1 if transaction.epoch == former.epoch else 1
    return State.ABORTED if transaction.epoch >= former.epoch and transaction.number == first else None


def _aborted(transaction: Transaction, known: IdValue) -> TransactionAborted:
    if known.state is State.ABORTED_BY_OPERATOR:
        return TransactionAborted(
            f"{describe(transaction)} was aborted by an operator's decision, which is kept until it is forgotten"
        )
    if known.state is State.UNRESOLVED:
        return TransactionAborted(
            f"{describe(transaction)} is UNRESOLVED: no producer of check group {known.check_group!r} gave an answer "
            f"after {known.checks} checks; it cannot be committed any longer, and {about_copy(known.check_group)}"
        )
    return TransactionAborted(
        f"{describe(transaction)} is aborted: its producer aborted it, or it was undecided beyond its time-out of "
        f"{known.timeout_ms} ms, or when its outcome was asked for; nothing of it becomes visible, so repeat its work "
        "in a new transaction"
    )
