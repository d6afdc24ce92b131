"""What all terms of `__transactions` of one broker share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ledgermq.sources import Sources
from ledgermq_broker.internal.bundle_calls import BundleCalls
from ledgermq_broker.transactions.counts import TransactionCounts
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_ledger.root.two_clocks import TwoClocks
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic


@dataclass(frozen=True)
class TransactionParts:
    """`bundle_of(coordinator)`: the bundle of a partition of
    `__transactions`. `staged()`: the topic of staged batches. `unresolved`: finds or creates
    a topic of half messages. `carry_slots`: how many slots staged batches may be behind before they
    are carried forward.
    """

    limits: TransactionLimits
    sources: Sources
    clocks: TwoClocks
    catalog: Callable[[], Catalog]
    calls: BundleCalls
    bundle_of: Callable[[int], int]
    staged: Callable[[], Topic]
    unresolved: Callable[[str], Awaitable[Topic]]
    counts: TransactionCounts
    carry_slots: int = 2048
