"""Forget transactional ids that were not used for long."""

from __future__ import annotations

from itertools import islice

from ledgermq_broker.transactions.state.coordinating.served_ids import ServedIds
from ledgermq_broker.transactions.state.limits import EXPIRED_AT_ONCE_MAX
from ledgermq_broker.transactions.state.records import IdValue
from ledgermq_broker.transactions.state.types import Kind, State
from ledgermq_ledger.log.log_record import Decision


class Expiry:
    def __init__(self, ids: ServedIds) -> None:
        self._ids = ids

    def expire(self, now_ms: int) -> Decision[int]:
        """Forget ids that have not been used for `expiry_ms`, or for the shorter time that their producer
        wants; return how many. Half messages that ended go earlier (`expire_half`).

        An id stays while its transaction is prepared or incomplete, or undecided after a bundle asked
        about it; also if it has an operator's decision. A committed two-phase transaction stays until it
        is forgotten (X16, X17). If the clock is wrong, only late callers lose their answers.
        """
        old = (name for name, known in self._ids.known.items() if self._may_expire(name, known, now_ms))
        expired = list(islice(old, EXPIRED_AT_ONCE_MAX))
        records = [record for name in expired for record in self._ids.decided(name, None, None).records]
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
            if not (known.state.is_of_operator or known.state is State.UNRESOLVED)
            and self._ids.waited_ms(name, known, now_ms) >= self._ids.limits.half_expiry_ms
        )
        expired = list(islice(old, EXPIRED_AT_ONCE_MAX))
        records = [record for name in expired for record in self._ids.decided(name, None, None).records]
        return Decision(records, len(records))

    def _may_expire(self, name: str, known: IdValue, now_ms: int) -> bool:
        if not known.complete or known.state.is_of_operator:
            return False
        kept_ms = min(known.kept_ms or self._ids.limits.expiry_ms, self._ids.limits.expiry_ms)
        if self._ids.waited_ms(name, known, now_ms) < kept_ms:
            return False
        if known.kind is Kind.TWO_PHASE and known.state.is_commit:
            return False
        if known.kind is Kind.HALF_MESSAGE and not known.number:
            return False  # a bundle that has been away for as long may hold it (X18)
        return not self._ids.is_asked(name, known)
