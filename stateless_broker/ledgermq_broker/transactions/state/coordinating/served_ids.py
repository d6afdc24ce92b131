"""Know the transactional ids of one partition in one term: how long each waits, and how a decision changes it.

A stored time was read from the clock of an owner, which may have been wrong. So what waits for the end
of a time ends at the latest when this term has waited so long by the loop's clock (`ServedIds.waited_ms`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ledgermq.errors import TransactionUnknown, Unavailable
from ledgermq_broker.transactions.state.checks import check_transactional_id, describe
from ledgermq_broker.transactions.state.coordinating.ids import Ids
from ledgermq_broker.transactions.state.limits import RETRY_MS, TransactionLimits
from ledgermq_broker.transactions.state.records import IdEntry, IdValue, digest_of, encode
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from ledgermq_ledger.log.log_record import Decision

T = TypeVar("T")


class Asked(NamedTuple):
    """The newest undecided transaction of an id that a bundle has asked about, and when it first did: by
    the wall clock, for people, and by the loop's clock.
    """

    transaction: Transaction
    first_ms: int
    first_s: float


class ServedIds(Ids):
    """`loop_s`: the loop's clock, which never goes back."""

    def __init__(self, partition: int, limits: TransactionLimits, loop_s: Callable[[], float]) -> None:
        super().__init__()
        self.partition = partition
        self.limits = limits
        self.loop_s = loop_s
        self.asked: dict[str, Asked] = {}
        self.troubles: dict[str, dict[int, str]] = {}
        """Id -> bundle -> why it does not complete the newest transaction."""
        self._started_s = loop_s()
        self._changed_s: dict[str, float] = {}
        """Id -> when this term last changed it, by the loop's clock."""

    def start(self) -> None:
        """Start the clocks, once, after the last record was applied."""
        self.asked = {}
        self._changed_s = {}
        self._started_s = self.loop_s()

    def existing(self, transactional_id: str) -> IdValue:
        """Return the id's state. Raises InvalidRequest, TransactionUnknown."""
        known = self.known.get(check_transactional_id(transactional_id))
        if known is None:
            raise TransactionUnknown(
                f"transactional id {transactional_id!r} is unknown: it was never initialized, it expired, or it was "
                "forgotten; an undecided transaction under it cannot be committed, so initialize it again"
            )
        return known

    def same(self, transaction: Transaction) -> IdValue | None:
        """Return the id's state if this is its newest decided transaction, else None."""
        known = self.known.get(transaction.transactional_id)
        is_same = known is not None and (known.producer_id, known.epoch, known.number) == transaction[2:]
        return known if is_same else None

    def named(self, transactional_id: str, known: IdValue) -> Transaction:
        """Return the newest decided transaction of an id."""
        return Transaction(transactional_id, self.partition, known.producer_id, known.epoch, known.number)

    def is_asked(self, name: str, known: IdValue) -> bool:
        """Return True if a bundle has asked about a transaction that is newer than the decided one."""
        return name in self.asked and self.asked[name].transaction.pair > (known.epoch, known.number)

    def waited_ms(self, name: str, known: IdValue, now_ms: int) -> float:
        """Return how long an id is unchanged: by its stored time, or by the loop's clock since this term
        changed or loaded it. The second is never too long, and does not depend on the clocks of others.
        """
        return max(now_ms - known.changed_ms, self.term_ms(name))

    def term_ms(self, name: str) -> float:
        """Return how long this term has not changed an id, by the loop's clock."""
        return (self.loop_s() - self._changed_s.get(name, self._started_s)) * 1000

    def not_complete(self, transaction: Transaction) -> Unavailable:
        """Return the error of a call that waits until a decided transaction is complete (X6)."""
        troubles = "; ".join(self.troubles.get(transaction.transactional_id, {}).values())
        return Unavailable(
            f"{describe(transaction)} is decided, but not complete in all its bundles yet; repeat the call"
            + (f" ({troubles})" if troubles else ""),
            retry_after_ms=RETRY_MS,
        )

    def decide(
        self,
        transaction: Transaction,
        known: IdValue,
        state: State,
        parts: Sequence[Part],
        now_ms: int,
        answer: T,
    ) -> Decision[T]:
        """Record the decision about a transaction: its state, and the parts that bundles have to complete."""
        kept = tuple(parts)
        if state.is_abort:
            kept = tuple(replace(part, counts={}) for part in kept)  # an abort drops everything
        new = replace(
            known,
            number=transaction.number,
            state=state,
            complete=not kept and state.is_final,
            parts=kept,
            missing=tuple(part.bundle for part in kept) if state.is_final else (),
            changed_ms=now_ms,
            counted=b"" if state.is_abort else digest_of(parts),
        )
        return self.decided(transaction.transactional_id, new, answer)

    def decided(self, name: str, known: IdValue | None, answer: T) -> Decision[T]:
        """Take the new state of an id, None: it is forgotten; and return the record of it."""
        entry = IdEntry(name, known)
        self.take(entry)
        if known is None:
            self._changed_s.pop(name, None)
        else:
            self._changed_s[name] = self.loop_s()
        if known is None or not self.is_asked(name, known):
            self.asked.pop(name, None)
        if known is None or known.complete:
            self.troubles.pop(name, None)
        return Decision([encode(entry)], answer)
