"""Share out a table that all principals fill, so that none of them fills it for the others.

    whose entries              may be in the table
    of one principal           as many as are free. So one alone gets half, two get a third each, and there
                               always is room for others
    without a principal        as many as the table takes: rules are not enforced, a broker made them, or an
                               earlier release stored them

A principal is known by the hash of its name, which is stored with each entry. So a later owner counts the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from ledgermq.errors import QuotaExceeded
from ledgermq.runtime.ports.shares import is_above_share

NO_PRINCIPAL = 0


class Shares:
    """Counts the entries of a table by principal. `limit`: the name of the table in metrics and in the use of a
    quota. `named`: what errors call its entries.
    """

    def __init__(self, limit: str, named: str) -> None:
        self.limit = limit
        self.named = named
        self._held: dict[int, int] = {}

    def copy(self) -> Shares:
        twin = Shares(self.limit, self.named)
        twin._held = dict(self._held)
        return twin

    def add(self, principal: int, amount: int = 1) -> None:
        """Count entries that came; with a negative amount, entries that went."""
        if not principal or not amount:
            return
        left = self._held.get(principal, 0) + amount
        assert left >= 0, f"{self.limit}: {left} entries of one principal"
        if left:
            self._held[principal] = left
        else:
            del self._held[principal]

    def add_all(self, principals: Iterable[int], amount: int = 1) -> None:
        """Count one entry of each of these, or `amount`."""
        for principal in principals:
            self.add(principal, amount)

    def of(self, principal: int) -> int:
        """Return how many entries a principal has."""
        return self._held.get(principal, 0)

    def is_over(self, principal: int, more: int, free: int) -> bool:
        """Return whether so many entries more are above what a principal may have."""
        return principal != NO_PRINCIPAL and is_above_share(self.of(principal), more, free)

    def check(self, principal: int, more: int, free: int, *, where: str, retry_after_ms: int) -> None:
        """Raise QuotaExceeded if a principal may not have so many entries more. `free`: for how many of all
        principals the table has room. `where`: in which table, as `bundle 3`.
        """
        if self.is_over(principal, more, free):
            raise above_share(self.limit, self.of(principal), self.named, free, where, retry_after_ms)


def above_share(limit: str, own: int, named: str, free: int, where: str, retry_after_ms: int) -> QuotaExceeded:
    """Return the refusal of a principal that has `own` entries of a table, which is its share."""
    return QuotaExceeded(
        f"this principal has {own} {named} in {where}, which has room for {max(0, free)} more of all principals"
        " together: a principal may have as many as are free. Nothing was accepted; other principals go on. Retry when"
        " some of them have ended",
        limit=limit,
        retry_after_ms=retry_after_ms,
    )


class SharedSum:
    """Adds up what the entries of a table take. `total`: of all, those without a principal included."""

    def __init__(self, limit: str, named: str) -> None:
        self.total = 0
        self.shares = Shares(limit, named)

    def add(self, principal: int, amount: int) -> None:
        """Add what came; a negative amount went."""
        self.total += amount
        self.shares.add(principal, amount)

    def of(self, principal: int) -> int:
        """Return what a principal has; 0 for callers without one."""
        return self.shares.of(principal)

    def above(self, most: int) -> int:
        """Return what principals have above `most` each."""
        return sum(own - most for own in self.shares._held.values() if own > most) if self.total > most else 0
