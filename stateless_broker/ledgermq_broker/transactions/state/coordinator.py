"""Coordinate transactional ids: one `Coordinator` for each partition of `__transactions` that decides.

How a broker uses it (one term, one partition; no call waits):

    c = Coordinator(partition, limits, new_id, loop_s)
    for record in snapshot + tail: c.apply(record.key, record.value)
    c.start(now_ms)                                    # the clocks of transactions restart
    decision = c.producers.end(transaction, outcome, parts, now_ms)  # errors are raised before anything has changed
    append decision.records; when they are durable, send decision.answer

Each room decides for one kind of caller: `producers`, `added` (those of Kafka), `bundles`, `operators`; the owner
itself asks `half_messages` and `expiry` what is due. `now_ms` is the wall clock everywhere.

An answer or an error without records is final only after a fence check (X2), because a former owner has
not read the decisions of its successor.

Invariant: a decision's records, applied to a copy of the previous state, give the current state. The
rules X1 to X20 are in docs/design.md, chapter 16.
"""

from __future__ import annotations

from collections.abc import Callable

from ledgermq_broker.transactions.state.added.ids import AddedIds
from ledgermq_broker.transactions.state.added.producers import AddedProducers
from ledgermq_broker.transactions.state.coordinating.bundles import Bundles
from ledgermq_broker.transactions.state.coordinating.expiry import Expiry
from ledgermq_broker.transactions.state.coordinating.half_messages import HalfMessages
from ledgermq_broker.transactions.state.coordinating.operators import Operators
from ledgermq_broker.transactions.state.coordinating.producers import Producers
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_broker.transactions.state.records import IdEntry
from ledgermq_broker.transactions.state.types import State
from ledgermq_ledger.log.partitions.shares import Shares


class Coordinator:
    """`new_id`: returns 16 random bytes. `loop_s`: the loop's clock, which never goes back."""

    def __init__(
        self,
        partition: int,
        limits: TransactionLimits,
        new_id: Callable[[], bytes],
        loop_s: Callable[[], float],
    ) -> None:
        self.partition = partition
        self._ids = AddedIds(partition, limits, loop_s, new_id)
        self.producers = Producers(self._ids, new_id)
        self.bundles = Bundles(self._ids)
        self.added = AddedProducers(self._ids, self.producers, self.bundles, new_id)
        self.half_messages = HalfMessages(self._ids)
        self.operators = Operators(self._ids, self.bundles)
        self.expiry = Expiry(self._ids)

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log, in order. Raises DataDamaged, FormatNotSupported."""
        self._ids.apply(key, value)

    def start(self, now_ms: int = 0) -> None:
        """Start the clocks, once, after the last record was applied. `now_ms`: for people, who see when what is open
        was begun.
        """
        self._ids.start()
        self.added.start(now_ms)

    @property
    def shares(self) -> Shares:
        """Return how many ids each principal has."""
        return self._ids.shares

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

    @property
    def has_incomplete_commits(self) -> bool:
        """Whether something decided makes records visible, and has not done so in all its bundles. An unresolved half
        message counts: its copy becomes visible before it is dropped (X19).
        """
        states = (self._ids.known[name].state for name in self._ids.incomplete)
        return any(state.is_commit or state is State.UNRESOLVED for state in states)

    def holder(self, transactional_id: str) -> tuple[bytes, int] | None:
        """Return the producer id and the epoch of the producer that may use an id now; None: the id is unknown."""
        known = self._ids.known.get(transactional_id)
        return None if known is None else known.holder

    def incomplete_since_ms(self) -> int | None:
        """Return when the incomplete transaction that waits longest last changed."""
        return min((self._ids.known[name].changed_ms for name in self._ids.incomplete), default=None)

    def entries(self) -> list[IdEntry]:
        """Return the whole state as entries of the log."""
        return [IdEntry(name, known) for name, known in sorted(self._ids.known.items())]
