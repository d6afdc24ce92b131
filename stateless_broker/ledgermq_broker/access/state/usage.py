"""Measure use against quotas, shared by all calls of one principal or client id.

Each principal and each client id has its own buckets, which hold the limit of one second, and of one hour where it is
in dollars. So one that floods takes nothing from the others. The clock is given: seconds that never go back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from ledgermq.runtime.token_bucket import TokenBucket
from ledgermq_broker.access.state.quotas import (
    ANONYMOUS,
    BURST_S,
    FLOWS,
    MICRO,
    NO_QUOTA,
    Limit,
    Quota,
    QuotaSet,
)
from ledgermq_ledger.object_store.prices import PICO

SEARCHES_MAX = 1
"""Look-ups of one principal under way at one broker, which serves two at a time. So one is left for others."""
ON_ITS_WAY_S = 0.1
"""For so long after a frame of it a transaction counts as open, although nothing of it may be staged yet."""

SWEEP_MIN = 128
"""Principals with a budget that are kept before those that owe nothing are looked for."""

OpenTransaction = tuple[bytes, int, int]
"""A transaction: producer id, epoch and number."""


class Usage:
    """What one principal, or one client id of it, uses. `whose`: for errors."""

    def __init__(self, whose: str) -> None:
        self.whose = whose
        self.quota = NO_QUOTA
        self._buckets: dict[Limit, TokenBucket] = {}
        self._connections: dict[str, int] = {}
        """Calls under way, by connection."""
        self.calls = 0
        """Calls under way, of all connections."""
        self._searches = 0
        self._transactions: dict[OpenTransaction, float] = {}
        """Those that may be open, and when a frame of each came last. Kept only while there is a limit, which
        bounds them.
        """

    def take_quota(self, quota: Quota, now_s: float) -> None:
        if quota == self.quota:
            return
        self.quota = quota
        if not quota.open_transactions:
            self._transactions.clear()
        for limit in FLOWS:
            bucket, bound = self._buckets.get(limit), quota.of(limit)
            per_s, burst = limit.flow(bound)
            if not bound:
                self._buckets.pop(limit, None)
            elif bucket is None:
                self._buckets[limit] = TokenBucket(per_s, now_s, burst)
            else:
                bucket.change(per_s, now_s, burst)

    def wait_s(self, limit: Limit, now_s: float) -> float:
        bucket = self._buckets.get(limit)
        return 0.0 if bucket is None else bucket.wait_s(now_s)

    def take(self, limit: Limit, amount: int, now_s: float) -> None:
        bucket = self._buckets.get(limit)
        if bucket is not None:
            bucket.take(amount, now_s)

    def used(self, now_s: float) -> dict[Limit, int]:
        """Return what is used now, by limit; of rates, in the last second, and only where there is a limit. Of a
        budget: what its bucket lacks, in millionths of a dollar.
        """
        found = {Limit.CONNECTIONS: len(self._connections), Limit.CALLS: self.calls}
        if self.quota.open_transactions:
            found[Limit.OPEN_TRANSACTIONS] = len(self._transactions)
        for limit, bucket in self._buckets.items():
            unit = PICO // MICRO if limit is Limit.DOLLARS_MONTH else 1
            found[limit] = round(max(0.0, bucket.burst - bucket.level(now_s)) / unit)
        return found

    def owes(self, now_s: float) -> bool:
        """Return whether its budget has a bucket that is not full."""
        bucket = self._buckets.get(Limit.DOLLARS_MONTH)
        return bucket is not None and bucket.level(now_s) < bucket.burst

    def has_room_for(self, connection: str) -> bool:
        bound = self.quota.connections
        return not bound or connection in self._connections or len(self._connections) < bound

    def has_room_for_call(self) -> bool:
        return not self.quota.calls or self.calls < self.quota.calls

    def may_stage(self, transaction: OpenTransaction, now_s: float, is_open: Callable[[OpenTransaction], bool]) -> bool:
        bound, known = self.quota.open_transactions, self._transactions
        if not bound:
            return True
        if transaction not in known and len(known) >= bound:
            for one in [one for one, came_s in known.items() if now_s - came_s >= ON_ITS_WAY_S and not is_open(one)]:
                del known[one]
        return transaction in known or len(known) < bound

    def note_staged(self, transaction: OpenTransaction, now_s: float) -> None:
        if self.quota.open_transactions:
            self._transactions[transaction] = now_s

    def begin_search(self) -> bool:
        if self._searches >= SEARCHES_MAX:
            return False
        self._searches += 1
        return True

    def end_search(self) -> None:
        self._searches -= 1

    def begin_call(self, connection: str) -> None:
        self._connections[connection] = self._connections.get(connection, 0) + 1
        self.calls += 1

    def end_call(self, connection: str) -> None:
        self.calls -= 1
        left = self._connections[connection] - 1
        if left:
            self._connections[connection] = left
        else:
            del self._connections[connection]


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that is reached. `wait_s`: when to come back."""

    whose: str
    limit: Limit
    bound: int
    wait_s: float


class Usages:
    """The use of every principal and client id at one broker, and the quotas that bind it.

    Use is forgotten when no account refers to it any longer; what was spent of a budget is kept until that has flowed
    back, so a program that connects again finds its bucket as it was.
    """

    def __init__(self) -> None:
        self.quotas = QuotaSet()
        self.generation = 0
        self._usages: WeakValueDictionary[tuple[str, str | None], Usage] = WeakValueDictionary()
        self._spending: dict[str, Usage] = {}
        """By principal: those that may owe something of their budget."""
        self._sweep_at = SWEEP_MIN

    def take(self, quotas: QuotaSet) -> None:
        """Bind calls by these quotas from now on."""
        if quotas is not self.quotas:
            self.quotas = quotas
            self.generation += 1

    def spend(self, principal: str, picodollars: int, now_s: float) -> None:
        """Take the price of a request to the store from the budget of the principal for which it was made; "": of
        callers without a name.
        """
        principal = principal or ANONYMOUS
        quota = self.quotas.of_principal(principal)
        if not quota.of(Limit.DOLLARS_MONTH):
            return
        usage = self._spending[principal] = self.usage(principal)
        usage.take_quota(quota, now_s)
        usage.take(Limit.DOLLARS_MONTH, picodollars, now_s)
        if len(self._spending) >= self._sweep_at:
            self._spending = {name: usage for name, usage in self._spending.items() if usage.owes(now_s)}
            self._sweep_at = max(SWEEP_MIN, 2 * len(self._spending))

    def used_by(self, principal: str, now_s: float) -> dict[Limit, int]:
        """Return what a principal uses now, all of its client ids together."""
        found = self._usages.get((principal, None))
        return {Limit.CONNECTIONS: 0, Limit.CALLS: 0} if found is None else found.used(now_s)

    def usage(self, principal: str, client_id: str | None = None) -> Usage:
        found = self._usages.get((principal, client_id))
        if found is None:
            whose = principal if client_id is None else f"{principal} with the client id {client_id!r}"
            found = self._usages[principal, client_id] = Usage(whose)
        return found


class Account:
    """The use of one client of one principal, which counts for both."""

    def __init__(self, usages: Usages, principal: str, client_id: str) -> None:
        self.principal = principal
        self._client_id = client_id
        self._usages = usages
        self._own = usages.usage(principal)
        self._of_client = usages.usage(principal, client_id)
        self._generation = 0
        self._limited: tuple[Usage, ...] = ()

    def excess(self, limits: Iterable[Limit], now_s: float) -> Excess | None:
        """Return the limit that is reached, of several that with the longest wait; None: go on."""
        found: Excess | None = None
        for usage in self._bound(now_s):
            for limit in limits:
                wait_s = usage.wait_s(limit, now_s)
                if wait_s > (found.wait_s if found is not None else 0.0):
                    found = Excess(usage.whose, limit, usage.quota.of(limit), wait_s)
        return found

    def take(self, limit: Limit, amount: int, now_s: float) -> None:
        for usage in self._bound(now_s):
            usage.take(limit, amount, now_s)

    def full(self, connection: str, now_s: float, *, is_urgent: bool = False) -> Excess | None:
        """Return the limit of connections or of calls that a call would break; None if it may call.
        `is_urgent`: a call that no limit of calls refuses.
        """
        for usage in self._bound(now_s):
            if not usage.has_room_for(connection):
                return Excess(usage.whose, Limit.CONNECTIONS, usage.quota.connections, BURST_S)
            if not is_urgent and not usage.has_room_for_call():
                return Excess(usage.whose, Limit.CALLS, usage.quota.calls, BURST_S)
        return None

    def stage(
        self, transaction: OpenTransaction, now_s: float, is_open: Callable[[OpenTransaction], bool]
    ) -> Excess | None:
        """Count a transaction as open; return the limit if it is another one and may not be.

        `is_open(transaction)`: whether anything of it is staged at this broker.
        """
        for usage in self._bound(now_s):
            if not usage.may_stage(transaction, now_s, is_open):
                return Excess(usage.whose, Limit.OPEN_TRANSACTIONS, usage.quota.open_transactions, ON_ITS_WAY_S)
        for usage in self._bound(now_s):
            usage.note_staged(transaction, now_s)
        return None

    def begin_search(self) -> bool:
        """Count a look-up that begins; return False if the principal has one under way, and may not."""
        return self.principal == ANONYMOUS or self._own.begin_search()

    def end_search(self) -> None:
        """Count the end of a look-up that began."""
        if self.principal != ANONYMOUS:
            self._own.end_search()

    def begin_call(self, connection: str) -> None:
        self._own.begin_call(connection)
        self._of_client.begin_call(connection)

    def end_call(self, connection: str) -> None:
        self._own.end_call(connection)
        self._of_client.end_call(connection)

    def _bound(self, now_s: float) -> tuple[Usage, ...]:
        """Return the uses for which there is a quota now."""
        if self._generation != self._usages.generation:
            self._generation = self._usages.generation
            quotas = self._usages.quotas
            self._own.take_quota(quotas.of_principal(self.principal), now_s)
            self._of_client.take_quota(quotas.of_client(self.principal, self._client_id), now_s)
            self._limited = tuple(usage for usage in (self._own, self._of_client) if usage.quota != NO_QUOTA)
        return self._limited
