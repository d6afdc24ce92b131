"""Stores and meters that count what is asked of a store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper

READS = frozenset({"get", "get_range", "get_suffix"})

T = TypeVar("T")


class CountingStore(StoreWrapper):
    """Reads of everything but heartbeats, by operation, and their bytes."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.reads: Counter[str] = Counter()
        self.bytes = 0

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        result = await step()
        if operation in READS and not what.startswith(keys.BROKERS):
            self.reads[operation] += 1
            self.bytes += len(result)  # type: ignore[arg-type]
        return result

    def forget(self) -> None:
        self.reads.clear()
        self.bytes = 0


@dataclass
class RequestTotals:
    requests: int = 0
    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0


class CountingMeter:
    """A `StoreMeter`: totals by (operation, outcome), in memory."""

    def __init__(self) -> None:
        self.totals: defaultdict[tuple[str, str], RequestTotals] = defaultdict(RequestTotals)

    def request_ended(self, operation: str, outcome: str, seconds: float, bytes_sent: int, bytes_received: int) -> None:
        total = self.totals[operation, outcome]
        total.requests += 1
        total.seconds += seconds
        total.bytes_sent += bytes_sent
        total.bytes_received += bytes_received

    def requests(self, operation: str) -> int:
        """Whatever their outcome."""
        return sum(total.requests for (name, _), total in self.totals.items() if name == operation)

    def by_operation(self) -> dict[str, int]:
        """Requests of all operations that there were, sorted by name."""
        return {name: self.requests(name) for name in sorted({operation for operation, _ in self.totals})}
