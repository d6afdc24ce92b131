"""Coordinate transactional ids: one `Coordinator` for each partition of `__transactions` that decides.

How a broker uses it (one term, one partition; no call waits):

    c = Coordinator(partition, limits, new_id, loop_s)
    for record in snapshot + tail: c.apply(record.key, record.value)
    c.start(now_ms)                                    # the clocks of transactions restart
    decision = c.end(transaction, outcome, parts, now_ms)   # typed errors are raised before anything has changed
    append decision.records; when they are durable, send decision.answer

An answer or an error without records is final only after a fence check (X2), because a former owner has
not read the decisions of its successor. `to_complete` may return decisions that are not durable yet: wait
for the log before a bundle receives one (X1).

Invariant: a decision's records, applied to a copy of the previous state, give the current state. The
rules X1 to X20 are in docs/design.md, chapter 16.

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
* A stored time was read from the clock of an owner, which may have been wrong. So what waits for the end
  of a time ends at the latest when this term has waited so long by the loop's clock (`_waited_ms`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeVar

from ledgermq.errors import (
    InvalidRequest,
    ResourceExhausted,
    TransactionAborted,
    TransactionFenced,
    TransactionUnknown,
    Unavailable,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import check_nonce
from ledgermq.protocol.producer_ids import shown_producer_id
from ledgermq.protocol.unresolved import SUFFIX
from ledgermq_broker.transactions.state.checks import (
    check_group,
    check_parts,
    check_timeout,
    check_transaction,
    check_transactional_id,
    describe,
)
from ledgermq_broker.transactions.state.ids import Ids
from ledgermq_broker.transactions.state.info import transaction_info
from ledgermq_broker.transactions.state.limits import (
    EPOCH_MAX,
    EXPIRED_AT_ONCE_MAX,
    RETRY_FULL_MS,
    RETRY_MS,
    TransactionLimits,
)
from ledgermq_broker.transactions.state.records import Former, IdEntry, IdValue, digest_of, encode
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.log.shares import NO_PRINCIPAL, Shares

T = TypeVar("T")

_BY_OPERATOR = (State.COMMITTED_BY_OPERATOR, State.ABORTED_BY_OPERATOR)
_KEPT_HALF = (*_BY_OPERATOR, State.UNRESOLVED)
_ABORTS = (State.ABORTED, State.ABORTED_BY_OPERATOR)


class Identity(NamedTuple):
    """The identity of a producer until the next `init` of its transactional id."""

    producer_id: bytes
    epoch: int
    coordinator: int
    timeout_ms: int


class Outcome(NamedTuple):
    state: State
    complete: bool
    """Whether the transaction is visible, or dropped, in all its bundles."""


class _Asked(NamedTuple):
    """The newest undecided transaction of an id that a bundle has asked about, and when it first did: by
    the wall clock, for people, and by the loop's clock.
    """

    transaction: Transaction
    first_ms: int
    first_s: float


class Coordinator:
    """`now_ms`: wall clock. `new_id`: returns 16 random bytes. `loop_s`: the loop's clock, which never
    goes back.
    """

    def __init__(
        self,
        partition: int,
        limits: TransactionLimits,
        new_id: Callable[[], bytes],
        loop_s: Callable[[], float],
    ) -> None:
        self.partition = partition
        self._limits = limits
        self._new_id = new_id
        self._loop_s = loop_s
        self._started_s = loop_s()
        self._changed_s: dict[str, float] = {}
        """Id -> when this term last changed it, by the loop's clock."""
        self._ids = Ids()
        self._asked: dict[str, _Asked] = {}
        self._troubles: dict[str, dict[int, str]] = {}

    # Replay

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log, in order. Raises DataDamaged, FormatNotSupported."""
        self._ids.apply(key, value)

    def start(self, now_ms: int) -> None:
        """Start the clocks, once, after the last record was applied."""
        self._asked = {}
        self._changed_s = {}
        self._started_s = self._loop_s()

    @property
    def shares(self) -> Shares:
        """Return how many ids each principal has."""
        return self._ids.shares

    # Producers

    def init(
        self,
        transactional_id: str,
        kind: Kind,
        timeout_ms: int,
        check_group_name: str,
        now_ms: int,
        nonce: bytes = b"",
        principal: int = NO_PRINCIPAL,
    ) -> Decision[Identity]:
        """Begin the next epoch of an id. This aborts an undecided transaction of the epoch before.

        `nonce`: of the object that calls, the same in all its attempts; empty: an earlier client.
        `principal`: a hash of the name of the principal that calls; 0: not known. Raises
        InvalidRequest, also if the id has another kind, or is used once and was used, or another object
        has begun it (X9); TransactionAborted instead if another half message has the id; Unavailable
        while a commit of the epoch before is incomplete (X6); ResourceExhausted; QuotaExceeded if the
        principal has its share of the ids.
        """
        check_transactional_id(transactional_id)
        check_group(kind, check_group_name)
        check_nonce(nonce)
        timeout_ms = check_timeout(timeout_ms, self._limits)
        known = self._ids.known.get(transactional_id)
        if known is None:
            self._check_room(principal)
            new = IdValue(self._new_id(), 1, kind, timeout_ms, now_ms, check_group=check_group_name, nonce=nonce)
            new = replace(new, principal=principal)
        else:
            self._check_reuse(transactional_id, known, kind)
            if kind is not Kind.ORDINARY:
                self._check_same_object(transactional_id, known, nonce)
                return Decision([], Identity(known.producer_id, known.epoch, self.partition, known.timeout_ms))
            former = _former_of(known)
            new = IdValue(known.producer_id, known.epoch + 1, kind, timeout_ms, now_ms, former=former, nonce=nonce)
            new = replace(new, principal=known.principal or principal)
        identity = Identity(new.producer_id, new.epoch, self.partition, timeout_ms)
        return self._decided(transactional_id, new, identity)

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

    def _check_room(self, principal: int) -> None:
        free = self._limits.ids_max - len(self._ids.known)
        if free <= 0:
            raise ResourceExhausted(
                f"partition {self.partition} of __transactions has {self._limits.ids_max} transactional ids already, "
                "which is the maximum; reuse transactional ids, and forget two-phase transactions that are complete",
                retry_after_ms=RETRY_FULL_MS,
            )
        where = f"partition {self.partition} of __transactions"
        self._ids.shares.check(principal, 1, free, where=where, retry_after_ms=RETRY_FULL_MS)

    def _check_reuse(self, transactional_id: str, known: IdValue, kind: Kind) -> None:
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
            raise self._incomplete(self._named(transactional_id, known))

    def end(self, transaction: Transaction, outcome: State, parts: Sequence[Part], now_ms: int) -> Decision[State]:
        """Commit, abort or prepare a transaction, and return its state. A repeated call returns it again.

        Any process may end a prepared transaction by its id alone, without producer id and parts. An answer
        to a check names the shown producer id, which is enough for the same.
        Raises InvalidRequest, TransactionUnknown, TransactionFenced; TransactionAborted if a commit finds
        the transaction aborted; Unavailable while the transaction before is incomplete (X6).
        """
        if outcome not in (State.COMMITTED, State.ABORTED, State.PREPARED):
            raise InvalidRequest(f"a transaction ends COMMITTED, ABORTED or PREPARED, not {outcome.name}")
        parts = check_parts(parts, self._limits)
        known = self._existing(transaction.transactional_id)
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
        return self._decide(transaction, known, outcome, parts, now_ms, outcome)

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
        return self._named(transactional_id, known)

    def _check_holder(self, transaction: Transaction, known: IdValue) -> None:
        if (known.producer_id, known.epoch) != (transaction.producer_id, transaction.epoch):
            raise TransactionFenced(
                f"{describe(transaction)} is fenced: another producer began epoch {known.epoch} of the id, and that "
                "aborted the undecided transaction; only one process may use a transactional id"
            )

    def _check_end(self, transaction: Transaction, known: IdValue, outcome: State, parts: Sequence[Part]) -> None:
        """Check the first decision about a transaction."""
        if not known.complete:
            raise self._incomplete(self._named(transaction.transactional_id, known))
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
            return self._decide(transaction, known, outcome, counted, now_ms, outcome)
        if parts and outcome is State.COMMITTED and tuple(parts) != known.parts:
            raise InvalidRequest(
                f"{describe(transaction)} was prepared with other counts of batches; commit it without counts, or "
                "roll it back"
            )
        return self._decide(transaction, known, outcome, known.parts, now_ms, outcome)

    def _check_counted(self, transaction: Transaction, known: IdValue, parts: Sequence[Part]) -> None:
        """Check that a call repeats the decision: it counts the same batches. `counted` is empty if an
        earlier release recorded the decision.
        """
        if known.counted and known.counted != digest_of(parts):
            raise TransactionFenced(
                f"{describe(transaction)} is {known.state.name} with other batches than this call counts: another "
                "program has used the id, and nothing that this one has staged becomes visible; use a new id"
            )

    # Questions

    def outcome(self, transactional_id: str, epoch: int, number: int, now_ms: int) -> Decision[Outcome]:
        """Return the final outcome of a transaction. An undecided one is aborted first (X17); of a prepared
        one the answer is PREPARED.

        `epoch` 0: the one transaction of an id that is used once. Raises InvalidRequest;
        TransactionUnknown if the transaction was never begun, or its outcome is no longer kept;
        Unavailable.
        """
        known = self._existing(transactional_id)
        if epoch == 0 and known.kind is not Kind.ORDINARY:
            epoch, number = known.epoch, 1
        transaction = check_transaction(self._named(transactional_id, known)._replace(epoch=epoch, number=number))
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
            raise self._incomplete(self._named(transactional_id, known))
        return self._decide(transaction, known, State.ABORTED, (), now_ms, Outcome(State.ABORTED, True))

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
        waited_ms = self._asked_for_ms(transaction, now_ms)
        if known.kind is Kind.HALF_MESSAGE and transaction.number == 1 and part.counts:
            waited_ms = max(waited_ms, self._waited_ms(transaction.transactional_id, known, now_ms))
            if waited_ms < self._limits.check_after_ms:
                return Decision([], State.UNDECIDED)
            counted = check_parts([part], self._limits)
            return self._decide(transaction, known, State.PREPARED, counted, now_ms, State.PREPARED)
        if waited_ms < known.timeout_ms:
            return Decision([], State.UNDECIDED)
        return self._decide(transaction, known, State.ABORTED, (), now_ms, State.ABORTED)

    def _asked_for_ms(self, transaction: Transaction, now_ms: int) -> float:
        """Return how long ago a bundle first asked about an undecided transaction in this term."""
        asked = self._asked.get(transaction.transactional_id)
        if asked is None or asked.transaction.pair < transaction.pair:
            asked = self._asked[transaction.transactional_id] = _Asked(transaction, now_ms, self._loop_s())
        return (self._loop_s() - asked.first_s) * 1000

    def _waited_ms(self, name: str, known: IdValue, now_ms: int) -> float:
        """Return how long an id is unchanged: by its stored time, or by the loop's clock since this term
        changed or loaded it. The second is never too long, and does not depend on the clocks of others.
        """
        return max(now_ms - known.changed_ms, self._term_ms(name))

    def _term_ms(self, name: str) -> float:
        return (self._loop_s() - self._changed_s.get(name, self._started_s)) * 1000

    def confirm(self, transaction: Transaction) -> State:
        """Return COMMITTED while the transaction is committed and not complete in all its bundles, else
        ABORTED. Here ABORTED means only that nothing more of it may become visible.
        """
        known = self._same(transaction)
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
            state = State.ABORTED if state in _ABORTS else state
            found += [(self._named(name, known), state, part) for part in known.parts if part.bundle in known.missing]
        return found

    def is_missing(self, transaction: Transaction, bundle: int) -> bool:
        """Return True while the transaction is decided and the bundle has not answered "done"."""
        known = self._same(transaction)
        return known is not None and bundle in known.missing

    def completed(self, transaction: Transaction, bundle: int, now_ms: int) -> Decision[None]:
        """Record that a bundle answered "done"; a late or repeated call changes nothing."""
        known = self._same(transaction)
        if known is None or bundle not in known.missing:
            return Decision([], None)
        return self._complete_in(transaction.transactional_id, known, bundle, now_ms, None)

    def _complete_in(self, name: str, known: IdValue, bundle: int, now_ms: int, answer: T) -> Decision[T]:
        missing = tuple(other for other in known.missing if other != bundle)
        # operators ask what an unresolved message was meant for
        complete, parts = not missing, known.parts if missing or known.state is State.UNRESOLVED else ()
        self._troubles.get(name, {}).pop(bundle, None)
        changed_ms = max(known.changed_ms, now_ms)
        new = replace(known, missing=missing, complete=complete, parts=parts, changed_ms=changed_ms)
        return self._decided(name, new, answer)

    def trouble(self, transaction: Transaction, bundle: int, text: str) -> None:
        """Keep the reason why a bundle does not complete a transaction, for `infos`."""
        known = self._same(transaction)
        if known is not None and bundle in known.missing:
            self._troubles.setdefault(transaction.transactional_id, {})[bundle] = text

    # Half messages

    def due_checks(self, now_ms: int) -> list[tuple[Transaction, str]]:
        """Return the half messages that are due for a check, with their check groups. One whose last check
        seems to be in the future is due, too: the clock of the owner that counted it was wrong.

        Call `checked` before a producer receives the check.
        """
        return [
            (self._named(name, known), known.check_group)
            for name in self._ids.prepared
            if (known := self._ids.known[name]).kind is Kind.HALF_MESSAGE
            and known.checks < self._limits.checks_max
            and (not known.checks or not 0 <= now_ms - known.changed_ms < self._limits.check_every_ms)
        ]

    def checked(self, transaction: Transaction, now_ms: int) -> Decision[State]:
        """Count a check, and return the state of the half message.

        PREPARED: send the check to a producer of the group, which answers with `end`. Any other state:
        the message was decided meanwhile.
        """
        known = self._same(transaction)
        if known is None or known.kind is not Kind.HALF_MESSAGE or known.state is not State.PREPARED:
            return Decision([], State.ABORTED if known is None else known.state)
        new = replace(known, checks=known.checks + 1, changed_ms=now_ms)
        return self._decided(transaction.transactional_id, new, State.PREPARED)

    def part_of(self, transaction: Transaction) -> Part | None:
        """Return the part of a half message that is not complete: its bundle, and its counts."""
        known = self._same(transaction)
        return known.parts[0] if known is not None and known.parts else None

    def unresolved(self, now_ms: int) -> list[Transaction]:
        """Return the half messages that `declare_unresolved` ends now: their last check had no answer, or
        no producer of their group has polled for `unchecked_ms_max`. `now_ms`: the earlier of two clocks.
        """
        return [
            self._named(name, known)
            for name in self._ids.prepared
            if (known := self._ids.known[name]).kind is Kind.HALF_MESSAGE and self._is_unresolved(name, known, now_ms)
        ]

    def declare_unresolved(self, transaction: Transaction, now_ms: int) -> Decision[bool]:
        """Record UNRESOLVED, which is final (X18). False: it was decided, or checked, meanwhile."""
        known = self._same(transaction)
        if known is None or known.kind is not Kind.HALF_MESSAGE or known.state is not State.PREPARED:
            return Decision([], False)
        if not self._is_unresolved(transaction.transactional_id, known, now_ms):
            return Decision([], False)
        return self._decide(transaction, known, State.UNRESOLVED, known.parts, now_ms, True)

    def _is_unresolved(self, name: str, known: IdValue, now_ms: int) -> bool:
        waited_ms = self._waited_ms(name, known, now_ms)
        if waited_ms >= self._limits.unchecked_ms_max:
            return True
        return known.checks >= self._limits.checks_max and waited_ms >= self._limits.check_every_ms

    # Operators

    def resolve(self, transactional_id: str, commit: bool, now_ms: int) -> Decision[pb.TransactionInfo]:
        """Record an operator's decision, in the place of a transaction manager or a producer.

        Only a prepared transaction can be committed, because only then its counts are stored. Raises
        InvalidRequest, TransactionUnknown, Unavailable.
        """
        known = self._existing(transactional_id)
        state = State.COMMITTED_BY_OPERATOR if commit else State.ABORTED_BY_OPERATOR
        if known.state is state and not self._is_asked(transactional_id, known):
            return Decision([], self.describe(transactional_id))
        transaction = self._named(transactional_id, known)
        parts = known.parts
        if known.state is not State.PREPARED:
            if known.kind is not Kind.ORDINARY and known.number:
                advice = f"; {_about_copy(known)}" if known.state is State.UNRESOLVED else ""
                raise InvalidRequest(
                    f"{describe(transaction)} is decided already: it is {known.state.name}; nothing was changed{advice}"
                )
            if commit:
                raise InvalidRequest(
                    f"no transaction of {transactional_id!r} is prepared, and only what is prepared can be committed "
                    "by an operator; abort it"
                )
            if not known.complete:
                raise self._incomplete(transaction)
            transaction, parts = check_transaction(transaction._replace(number=known.number + 1)), ()
        decision = self._decide(transaction, known, state, parts, now_ms, None)
        return Decision(decision.records, self.describe(transactional_id))

    def forget(self, transactional_id: str) -> Decision[None]:
        """Forget an id that is used once, or the operator's decision about an ordinary one.

        Raises InvalidRequest; Unavailable while the transaction is not complete. An unknown id counts as
        forgotten.
        """
        known = self._ids.known.get(check_transactional_id(transactional_id))
        if known is None:
            return Decision([], None)
        if not known.state.is_final:
            raise InvalidRequest(
                f"transaction {transactional_id!r} is {known.state.name}; commit it or roll it back first"
            )
        if not known.complete:
            raise self._incomplete(self._named(transactional_id, known))
        if known.kind is not Kind.ORDINARY:
            return self._decided(transactional_id, None, None)
        if known.state is not State.ABORTED_BY_OPERATOR:
            raise InvalidRequest(
                f"transactional id {transactional_id!r} is ORDINARY and has no operator's decision to forget; it "
                f"expires after {self._limits.expiry_ms} ms without use"
            )
        return self._decided(transactional_id, replace(known, state=State.ABORTED), None)

    def give_up(self, transactional_id: str, bundle: int, now_ms: int) -> Decision[pb.TransactionInfo]:
        """Record that the transaction's part in a bundle is lost. It then counts as complete there (X20).

        The bundle finds out by `confirm`. Raises InvalidRequest, TransactionUnknown.
        """
        known = self._existing(transactional_id)
        if bundle not in known.missing:
            missing = ", ".join(map(str, known.missing)) or "none"
            raise InvalidRequest(
                f"transaction {known.number} of {transactional_id!r} is not incomplete in bundle {bundle}; it is "
                f"incomplete in: {missing}"
            )
        decision = self._complete_in(transactional_id, known, bundle, now_ms, None)
        return Decision(decision.records, self.describe(transactional_id))

    def infos(self, open_only: bool) -> list[pb.TransactionInfo]:
        """Return the ids, sorted, without their parts: those of a few thousand would exceed an answer.

        `open_only`: those with a transaction that is prepared or incomplete, or undecided after a bundle
        has asked about it.
        """
        found = [
            self.describe(name)
            for name, known in sorted(self._ids.known.items())
            if not open_only or not known.complete or self._is_asked(name, known)
        ]
        for info in found:
            info.ClearField("parts")
        return found

    def describe(self, transactional_id: str) -> pb.TransactionInfo:
        """Describe the newest transaction of an id: an undecided one only if a bundle has asked about it.

        Raises InvalidRequest, TransactionUnknown.
        """
        known = self._existing(transactional_id)
        if self._is_asked(transactional_id, known):
            undecided, asked_ms, _ = self._asked[transactional_id]
            new = IdValue(
                known.producer_id,
                undecided.epoch,
                known.kind,
                known.timeout_ms,
                asked_ms,
                undecided.number,
                complete=False,
                check_group=known.check_group,
            )
            return transaction_info(undecided, new, {})
        return transaction_info(self._named(transactional_id, known), known, self._troubles.get(transactional_id, {}))

    # Time

    def expire(self, now_ms: int) -> Decision[int]:
        """Forget ids that have not been used for `expiry_ms`; return how many. Half messages that ended
        go earlier (`expire_half`).

        An id stays while its transaction is prepared or incomplete, or undecided after a bundle asked
        about it; also if it has an operator's decision. A committed two-phase transaction stays until it
        is forgotten (X16, X17). If the clock is wrong, only late callers lose their answers.
        """
        expired = [name for name, known in self._ids.known.items() if self._may_expire(name, known, now_ms)]
        records = [
            record for name in expired[:EXPIRED_AT_ONCE_MAX] for record in self._decided(name, None, None).records
        ]
        return Decision(records, len(records))

    def wants_expiry(self, now_ms: int) -> bool:
        """Return True if `expire` would forget an id."""
        return any(self._may_expire(name, known, now_ms) for name, known in self._ids.known.items())

    def expire_half(self, now_ms: int) -> Decision[int]:
        """Forget half messages that ended `half_expiry_ms` ago; return how many.

        Undecided ones never expire, because a bundle that was not served may hold them. UNRESOLVED
        ones and those that an operator decided are not forgotten here, so that operators can see
        them.
        """
        ended = ((name, self._ids.known[name]) for name in self._ids.ended_half)
        old = (
            name
            for name, known in ended
            if known.state not in _KEPT_HALF and self._waited_ms(name, known, now_ms) >= self._limits.half_expiry_ms
        )
        expired = list(islice(old, EXPIRED_AT_ONCE_MAX))
        records = [record for name in expired for record in self._decided(name, None, None).records]
        return Decision(records, len(records))

    def _may_expire(self, name: str, known: IdValue, now_ms: int) -> bool:
        if not known.complete or known.state in _BY_OPERATOR:
            return False
        if self._waited_ms(name, known, now_ms) < self._limits.expiry_ms:
            return False
        if known.kind is Kind.TWO_PHASE and known.state.is_commit:
            return False
        if known.kind is Kind.HALF_MESSAGE and not known.number:
            return False  # a bundle that has been away for as long may hold it (X18)
        return not self._is_asked(name, known)

    # The state

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self._ids.known)

    @property
    def prepared_count(self) -> int:
        return len(self._ids.prepared)

    @property
    def ended_half_count(self) -> int:
        return len(self._ids.ended_half)

    @property
    def incomplete_count(self) -> int:
        return len(self._ids.incomplete)

    def incomplete_since_ms(self) -> int | None:
        """Return when the incomplete transaction that waits longest last changed."""
        return min((self._ids.known[name].changed_ms for name in self._ids.incomplete), default=None)

    def entries(self) -> list[IdEntry]:
        """Return the whole state as entries of the log."""
        return [IdEntry(name, known) for name, known in sorted(self._ids.known.items())]

    def _is_asked(self, name: str, known: IdValue) -> bool:
        return name in self._asked and self._asked[name].transaction.pair > (known.epoch, known.number)

    def _existing(self, transactional_id: str) -> IdValue:
        known = self._ids.known.get(check_transactional_id(transactional_id))
        if known is None:
            raise TransactionUnknown(
                f"transactional id {transactional_id!r} is unknown: it was never initialized, it expired, or it was "
                "forgotten; an undecided transaction under it cannot be committed, so initialize it again"
            )
        return known

    def _same(self, transaction: Transaction) -> IdValue | None:
        """Return the id's state if this is its newest decided transaction, else None."""
        known = self._ids.known.get(transaction.transactional_id)
        is_same = known is not None and (known.producer_id, known.epoch, known.number) == transaction[2:]
        return known if is_same else None

    def _named(self, transactional_id: str, known: IdValue) -> Transaction:
        return Transaction(transactional_id, self.partition, known.producer_id, known.epoch, known.number)

    def _incomplete(self, transaction: Transaction) -> Unavailable:
        troubles = "; ".join(self._troubles.get(transaction.transactional_id, {}).values())
        return Unavailable(
            f"{describe(transaction)} is decided, but not complete in all its bundles yet; repeat the call"
            + (f" ({troubles})" if troubles else ""),
            retry_after_ms=RETRY_MS,
        )

    def _decide(
        self,
        transaction: Transaction,
        known: IdValue,
        state: State,
        parts: Sequence[Part],
        now_ms: int,
        answer: T,
    ) -> Decision[T]:
        kept = tuple(parts)
        if state in _ABORTS:
            kept = tuple(replace(part, counts={}) for part in kept)  # an abort drops everything
        new = replace(
            known,
            number=transaction.number,
            state=state,
            complete=not kept and state.is_final,
            parts=kept,
            missing=tuple(part.bundle for part in kept) if state.is_final else (),
            changed_ms=now_ms,
            counted=b"" if state in _ABORTS else digest_of(parts),
        )
        return self._decided(transaction.transactional_id, new, answer)

    def _decided(self, name: str, known: IdValue | None, answer: T) -> Decision[T]:
        entry = IdEntry(name, known)
        self._ids.take(entry)
        if known is None:
            self._changed_s.pop(name, None)
        else:
            self._changed_s[name] = self._loop_s()
        if known is None or not self._is_asked(name, known):
            self._asked.pop(name, None)
        if known is None or known.complete:
            self._troubles.pop(name, None)
        return Decision([encode(entry)], answer)


def _former_of(known: IdValue) -> Former:
    """Return what to keep of an epoch that ends. One without a decision keeps what the one before kept."""
    if known.number or known.former is None:
        return Former(known.epoch, known.number, known.state)
    return known.former


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


def _fate_of_decided(known: IdValue) -> State:
    if known.state in (State.PREPARED, State.UNRESOLVED) and not known.complete:
        return known.state
    if known.state.is_commit and not known.complete:
        return State.UNDECIDED
    return State.ABORTED  # complete: a batch that is still staged is a late double, which was not counted


def _about_copy(known: IdValue) -> str:
    return (
        f"an operator decides about its copy in topic {known.check_group + SUFFIX!r}: `ledgermq transaction unresolved "
        f"list {known.check_group}`"
    )


def _aborted(transaction: Transaction, known: IdValue) -> TransactionAborted:
    if known.state is State.ABORTED_BY_OPERATOR:
        return TransactionAborted(
            f"{describe(transaction)} was aborted by an operator's decision, which is kept until it is forgotten"
        )
    if known.state is State.UNRESOLVED:
        return TransactionAborted(
            f"{describe(transaction)} is UNRESOLVED: no producer of check group {known.check_group!r} gave an answer "
            f"after {known.checks} checks; it cannot be committed any longer, and {_about_copy(known)}"
        )
    return TransactionAborted(
        f"{describe(transaction)} is aborted: its producer aborted it, or it was undecided beyond its time-out of "
        f"{known.timeout_ms} ms, or when its outcome was asked for; nothing of it becomes visible, so repeat its work "
        "in a new transaction"
    )
