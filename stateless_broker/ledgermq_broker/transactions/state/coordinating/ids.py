"""Hold the transactional ids of a coordinator: the fold of its records."""

from __future__ import annotations

from collections.abc import Collection

from ledgermq_broker.transactions.state.records import IdEntry, IdValue, decode
from ledgermq_broker.transactions.state.types import Kind, State
from ledgermq_ledger.log.partitions.shares import Shares

_OF_OTHERS = (b"ref/", b"done/", b"last/", b"open/")


class Ids:
    """`known`: by transactional id."""

    def __init__(self) -> None:
        self.known: dict[str, IdValue] = {}
        self.shares = Shares("transactional_ids", "transactional ids")
        self._incomplete: dict[str, None] = {}
        self._prepared: dict[str, None] = {}
        self._ended_half: dict[str, None] = {}

    @property
    def incomplete(self) -> Collection[str]:
        """Return the ids whose newest transaction is decided, but not complete in all its bundles."""
        return self._incomplete.keys()

    @property
    def prepared(self) -> Collection[str]:
        return self._prepared.keys()

    @property
    def ended_half(self) -> Collection[str]:
        """Return the half messages that are decided and complete."""
        return self._ended_half.keys()

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log; those of participants, and of open transactions, have no effect.

        Raises DataDamaged, FormatNotSupported.
        """
        if not key.startswith(_OF_OTHERS):
            entry = decode(key, value)
            assert isinstance(entry, IdEntry)
            self.take(entry)

    def take(self, entry: IdEntry) -> None:
        name, known = entry.transactional_id, entry.value
        self._incomplete.pop(name, None)
        self._prepared.pop(name, None)
        self._ended_half.pop(name, None)
        if (before := self.known.get(name)) is not None:
            self.shares.add(before.principal, -1)
        if known is None:
            self.known.pop(name, None)
            return
        self.shares.add(known.principal)
        self.known[name] = known
        if known.state is State.PREPARED:
            self._prepared[name] = None
        elif not known.complete:
            self._incomplete[name] = None
        elif known.kind is Kind.HALF_MESSAGE and known.number:
            self._ended_half[name] = None
