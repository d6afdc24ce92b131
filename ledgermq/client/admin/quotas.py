"""Administer quotas. A change is in force at every broker when its call returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ledgermq.client.connection.connections import Connections
from ledgermq.client.context import ClientContext
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.tasks import all_of

CALLS_AT_ONCE = 16
LIMITS = ("bytes_in", "bytes_out", "requests", "connections", "calls", "open_transactions", "dollars_month")
_NEWEST = ("dollars_month", "calls")
"""Brokers of earlier releases do not know these limits."""
_ON_THE_WIRE = {"dollars_month": "microdollars_month"}
MICRO = 10**6
DOLLARS_MIN, DOLLARS_MAX = 1 / MICRO, 1e9


@dataclass(frozen=True, slots=True)
class QuotaDescription:
    """How much a principal, or one client id of it, may use at each broker. `principal`: user:NAME,
    cert:NAME, jwt:SUBJECT, anonymous, or * for each without its own quota. `client_id`: empty for
    all calls of the principal together, * for each client id without its own quota.

    `bytes_in`, `bytes_out`: bytes of batches a second; `requests`: calls and frames a second; `connections`:
    that have calls under way; `calls`: calls and streams under way; `open_transactions`: that have records
    staged; `dollars_month`: dollars a month for requests to the store. None: no limit. `trouble`: why the brokers
    cannot read the quota; it bounds nothing then.
    """

    principal: str
    client_id: str = ""
    bytes_in: int | None = None
    bytes_out: int | None = None
    requests: int | None = None
    connections: int | None = None
    calls: int | None = None
    open_transactions: int | None = None
    dollars_month: float | None = None
    changed: datetime | None = None
    changed_by: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What a principal uses at one broker now, all of its client ids together, by the names of limits.

    `limits`: those that bind it, by a quota of the principal or by that of `*`. `used`: of `bytes_in`, `bytes_out` and
    `requests` what came in the last second, and of `dollars_month` the dollars that are spent of the budget of an hour
    and have not come back since; both are known only where there is a limit. It also has the entries of the tables
    that all principals share, in the bundles of this broker: `message_ids`, `staged_batches`, `staged_bytes`,
    `transactional_ids`, `recalls`, `new_producers`. They have no limit: a principal may have as many as are free.
    """

    broker: str
    limits: Mapping[str, float]
    used: Mapping[str, float]


class Quotas:
    """The methods of `client.quotas`. They need the right to administer the cluster (operation cluster)
    where access rules are enforced.
    """

    def __init__(self, context: ClientContext) -> None:
        self._connections: Connections = context.connections
        self._sources = context.sources

    async def set(
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
        given = {
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
            "requests": requests,
            "connections": connections,
            "calls": calls,
            "open_transactions": open_transactions,
            "microdollars_month": None if dollars_month is None else _microdollars(dollars_month),
        }
        limits = {name: value for name, value in given.items() if value is not None}
        request = pb.ChangeQuotaRequest(principal=principal, client_id=client_id, set=limits)
        answer = await self._change(request)
        # Another program may have removed it since an attempt of this call whose answer was lost.
        return _from_wire(answer.quota) if answer.HasField("quota") else QuotaDescription(principal, client_id)

    async def unset(self, principal: str, client_id: str = "", *limits: str) -> QuotaDescription | None:
        """Drop limits of a quota by their names; without names all of them, which removes the quota.
        Return what is left, None for nothing. Raises InvalidRequest, Unauthorized, Unavailable.
        """
        names = [_ON_THE_WIRE.get(name, name) for name in limits or LIMITS]
        request = pb.ChangeQuotaRequest(principal=principal, client_id=client_id, unset=names)
        try:
            answer = await self._change(request)
        except InvalidRequest:
            if limits:
                raise
            known = [name for name in LIMITS if name not in _NEWEST]
            request = pb.ChangeQuotaRequest(principal=principal, client_id=client_id, unset=known)
            answer = await self._change(request)
        return _from_wire(answer.quota) if answer.HasField("quota") else None

    async def list(self) -> Sequence[QuotaDescription]:
        """Return all quotas. Raises Unauthorized, Unavailable."""
        answer = await self._connections.ask(
            lambda at: at.list_quotas(pb.ListQuotasRequest()), self._connections.deadline()
        )
        return [_from_wire(stored) for stored in answer.quotas]

    async def describe(self, principal: str) -> Sequence[QuotaUse]:
        """Return what a principal uses at each broker that is alive, and what binds it; brokers of earlier
        releases are left out. Raises Unauthorized, Unavailable.
        """
        deadline = self._connections.deadline()
        cluster = await self._connections.ask(lambda at: at.describe_cluster(pb.DescribeClusterRequest()), deadline)
        addresses = [broker.address for broker in cluster.brokers if broker.alive]
        request = pb.ListQuotasRequest(use_of=principal)

        async def ask(address: str) -> pb.ListQuotasResponse:
            return await self._connections.ask_at(address, lambda at: at.list_quotas(request), deadline)

        answers = await all_of(map(ask, addresses), CALLS_AT_ONCE)
        return [
            QuotaUse(address, _in_dollars(answer.use.limits), _in_dollars(answer.use.used))
            for address, answer in zip(addresses, answers, strict=True)
            if answer.HasField("use")
        ]

    async def _change(self, request: pb.ChangeQuotaRequest) -> pb.ChangeQuotaResponse:
        request.nonce = self._sources.new_id()
        return await self._connections.ask(lambda at: at.change_quota(request), self._connections.deadline())


def _microdollars(dollars: float) -> int:
    """Return millionths of a dollar. Raises InvalidRequest, for what is no number, too."""
    if not DOLLARS_MIN <= dollars <= DOLLARS_MAX:
        raise InvalidRequest(
            f"dollars_month must be {DOLLARS_MIN:f} to {DOLLARS_MAX:.0f} dollars, not {dollars}; `ledgermq quota unset`"
            " drops the limit"
        )
    return round(dollars * MICRO)


def _in_dollars(amounts: Mapping[str, int]) -> dict[str, float]:
    """Return amounts by the names of limits, with money in dollars."""
    found: dict[str, float] = dict(amounts)
    for name, wire in _ON_THE_WIRE.items():
        if wire in found:
            found[name] = found.pop(wire) / MICRO
    return found


def _from_wire(stored: pb.StoredQuota) -> QuotaDescription:
    limits: dict[str, Any] = _in_dollars(stored.limits)
    return QuotaDescription(
        stored.principal,
        stored.client_id,
        **{name: limits[name] for name in LIMITS if name in limits},
        changed=datetime.fromtimestamp(stored.created_ms / 1000, UTC) if stored.created_ms else None,
        changed_by=stored.created_by,
        trouble=stored.trouble,
    )
