"""Administer quotas. A change is in force at every broker when its call returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ledgermq.client.connection.connections import Connections
from ledgermq.client.context import ClientContext
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.runtime.tasks import all_of

CALLS_AT_ONCE = 16
LIMITS = ("bytes_in", "bytes_out", "requests", "connections", "calls", "open_transactions")


@dataclass(frozen=True, slots=True)
class QuotaDescription:
    """How much a principal, or one client id of it, may use at each broker. `principal`: user:NAME,
    cert:NAME, jwt:SUBJECT, anonymous, or * for each without its own quota. `client_id`: empty for
    all calls of the principal together, * for each client id without its own quota.

    `bytes_in`, `bytes_out`: bytes of batches a second; `requests`: calls and frames a second; `connections`:
    that have calls under way; `calls`: calls and streams under way; `open_transactions`: that have records
    staged. None: no limit. `trouble`: why the brokers cannot read the quota; it bounds nothing then.
    """

    principal: str
    client_id: str = ""
    bytes_in: int | None = None
    bytes_out: int | None = None
    requests: int | None = None
    connections: int | None = None
    calls: int | None = None
    open_transactions: int | None = None
    changed: datetime | None = None
    changed_by: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What a principal uses at one broker now, all of its client ids together, by the names of limits.

    `limits`: those that bind it, by a quota of the principal or by that of `*`. `used`: of `bytes_in`, `bytes_out` and
    `requests` what came in the last second, which is known only where there is a limit. It also has the entries of the
    tables that all principals share, in the bundles of this broker: `message_ids`, `staged_batches`, `staged_bytes`,
    `transactional_ids`, `recalls`, `new_producers`. They have no limit: a principal may have as many as are free.
    """

    broker: str
    limits: Mapping[str, int]
    used: Mapping[str, int]


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
    ) -> QuotaDescription:
        """Set these limits of a quota, and return it; limits that are not given stay. See
        `QuotaDescription` for the parts. Raises InvalidRequest, Unauthorized, Unavailable.
        """
        given = {
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
            "requests": requests,
            "connections": connections,
            "calls": calls,
            "open_transactions": open_transactions,
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
        request = pb.ChangeQuotaRequest(principal=principal, client_id=client_id, unset=limits or LIMITS)
        try:
            answer = await self._change(request)
        except InvalidRequest:
            if limits:
                raise
            known = [name for name in LIMITS if name != "calls"]  # a broker of an earlier release has no such limit
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
            QuotaUse(address, dict(answer.use.limits), dict(answer.use.used))
            for address, answer in zip(addresses, answers, strict=True)
            if answer.HasField("use")
        ]

    async def _change(self, request: pb.ChangeQuotaRequest) -> pb.ChangeQuotaResponse:
        request.nonce = self._sources.new_id()
        return await self._connections.ask(lambda at: at.change_quota(request), self._connections.deadline())


def _from_wire(stored: pb.StoredQuota) -> QuotaDescription:
    return QuotaDescription(
        stored.principal,
        stored.client_id,
        **{name: stored.limits[name] for name in LIMITS if name in stored.limits},
        changed=datetime.fromtimestamp(stored.created_ms / 1000, UTC) if stored.created_ms else None,
        changed_by=stored.created_by,
        trouble=stored.trouble,
    )
