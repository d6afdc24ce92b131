"""Report what a broker has requested from its store, by its own metrics, and what that would cost
on S3 whatever the store is.

A broker under this measure is started with an admin port (`tests.e2e.admin_port.ADMIN`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ledgermq_ledger.object_store.prices import S3_PRICES
from tests.e2e.admin_port import AdminPort


@dataclass(frozen=True, slots=True)
class Bill:
    """`requests`: by operation, every attempt.

    `dollars`: the list price of all of them on S3. `flushes`: segments of data that became durable.
    """

    requests: dict[str, float]
    dollars: float
    flushes: float

    @classmethod
    def of(cls, broker: AdminPort) -> Bill:
        found = broker.metrics()
        requests: dict[str, float] = {}
        for (operation, _), value in found.get("ledgermq_store_requests_total", {}).items():
            requests[operation] = requests.get(operation, 0.0) + value
        flushes = sum(found.get("ledgermq_flush_seconds_count", {}).values())
        dollars = sum(number * S3_PRICES.of(operation) for operation, number in requests.items())
        return cls(requests, dollars, flushes)

    def since(self, before: Bill) -> Bill:
        requests = {name: number - before.requests.get(name, 0.0) for name, number in self.requests.items()}
        return Bill(requests, self.dollars - before.dollars, self.flushes - before.flushes)

    @property
    def puts(self) -> float:
        """Return the number of objects that were put, with and without a condition."""
        return self.requests.get("put", 0.0) + self.requests.get("put_if_absent", 0.0)

    @property
    def heartbeats(self) -> float:
        """Return the requests that a broker sends by the clock, without any load: it puts its
        heartbeat, lists all, and reads its own back.
        """
        puts = self.requests.get("put", 0.0)
        return puts + self.requests.get("list", 0.0) + min(puts, self.requests.get("get", 0.0))

    @property
    def beside_heartbeats(self) -> float:
        """Return the same for a broker that is alone, because it also reads the heartbeats of
        others.
        """
        return sum(self.requests.values()) - self.heartbeats
