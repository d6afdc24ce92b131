"""Check half messages: ask their producers, count the checks, and end those that get no answer."""

from __future__ import annotations

from dataclasses import replace

from ledgermq_broker.transactions.state.coordinating.served_ids import ServedIds
from ledgermq_broker.transactions.state.records import IdValue
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from ledgermq_ledger.log.log_record import Decision


class HalfMessages:
    def __init__(self, ids: ServedIds) -> None:
        self._ids = ids

    def due_checks(self, now_ms: int) -> list[tuple[Transaction, str]]:
        """Return the half messages that are due for a check, with their check groups. One whose last check
        seems to be in the future is due, too: the clock of the owner that counted it was wrong.

        Call `checked` before a producer receives the check.
        """
        return [
            (self._ids.named(name, known), known.check_group)
            for name in self._ids.prepared
            if (known := self._ids.known[name]).kind is Kind.HALF_MESSAGE
            and known.checks < self._ids.limits.checks_max
            and (not known.checks or not 0 <= now_ms - known.changed_ms < self._ids.limits.check_every_ms)
        ]

    def checked(self, transaction: Transaction, now_ms: int) -> Decision[State]:
        """Count a check, and return the state of the half message.

        PREPARED: send the check to a producer of the group, which answers with `end`. Any other state:
        the message was decided meanwhile.
        """
        known = self._ids.same(transaction)
        if known is None or known.kind is not Kind.HALF_MESSAGE or known.state is not State.PREPARED:
            return Decision([], State.ABORTED if known is None else known.state)
        new = replace(known, checks=known.checks + 1, changed_ms=now_ms)
        return self._ids.decided(transaction.transactional_id, new, State.PREPARED)

    def part_of(self, transaction: Transaction) -> Part | None:
        """Return the part of a half message that is not complete: its bundle, and its counts."""
        known = self._ids.same(transaction)
        return known.parts[0] if known is not None and known.parts else None

    def unresolved(self, now_ms: int) -> list[Transaction]:
        """Return the half messages that `declare_unresolved` ends now: their last check had no answer, or
        no producer of their group has polled for `unchecked_ms_max`. `now_ms`: the earlier of two clocks.
        """
        return [
            self._ids.named(name, known)
            for name in self._ids.prepared
            if (known := self._ids.known[name]).kind is Kind.HALF_MESSAGE and self._is_unresolved(name, known, now_ms)
        ]

    def declare_unresolved(self, transaction: Transaction, now_ms: int) -> Decision[bool]:
        """Record UNRESOLVED, which is final (X18). False: it was decided, or checked, meanwhile."""
        known = self._ids.same(transaction)
        if known is None or known.kind is not Kind.HALF_MESSAGE or known.state is not State.PREPARED:
            return Decision([], False)
        if not self._is_unresolved(transaction.transactional_id, known, now_ms):
            return Decision([], False)
        return self._ids.decide(transaction, known, State.UNRESOLVED, known.parts, now_ms, True)

    def _is_unresolved(self, name: str, known: IdValue, now_ms: int) -> bool:
        waited_ms = self._ids.waited_ms(name, known, now_ms)
        if waited_ms >= self._ids.limits.unchecked_ms_max:
            return True
        return known.checks >= self._ids.limits.checks_max and waited_ms >= self._ids.limits.check_every_ms
