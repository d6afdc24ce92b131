"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.client.admin.quotas import QuotaDescription, QuotaUse
from ledgermq.client.admin.quotas import Quotas as AsyncQuotas
from ledgermq.sync.background import Background


class Quotas:
    """The methods of `client.quotas`. Every call ends within the client's `timeout_s`."""

    def __init__(self, background: Background, inner: AsyncQuotas) -> None:
        self._background = background
        self._inner = inner

    def set(
        self,
        principal: str,
        client_id: str = "",
        *,
        bytes_in: int | None = None,
        bytes_out: int | None = None,
        requests: int | None = None,
        connections: int | None = None,
        calls: int | None = None,
        open_transactions: int | None = None,
        dollars_month: float | None = None,
    ) -> QuotaDescription:
        """Set these limits of a quota, and return it; limits that are not given stay. See
        `QuotaDescription` for the parts. `dollars_month`: 0.000001 to 10**9, rounded to millionths; of a principal,
        without a client id, and where requests to the store have a price. Raises InvalidRequest, Unauthorized,
        Unavailable.
        """
        return self._background.run(
            self._inner.set(
                principal,
                client_id,
                bytes_in=bytes_in,
                bytes_out=bytes_out,
                requests=requests,
                connections=connections,
                calls=calls,
                open_transactions=open_transactions,
                dollars_month=dollars_month,
            )
        )

    def unset(self, principal: str, client_id: str = "", *limits: str) -> QuotaDescription | None:
        """Drop limits of a quota by their names; without names all of them, which removes the quota.
        Return what is left, None for nothing. Raises InvalidRequest, Unauthorized, Unavailable.
        """
        return self._background.run(self._inner.unset(principal, client_id, *limits))

    def list(self) -> Sequence[QuotaDescription]:
        """Return all quotas. Raises Unauthorized, Unavailable."""
        return self._background.run(self._inner.list())

    def describe(self, principal: str) -> Sequence[QuotaUse]:
        """Return what a principal uses at each broker that is alive, and what binds it; brokers of earlier
        releases are left out. Raises Unauthorized, Unavailable.
        """
        return self._background.run(self._inner.describe(principal))
