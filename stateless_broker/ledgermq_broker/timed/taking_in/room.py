"""Judge whether more delayed messages may wait in a bundle: of all principals together, and of the one that sends.

What a bundle takes has two bounds, of stored bytes and of the index in memory (`DelayedSizes`). A principal may have
as many bytes of each as are free (`ledgermq_ledger.log.partitions.shares`). These count:

    in ranges, in memory      blocks that wait
    coming                    blocks that were appended, and are not in memory yet
    staged                    delayed batches of open transactions, which will wait from the commit on

Ranges come into memory before they are due, whatever there is: they cannot be refused. What one principal has of the
index above half of the bound counts for itself, and not for others.

So a batch of a transaction is judged when it is staged, and its completion is refused to no principal alone: a
committed transaction that cannot be completed would keep others waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, cast

from ledgermq.errors import LedgerMQError, ResourceExhausted
from ledgermq.runtime.ports.shares import is_above_share
from ledgermq_broker.internal.core import Opening
from ledgermq_broker.timed.held import Held
from ledgermq_broker.timed.state.limits import FULL_RETRY_MS
from ledgermq_broker.timed.state.sizes import NOTHING, DelayedSizes, Size
from ledgermq_ledger import keys
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL, above_share
from ledgermq_ledger.topics.catalog import Catalog

Sizes = list[tuple[int, Size]]
"""Blocks, each by the principal that sent it."""


class Staging(Protocol):
    """The transactions of a bundle."""

    def delayed_staged(self, principal: int) -> tuple[Size, Size]:
        """Return what delayed batches take that are staged, of all principals and of this one."""


def staged_in(opening: Opening, catalog: Callable[[], Catalog], principal: int) -> tuple[Size, Size]:
    """Return what transactions have staged of delayed batches in the bundle of a partition that is opened: of all
    principals, and of this one. Nothing while the bundle's transactions are not loaded: they cannot be completed then.
    """
    topic = catalog().topics_by_name.get(keys.TRANSACTIONS_TOPIC)
    for partition in () if topic is None else topic.partitions_in(opening.owner.bundle):
        try:
            return cast(Staging, opening.hosted(keys.TRANSACTIONS_TOPIC, partition)).delayed_staged(principal)
        except LedgerMQError:
            continue
    return NOTHING, NOTHING


class Room:
    """`staged(principal)` returns what transactions have staged in this bundle: of all principals, and of this one."""

    def __init__(self, held: Held, staged: Callable[[int], tuple[Size, Size]]) -> None:
        self._held = held
        self._staged = staged
        self._coming = DelayedSizes()

    def come(self, blocks: Iterable[tuple[int, Size]]) -> None:
        """Note blocks that are appended now."""
        for principal, size in blocks:
            self._coming.add(principal, size)

    def came(self, blocks: Iterable[tuple[int, Size]]) -> None:
        """Note that blocks are in memory, or never come there."""
        for principal, size in blocks:
            self._coming.add(principal, size, -1)

    def used_by(self, principal: int) -> Size:
        """Return what a principal has here, without what it has staged."""
        here, coming = self._held.size_of(principal), self._coming.of(principal)
        return Size(here.stored_bytes + coming.stored_bytes, here.index_bytes + coming.index_bytes)

    def check(self, size: Size, principal: int) -> None:
        """Raise ResourceExhausted if so much more may not wait in the bundle, QuotaExceeded if this principal may not
        have so much more.
        """
        held, coming = self._held, self._coming.total
        staged, own_staged = self._staged(principal)
        stored_bytes = held.size_bytes + coming.stored_bytes + staged.stored_bytes
        index_bytes = self._index_bytes() + coming.index_bytes + staged.index_bytes
        self._check_bounds(stored_bytes, size.stored_bytes, index_bytes)
        if principal == NO_PRINCIPAL:
            return
        own, limits = self.used_by(principal), held.limits
        stored, index = self._coming.stored.shares, self._coming.index.shares
        free_bytes, free_index = limits.waiting_bytes_max - stored_bytes, limits.index_bytes - index_bytes
        for shares, has, more, free in (
            (stored, own.stored_bytes + own_staged.stored_bytes, size.stored_bytes, free_bytes),
            (index, own.index_bytes + own_staged.index_bytes, size.index_bytes, free_index),
        ):
            if is_above_share(has, more, free):
                raise above_share(shares.limit, has, shares.named, free, f"bundle {held.bundle}", FULL_RETRY_MS)

    def check_completion(self, size_bytes: int) -> None:
        """Raise ResourceExhausted if blocks of a committed transaction may not wait in the bundle now. They were
        counted when they were staged, so this happens only if what was moved to ranges came back into memory.
        """
        self._check_bounds(self._held.size_bytes, size_bytes, self._index_bytes())

    def _index_bytes(self) -> int:
        """Return what the index takes, of each principal no more than half of the bound."""
        index = self._held.waiting.sizes.index
        return index.total - index.above(self._held.limits.index_bytes // 2)

    def _check_bounds(self, stored_bytes: int, more_bytes: int, index_bytes: int) -> None:
        held = self._held
        if stored_bytes + more_bytes > held.limits.waiting_bytes_max:
            raise ResourceExhausted(
                f"bundle {held.bundle}: timed messages of {stored_bytes} bytes wait in it, at most"
                f" {held.limits.waiting_bytes_max} may; retry when some are delivered",
                retry_after_ms=FULL_RETRY_MS,
            )
        if index_bytes > held.limits.index_bytes:
            raise ResourceExhausted(
                f"bundle {held.bundle}: {held.waiting.rows} timed messages that are due soon, or cannot be moved,"
                " are in memory; retry when some are delivered",
                retry_after_ms=FULL_RETRY_MS,
            )
