"""Price what an object store bills: requests by their operation, and bytes that it keeps. The one table of prices.

Brokers count by it, `docs/sizing.md` predicts by it, and `docs/costs.md` compares by it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

WRITES = frozenset({"put_if_absent", "put", "fenced_put", "list"})
DELETES = frozenset({"delete"})
NOT_SENT = frozenset({"open_fence", "close_fence", "list_fences"})
"""Operations that send no request. A fence is a folder, which only some stores have; for S3 no
request is sent. (Before S3 signs permission to put, its time is requested.)
"""
HOURS_A_MONTH = 730
PICO = 10**12
"""Prices of single requests are counted in picodollars, in whole numbers: sums of them are exact."""
THOUSAND = 1000
TB = 10**12


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars. `write`, `read`, `delete`: for a thousand requests; writes are PUT and LIST, reads are GET and HEAD.
    `tb_month`: for 10**12 bytes that are kept for a month.
    """

    write: float = 0.0
    read: float = 0.0
    delete: float = 0.0
    tb_month: float = 0.0

    def of(self, operation: str) -> float:
        """Return dollars for one request."""
        if operation in NOT_SENT:
            return 0.0
        return (self.write if operation in WRITES else self.delete if operation in DELETES else self.read) / THOUSAND

    def picodollars(self, operation: str) -> int:
        """Return the price of one request, rounded to a picodollar."""
        return round(self.of(operation) * PICO)

    def changed(self, write: float | None, read: float | None, tb_month: float | None) -> Prices:
        """Return these prices with others in the place of those that are given."""
        given = {"write": write, "read": read, "tb_month": tb_month}
        return replace(self, **{name: price for name, price in given.items() if price is not None})

    def storage(self, size_bytes: int) -> float:
        """Return dollars for a month of these bytes."""
        return self.tb_month * size_bytes / TB


S3_PRICES = Prices(write=0.005, read=0.0004, tb_month=23.0)
"""List prices of S3 Standard, us-east-1, as https://aws.amazon.com/s3/pricing/ has them for the first 50 TB."""


def prices_for(root_url: str) -> Prices:
    """Return the list prices of this kind of store; all but S3 are free."""
    return S3_PRICES if root_url.startswith("s3:") else Prices()
