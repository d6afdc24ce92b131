"""Decide what producers of the Kafka protocol ask for.

Such a producer adds partitions and groups to its transaction at the coordinator, and ends it without counts. So
the coordinator keeps what was added, and which bundles may have staged something; before a commit it asks
these for their counts.

    p.init(…)                     # the identity: its producer id has a Kafka form, its epoch counts from 1
    p.add(…)                      # the open transaction of the id gets partitions or a group
    p.join(…)                     # a bundle becomes part of it, before it stages anything of it
    found = p.to_end(…)           # None: a repeated call, which was decided so
    parts = the counts of found.bundles, from their owners
    p.end(…)                      # None: another bundle has joined meanwhile; begin again with to_end

What was added is durable before the client gets its answer (X21). Nothing is added while the transaction before is
incomplete in any bundle, so no bundle stages under the number of a transaction that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from ledgermq.errors import InvalidRequest, TransactionFenced, TransactionTooLarge, TransactionUnknown
from ledgermq.protocol.naming.producer_ids import KAFKA_EPOCH_MAX, kafka_producer_id, new_producer
from ledgermq_broker.transactions.state.added.ids import AddedIds
from ledgermq_broker.transactions.state.added.records import OpenEntry, OpenValue, encode
from ledgermq_broker.transactions.state.checks import check_transactional_id
from ledgermq_broker.transactions.state.coordinating.bundles import Bundles
from ledgermq_broker.transactions.state.coordinating.producers import Identity, Producers
from ledgermq_broker.transactions.state.records import IdValue
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL

PLACES_MAX = 10_000
GROUPS_MAX = 1000


class NotOpen(InvalidRequest):
    """INVALID_TXN_STATE."""

    kafka_code = 48


class InvalidTimeout(InvalidRequest):
    """INVALID_TRANSACTION_TIMEOUT."""

    kafka_code = 50


class Named(NamedTuple):
    """The producer that a call names. `producer_id` empty: it has none yet."""

    producer_id: bytes
    epoch: int


class AddedProducers:
    def __init__(self, ids: AddedIds, producers: Producers, bundles: Bundles, new_id: Callable[[], bytes]) -> None:
        self._ids = ids
        self._producers = producers
        self._bundles = bundles
        self._new_id = new_id

    @property
    def open_count(self) -> int:
        """Number of open transactions to which something was added."""
        return len(self._ids.open)

    def places(self, transactional_id: str) -> Collection[PartitionId]:
        """Return the partitions that were added to the open transaction of an id."""
        opened = self._ids.open.get(transactional_id)
        return () if opened is None else opened.places

    def is_settled(self, transaction: Transaction) -> bool:
        """Return whether nothing of a transaction can become readable that the offsets of a group may follow: it is
        neither committed and incomplete, nor open with a group added (X25).
        """
        name = transaction.transactional_id
        if name in self._ids.open and self._ids.opened(name) == transaction:
            return not self._ids.open[name].groups
        known = self._ids.same(transaction)
        return known is None or known.complete or not known.state.is_commit

    def start(self, now_ms: int) -> None:
        """Start the time-outs of all that is open."""
        for name in self._ids.open:
            self._bundles.asked_for_ms(self._ids.opened(name), now_ms)

    def init(
        self, transactional_id: str, timeout_ms: int, named: Named, now_ms: int, principal: int = NO_PRINCIPAL
    ) -> Decision[Identity]:
        """Begin the next epoch of an id. `named`: the identity that the caller has; it has to be the present one, or
        that of the call which began the present epoch: then this call is its repetition.

        Raises InvalidTimeout, TransactionFenced, and what `Producers.init` raises.
        """
        check_transactional_id(transactional_id)
        if not 0 < timeout_ms <= self._ids.limits.timeout_ms_max:
            raise InvalidTimeout(
                f"a transaction's time-out is 1 to {self._ids.limits.timeout_ms_max} ms, not {timeout_ms} ms; set"
                " transaction.timeout.ms"
            )
        known = self._ids.known.get(transactional_id)
        if known is None:
            self._producers.check_room(principal)
            new = IdValue(new_producer(self._new_id()), 1, Kind.ORDINARY, timeout_ms, now_ms, principal=principal)
        elif named.producer_id and named != (known.producer_id, known.epoch):
            if known.nonce != _nonce(named) or known.number or transactional_id in self._ids.open:
                raise self._fenced(transactional_id, known, named.epoch)
            return Decision([], self._identity(known))
        else:
            self._producers.check_reuse(transactional_id, known, Kind.ORDINARY)
            new = IdValue(known.producer_id, known.epoch + 1, Kind.ORDINARY, timeout_ms, now_ms)
            new = replace(new, former=known.as_former, nonce=_nonce(named), principal=known.principal or principal)
            if kafka_producer_id(known.producer_id) is None:
                new = replace(new, producer_id=new_producer(self._new_id()))
            if new.epoch - 1 > KAFKA_EPOCH_MAX:
                new = replace(new, producer_id=new_producer(self._new_id()), epoch=1, former=None)
        return self._ids.decided(transactional_id, new, self._identity(new))

    def _identity(self, known: IdValue) -> Identity:
        return Identity(known.producer_id, known.epoch, self._ids.partition, known.timeout_ms)

    def _fenced(self, name: str, known: IdValue, epoch: int) -> TransactionFenced:
        return TransactionFenced(
            f"epoch {epoch} of transactional id {name!r} is over: epoch {known.epoch} has begun, by another producer of"
            " this id, or after a transaction was aborted at its time-out; close this producer"
        )

    # The open transaction

    def add(
        self, name: str, named: Named, places: Collection[PartitionId], groups: Collection[str], now_ms: int
    ) -> Decision[Transaction]:
        """Add partitions and groups to the open transaction, which begins with the first of them.

        Raises TransactionUnknown, TransactionFenced, TransactionTooLarge, and Incomplete while the transaction
        before is.
        """
        known = self._current(name, named)
        if not known.complete:
            raise self._ids.not_complete(self._ids.named(name, known))
        before = self._ids.open.get(name) or OpenValue(known.epoch, known.number + 1)
        after = replace(before, places=before.places | set(places), groups=before.groups | set(groups))
        return self._with(name, after, now_ms)

    def join(
        self, name: str, named: Named, bundle: int, place: PartitionId | None, group: str, now_ms: int
    ) -> Decision[Transaction]:
        """Make a bundle part of the open transaction, and return this. `place` None: for a group.

        Raises NotOpen if the partition or the group was not added, TransactionUnknown, TransactionFenced.
        """
        self._current(name, named)
        opened = self._ids.open.get(name)
        if opened is None or not (place in opened.places if place is not None else group in opened.groups):
            what = f"group {group}" if place is None else f"partition {place.topic_id}/{place.partition}"
            raise NotOpen(f"{what} was not added to an open transaction of {name!r}; add it before you use it")
        return self._with(name, replace(opened, bundles=opened.bundles | {bundle}), now_ms)

    def _with(self, name: str, opened: OpenValue, now_ms: int) -> Decision[Transaction]:
        if len(opened.places) > PLACES_MAX or len(opened.groups) > GROUPS_MAX:
            raise TransactionTooLarge(
                f"a transaction of {name!r} would have {len(opened.places)} partitions and {len(opened.groups)} groups;"
                f" at most {PLACES_MAX} and {GROUPS_MAX} are allowed: abort it, and use smaller ones"
            )
        is_new = self._ids.open.get(name) != opened
        self._ids.open[name] = opened
        transaction = self._ids.opened(name)
        self._bundles.asked_for_ms(transaction, now_ms)  # its time-out has begun
        return Decision([encode(OpenEntry(name, opened))] if is_new else [], transaction)

    def _current(self, name: str, named: Named) -> IdValue:
        known = self._ids.existing(name)
        if known.producer_id != named.producer_id:
            raise TransactionUnknown(
                f"transactional id {name!r} belongs to another producer id; initialize the producer again"
            )
        if known.epoch != named.epoch:
            raise self._fenced(name, known, named.epoch)
        return known

    # Its end

    def to_end(self, name: str, named: Named, outcome: State) -> tuple[Transaction, OpenValue] | None:
        """Return the open transaction. None: the newest one has this outcome already, in all its bundles.

        Raises NotOpen if there is none to end, TransactionUnknown, TransactionFenced, Incomplete.
        """
        known = self._current(name, named)
        if (opened := self._ids.open.get(name)) is not None:
            return self._ids.opened(name), opened
        if not known.number or known.state.is_commit is not outcome.is_commit:
            raise NotOpen(f"no transaction of {name!r} is open that could be {outcome.name}")
        if not known.complete:
            raise self._ids.not_complete(self._ids.named(name, known))
        return None

    def end(
        self, transaction: Transaction, opened: OpenValue, outcome: State, parts: Sequence[Part], now_ms: int
    ) -> Decision[State] | None:
        """Decide about the open transaction. `parts`: of all its bundles. None: what was counted is no longer all of
        it. Raises what `Producers.end` raises.
        """
        if self._ids.open.get(transaction.transactional_id) != opened:
            return None
        assert {part.bundle for part in parts} == opened.bundles, "a decision is about all bundles"
        self._ids.ends_as_asked = True
        try:
            return self._producers.end(transaction, outcome, parts, now_ms)
        finally:
            self._ids.ends_as_asked = False

    def overdue(self, now_ms: int) -> list[Transaction]:
        """Return the open transactions whose time-out is over: `Bundles.fate` aborts them."""
        opened = [self._ids.opened(name) for name in self._ids.open]
        return [
            one
            for one in opened
            if self._bundles.asked_for_ms(one, now_ms) >= self._ids.known[one.transactional_id].timeout_ms
        ]

    def entries(self) -> list[OpenEntry]:
        """Return the open transactions as entries of the log."""
        return [OpenEntry(name, opened) for name, opened in sorted(self._ids.open.items())]


def _nonce(named: Named) -> bytes:
    """Return what shows that a call is repeated: the identity that it has named."""
    return named.producer_id[8:] + named.epoch.to_bytes(4, "big") if named.producer_id else b""
