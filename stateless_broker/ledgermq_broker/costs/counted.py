"""`StoreCosts`: count what this process's requests to the store cost, and who pays.

Each request has its price, in whole picodollars, and its payers (`wrappers/payers.py`), which divide the price by their
bytes. What no topic pays for is the cluster's. Invariant: the parts add up to `total` exactly, always.
Must not know: names of topics, the wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ledgermq_ledger.object_store.prices import WRITES, Prices
from ledgermq_ledger.object_store.wrappers.metered import StoreMeter
from ledgermq_ledger.object_store.wrappers.payers import Payer, divided, payers

PAYERS_MAX = 10_000
"""Pairs of topic and principal that are counted one by one; what others pay is summed up."""
CLUSTER = Payer(-1)
"""Heartbeats, claims, checkpoints, lists: requests for no topic."""
REST = Payer(-2)
"""Payers above the bound, and topics that were removed."""


@dataclass(slots=True)
class Spent:
    """Picodollars of requests: `writes` (PUT, LIST, and DELETE where it has a price) and `reads` (GET, HEAD)."""

    writes: int = 0
    reads: int = 0

    @property
    def total(self) -> int:
        return self.writes + self.reads

    def add(self, other: Spent) -> None:
        self.writes += other.writes
        self.reads += other.reads


class StoreCosts(StoreMeter):
    """`prices` may be replaced at any time; requests that are already counted keep their price.

    `on_spent(principal, picodollars, now_s)` is called for each part of a price that a topic pays, in the turn in which
    the request ends; `principal`: "" for callers without a name.
    """

    def __init__(self, prices: Prices | None = None, payers_max: int = PAYERS_MAX) -> None:
        self.prices = prices or Prices()
        self.total = 0
        self.on_spent: Callable[[str, int, float], None] | None = None
        self._payers_max = payers_max
        self._spent: dict[Payer, Spent] = {CLUSTER: Spent(), REST: Spent()}

    def request_ended(self, operation: str, outcome: str, seconds: float, bytes_sent: int, bytes_received: int) -> None:
        price = self.prices.picodollars(operation)
        if not price:
            return
        self.total += price
        is_read = operation not in WRITES and operation != "delete"
        for payer, part in divided(price, payers()) or ((CLUSTER, price),):
            if self.on_spent is not None and part and payer != CLUSTER:
                self.on_spent(payer.principal, part, asyncio.get_running_loop().time())
            spent = self._of(payer)
            if is_read:
                spent.reads += part
            else:
                spent.writes += part

    def object_damaged(self, key: str, outcome: str) -> None:
        """It costs nothing by itself."""

    def by_payer(self, topics: Iterable[int]) -> dict[Payer, Spent]:
        """Return what each payer has spent; what other topics than these have spent goes to REST, for good."""
        for gone in {payer.topic_id for payer in self._spent if payer.topic_id >= 0} - set(topics):
            for payer in [payer for payer in self._spent if payer.topic_id == gone]:
                self._spent[REST].add(self._spent.pop(payer))
        assert sum(spent.total for spent in self._spent.values()) == self.total, "parts add up"
        return dict(self._spent)

    def _of(self, payer: Payer) -> Spent:
        found = self._spent.get(payer)
        if found is None:
            if len(self._spent) >= self._payers_max + 2:
                return self._spent[REST]
            found = self._spent[payer] = Spent()
        return found
