"""Know which transactions of Kafka clients are open, beside the transactional ids of one partition.

An abort that the client has not asked for, by time-out or by an operator, begins a new epoch: the client may be
sending what belongs to the aborted transaction (X22).

With Kafka's second protocol (KIP-890), each end of a transaction ends its epoch, in the same record (X28):

    EndTxn                  Id      epoch e, number n, its state, its parts, `next_producer`
    ...                     Id      the same, complete
    the next one begins     Id      epoch e + 1, number 0, together with its first Open

So the producer has epoch e + 1 from the decision on, and the epoch of the id follows when all bundles are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ledgermq.errors import Unavailable
from ledgermq.protocol.naming.producer_ids import KAFKA_EPOCH_MAX, new_producer
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

    def __init__(
        self, partition: int, limits: TransactionLimits, loop_s: Callable[[], float], new_id: Callable[[], bytes]
    ) -> None:
        super().__init__(partition, limits, loop_s)
        self._new_id = new_id
        self.open: dict[str, OpenValue] = {}
        self.ends_as_asked = False
        """Whether the decision that is made now is the client's."""
        self.renews = False
        """Whether that decision ends the epoch, too."""

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

    def begun(self, known: IdValue, now_ms: int) -> IdValue:
        """Return the state of an id in the epoch of its holder, which begins if the last one ended with its
        transaction.
        """
        if not known.next_producer:
            return known
        producer_id, epoch = known.holder
        former = known.as_former if producer_id == known.producer_id else None
        return IdValue(
            producer_id, epoch, known.kind, known.timeout_ms, now_ms, former=former, principal=known.principal
        )

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
        opened, renews = self.open.get(transaction.transactional_id), self.renews
        if opened is not None and not self.ends_as_asked and state.is_abort:
            if not opened.renews:
                new = IdValue(known.producer_id, known.epoch + 1, known.kind, known.timeout_ms, now_ms)
                new = replace(new, former=known.as_former, principal=known.principal)
                return self.decided(transaction.transactional_id, new, answer)
            renews, parts = True, [Part(bundle) for bundle in sorted(opened.bundles)]
        if renews:
            known = replace(known, next_producer=self._next_producer(known))
        elif known.next_producer:  # an operator's, about a transaction that has not begun
            known = self.begun(known, now_ms)
        return super().decide(transaction, known, state, parts, now_ms, answer)

    def _next_producer(self, known: IdValue) -> bytes:
        """Return under which id the producer goes on: a new one after the last epoch that Kafka can say."""
        return known.producer_id if known.epoch <= KAFKA_EPOCH_MAX else new_producer(self._new_id())

    def decided(self, name: str, known: IdValue | None, answer: T) -> Decision[T]:
        closed: list[LogRecord] = []
        value = self.open.get(name)
        if value is not None and (known is None or (known.epoch, known.number + 1) != (value.epoch, value.number)):
            del self.open[name]
            closed = [encode(OpenEntry(name, None))]
        decision = super().decided(name, known, answer)
        return Decision([*decision.records, *closed], answer)
