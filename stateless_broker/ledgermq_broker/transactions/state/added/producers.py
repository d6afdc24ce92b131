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

Clients of the second protocol (KIP-890) add nothing themselves: `join(…, adds=True)` does when their first batch or
offset comes. They end a transaction with `renews`, which gives them a new epoch, or a new producer id (`holder`).

What was added is durable before the client gets its answer (X21). Nothing is added while the transaction before is
incomplete in any bundle, so no bundle stages under the number of a transaction that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from ledgermq.errors import (
    InvalidRequest,
    TransactionAborted,
    TransactionFenced,
    TransactionTooLarge,
    TransactionUnknown,
)
from ledgermq.protocol.naming.producer_ids import KAFKA_EPOCH_MAX, kafka_producer_id, new_producer
from ledgermq_broker.transactions.state.added.ids import AddedIds
from ledgermq_broker.transactions.state.added.records import OpenEntry, OpenValue, encode
from ledgermq_broker.transactions.state.checks import check_transactional_id
from ledgermq_broker.transactions.state.coordinating.bundles import Bundles
from ledgermq_broker.transactions.state.coordinating.producers import Identity, Producers
from ledgermq_broker.transactions.state.records import IdValue
from ledgermq_broker.transactions.state.types import Kind, Part, State, Transaction
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision, LogRecord
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

    def is_open(self, transactional_id: str) -> bool:
        """Return whether something was added to the open transaction of an id. If its client has not asked for its
        end, this gives it a new epoch (X22, X28).
        """
        return transactional_id in self._ids.open

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
        that of the call which began the present epoch: then this call is its repetition. Or its transaction has ended
        that epoch, and it does not know yet.

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
        elif named.producer_id and named != known.holder and not _has_ended(known, named):
            if known.nonce != _nonce(named) or known.number or transactional_id in self._ids.open:
                raise self._fenced(transactional_id, known, named.epoch)
            return Decision([], self._identity(known))
        else:
            self._producers.check_reuse(transactional_id, known, Kind.ORDINARY)
            known = self._ids.begun(known, now_ms)
            new = IdValue(known.producer_id, known.epoch + 1, Kind.ORDINARY, timeout_ms, now_ms)
            new = replace(new, former=known.as_former, nonce=_nonce(named), principal=known.principal or principal)
            if kafka_producer_id(known.producer_id) is None:
                new = replace(new, producer_id=new_producer(self._new_id()))
            if new.epoch - 1 > KAFKA_EPOCH_MAX:
                new = replace(new, producer_id=new_producer(self._new_id()), epoch=1, former=None)
        return self._ids.decided(transactional_id, new, self._identity(new))

    def holder(self, transactional_id: str) -> Named:
        """Return the producer that may use an id that exists."""
        return Named(*self._ids.known[transactional_id].holder)

    def _identity(self, known: IdValue) -> Identity:
        return Identity(known.producer_id, known.epoch, self._ids.partition, known.timeout_ms)

    def _fenced(self, name: str, known: IdValue, epoch: int) -> TransactionFenced:
        return TransactionFenced(
            f"epoch {epoch} of transactional id {name!r} is over: epoch {known.holder[1]} has begun, by another"
            " producer of this id, or after a transaction was aborted at its time-out; close this producer"
        )

    # The open transaction

    def add(
        self, name: str, named: Named, places: Collection[PartitionId], groups: Collection[str], now_ms: int
    ) -> Decision[Transaction]:
        """Add partitions and groups to the open transaction, which begins with the first of them.

        Raises TransactionUnknown, TransactionFenced, TransactionTooLarge, and Incomplete while the transaction
        before is.
        """
        before = self._to_add(name, named)
        after = replace(before, places=before.places | set(places), groups=before.groups | set(groups))
        return self._with(name, after, now_ms)

    def _to_add(self, name: str, named: Named) -> OpenValue:
        """Return the open transaction, or one that would begin. Raises as `add`."""
        known = self._current(name, named)
        if not known.complete:
            raise self._ids.not_complete(self._ids.named(name, known))
        return self._opened(name)

    def _opened(self, name: str) -> OpenValue:
        begun = self._ids.begun(self._ids.known[name], 0)
        return self._ids.open.get(name) or OpenValue(begun.epoch, begun.number + 1)

    def join(
        self,
        name: str,
        named: Named,
        bundle: int,
        place: PartitionId | None,
        group: str,
        now_ms: int,
        *,
        adds: bool = False,
        also: Collection[PartitionId] = (),
    ) -> Decision[Transaction]:
        """Make a bundle part of the open transaction, and return this. `place` None: for a group. `adds`: what was not
        added is added, as by `add`, and `also`, too; the client speaks the second protocol.

        Raises NotOpen if the partition or the group was not added, TransactionUnknown, TransactionFenced,
        TransactionAborted.
        """
        if adds:
            before = self._to_add(name, named)
            places, groups = ({place, *also}, set[str]()) if place is not None else (set(also), {group})
            after = replace(before, places=before.places | places, groups=before.groups | groups, renews=True)
            return self._with(name, replace(after, bundles=before.bundles | {bundle}), now_ms)
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
        records = self._begin(name, now_ms)
        if self._ids.open.get(name) != opened:
            records.append(encode(OpenEntry(name, opened)))
        self._ids.open[name] = opened
        transaction = self._ids.opened(name)
        self._bundles.asked_for_ms(transaction, now_ms)  # its time-out has begun
        return Decision(records, transaction)

    def _begin(self, name: str, now_ms: int) -> list[LogRecord]:
        """Begin the epoch of the id's holder, if the last one ended with its transaction. That one is complete (X6)."""
        known = self._ids.known[name]
        if not known.next_producer:
            return []
        assert known.complete, "an epoch begins when the transaction before is complete"
        return list(self._ids.decided(name, self._ids.begun(known, now_ms), None).records)

    def _current(self, name: str, named: Named) -> IdValue:
        known = self._ids.existing(name)
        if named == known.holder:
            return known
        if _has_ended(known, named) and known.state.is_abort:
            raise _aborted(name, known)
        if known.holder[0] != named.producer_id:
            raise TransactionUnknown(
                f"transactional id {name!r} belongs to another producer id; initialize the producer again"
            )
        raise self._fenced(name, known, named.epoch)

    # Its end

    def to_end(
        self, name: str, named: Named, outcome: State, *, renews: bool = False
    ) -> tuple[Transaction, OpenValue] | None:
        """Return the open transaction. None: the newest one has this outcome already, in all its bundles.

        `renews`: the end gives the producer a new epoch. Then an abort needs no open transaction: what was sent and
        has no answer must not begin one later. And a repeated call is one that names the epoch before.

        Raises NotOpen if there is none to end, TransactionUnknown, TransactionFenced, Incomplete; TransactionAborted
        if the transaction to commit was aborted.
        """
        known = self._ids.existing(name)
        if renews and _has_ended(known, named):
            if known.state.is_commit is not outcome.is_commit:
                raise _aborted(name, known) if known.state.is_abort else _not_open(name, outcome)
            return None
        known = self._current(name, named)
        if name in self._ids.open or (renews and not outcome.is_commit and known.complete):
            opened = self._opened(name)
            return Transaction(name, self._ids.partition, *named, opened.number), opened
        repeats = known.number and not known.next_producer and known.state.is_commit is outcome.is_commit
        if outcome.is_commit if renews else not repeats:
            raise _not_open(name, outcome)
        if not known.complete:
            raise self._ids.not_complete(self._ids.named(name, known))
        return None

    def end(
        self,
        transaction: Transaction,
        opened: OpenValue,
        outcome: State,
        parts: Sequence[Part],
        now_ms: int,
        *,
        renews: bool = False,
    ) -> Decision[State] | None:
        """Decide about the open transaction. `parts`: of all its bundles. None: what was counted is no longer all of
        it. `renews`: the producer goes on as `holder`. Raises what `Producers.end` raises.
        """
        name = transaction.transactional_id
        known = self._ids.known.get(name)
        if known is None or transaction[2:4] != known.holder or self._opened(name) != opened:
            return None
        assert {part.bundle for part in parts} == opened.bundles, "a decision is about all bundles"
        begun = self._begin(name, now_ms)
        self._ids.ends_as_asked, self._ids.renews = True, renews
        try:
            decision = self._producers.end(transaction, outcome, parts, now_ms)
        finally:
            self._ids.ends_as_asked = self._ids.renews = False
        return Decision([*begun, *decision.records], decision.answer)

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


def _has_ended(known: IdValue, named: Named) -> bool:
    """Return whether the newest transaction is of this producer, and has ended its epoch."""
    return bool(known.next_producer) and named == (known.producer_id, known.epoch)


def _aborted(name: str, known: IdValue) -> TransactionAborted:
    return TransactionAborted(
        f"the transaction of {name!r} in epoch {known.epoch} is over: it was aborted, at its time-out of"
        f" {known.timeout_ms} ms or by an operator; nothing of it becomes visible: abort it, and repeat its work"
    )


def _not_open(name: str, outcome: State) -> NotOpen:
    return NotOpen(f"no transaction of {name!r} is open that could be {outcome.name}")


def _nonce(named: Named) -> bytes:
    """Return what shows that a call is repeated: the identity that it has named."""
    return named.producer_id[8:] + named.epoch.to_bytes(4, "big") if named.producer_id else b""
