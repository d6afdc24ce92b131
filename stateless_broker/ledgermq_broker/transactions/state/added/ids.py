"""Know which transactions of Kafka clients are open, beside the transactional ids of one partition.

An abort that the client has not asked for, by time-out or by an operator, begins a new epoch: the client may be
sending what belongs to the aborted transaction (X22).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ledgermq.errors import Unavailable
from ledgermq_broker.transactions.state.added.records import OPEN, OpenEntry, OpenValue, decode, encode
from ledgermq_broker.transactions.state.coordinating.served_ids import ServedIds
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_broker.transactions.state.records import IdValue
from ledgermq_broker.transactions.state.types import Part, State, Transaction
from ledgermq_ledger.log.log_record import Decision, LogRecord

T = TypeVar("T")


class Incomplete(Unavailable):
    """The transaction before is not complete yet: CONCURRENT_TRANSACTIONS."""

    kafka_code = 51


class AddedIds(ServedIds):
    """`open`: by transactional id, what was added to the transaction that follows the newest decided one."""

    def __init__(self, partition: int, limits: TransactionLimits, loop_s: Callable[[], float]) -> None:
        super().__init__(partition, limits, loop_s)
        self.open: dict[str, OpenValue] = {}
        self.ends_as_asked = False
        """Whether the decision that is made now is the client's."""

    def apply(self, key: bytes, value: bytes | None) -> None:
        if not key.startswith(OPEN):
            super().apply(key, value)
            return
        entry = decode(key, value)
        assert isinstance(entry, OpenEntry)
        if entry.value is None:
            self.open.pop(entry.transactional_id, None)
        else:
            self.open[entry.transactional_id] = entry.value

    def opened(self, name: str) -> Transaction:
        """Return the open transaction of an id."""
        value = self.open[name]
        return Transaction(name, self.partition, self.known[name].producer_id, value.epoch, value.number)

    def not_complete(self, transaction: Transaction) -> Unavailable:
        error = super().not_complete(transaction)
        return Incomplete(error.message, retry_after_ms=error.retry_after_ms)

    def decide(
        self,
        transaction: Transaction,
        known: IdValue,
        state: State,
        parts: Sequence[Part],
        now_ms: int,
        answer: T,
    ) -> Decision[T]:
        if transaction.transactional_id not in self.open or self.ends_as_asked or not state.is_abort:
            return super().decide(transaction, known, state, parts, now_ms, answer)
        new = IdValue(known.producer_id, known.epoch + 1, known.kind, known.timeout_ms, now_ms)
        new = replace(new, former=known.as_former, principal=known.principal)
        return self.decided(transaction.transactional_id, new, answer)

    def decided(self, name: str, known: IdValue | None, answer: T) -> Decision[T]:
        closed: list[LogRecord] = []
        value = self.open.get(name)
        if value is not None and (known is None or (known.epoch, known.number + 1) != (value.epoch, value.number)):
            del self.open[name]
            closed = [encode(OpenEntry(name, None))]
        decision = super().decided(name, known, answer)
        return Decision([*decision.records, *closed], answer)
