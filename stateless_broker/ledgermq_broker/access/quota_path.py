"""Serve the calls about quotas: change them at the controller, list them.

A change is answered when it is durable and all brokers bind by it, as for access rules. A repetition
of a change is recognized by its nonce, so it does not undo what another program has changed since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ledgermq.errors import InvalidRequest, ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.limits import check_nonce
from ledgermq.sources import Sources
from ledgermq_broker.access.state.quotas import (
    DOLLARS_TITLE,
    NO_QUOTA,
    QUOTAS_MAX,
    Limit,
    Quota,
    QuotaSet,
    StoredQuota,
    Subject,
    check_budget,
    checked_limits,
    checked_subject,
    limit_named,
)
from ledgermq_broker.access.state.records import (
    QUOTA_CHANGES_KEY,
    QUOTA_PREFIX,
    encode_quota,
    knows_change,
    noted_change,
    quota_key,
    quota_set_of,
)
from ledgermq_broker.access.state.rules import PRINCIPAL_CHARS_MAX, hash_of
from ledgermq_broker.access.state.usage import Usages
from ledgermq_broker.cluster.heartbeat import BUDGETS, QUOTAS
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.metadata.at_controller import AtController
from ledgermq_broker.metadata.controller import Decide
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_ledger.topics.catalog import Catalog

Change = tuple[bytes, bytes | None]


class QuotaPath:
    """`put(decide, feature)` writes records that need a feature of every broker, and returns when they are
    in force everywhere. `usages`: what callers use at this broker. `tables(principal)`: what a principal (a hash of
    its name) has of the tables that this broker serves and all principals share, by their names.
    `costs`: with the prices that apply here.
    """

    def __init__(
        self,
        at_controller: AtController,
        metadata: Metadata,
        put: Callable[[Decide, str], Awaitable[None]],
        sources: Sources,
        usages: Usages,
        tables: Callable[[int], dict[str, int]],
        costs: StoreCosts,
    ) -> None:
        self._at_controller = at_controller
        self._metadata = metadata
        self._put = put
        self._sources = sources
        self._usages = usages
        self._tables = tables
        self._costs = costs

    async def change_quota(self, request: pb.ChangeQuotaRequest) -> pb.ChangeQuotaResponse:
        """Set and drop limits of one subject. Raises InvalidRequest, ResourceExhausted, Unavailable."""
        subject = checked_subject(request.principal, request.client_id)
        given = checked_limits(request.set)
        check_budget(subject, given)
        dropped = frozenset(limit_named(name).value for name in request.unset)
        if not given and not dropped:
            raise InvalidRequest("a change of a quota names one or more limits, to set or to unset")
        check_nonce(request.nonce)
        after: list[StoredQuota] = []

        def decide(catalog: Catalog) -> list[Change]:
            now = quota_set_of(catalog.others).quotas
            before = now.get(subject)
            if knows_change(catalog.others, QUOTA_CHANGES_KEY, request.nonce):
                after[:] = [before] if before is not None else []
                return []
            noted = noted_change(catalog.others, QUOTA_CHANGES_KEY, request.nonce)
            quota = (before.quota if before is not None else NO_QUOTA).changed(given, dropped)
            stored = StoredQuota(quota, self._sources.now_ms(), request.created_by[:PRINCIPAL_CHARS_MAX])
            key = quota_key(subject)
            if quota == NO_QUOTA:
                after[:] = []
                return [(key, None), *noted] if key in catalog.others else noted
            if before is not None and before.quota == quota:
                after[:] = [before]
                return noted
            if before is None and sum(other.startswith(QUOTA_PREFIX) for other in catalog.others) >= QUOTAS_MAX:
                raise ResourceExhausted(
                    f"the cluster has at most {QUOTAS_MAX} quotas: unset some, or set one for * that binds each"
                )
            after[:] = [stored]
            return [(key, encode_quota(stored)), *noted]

        async def here() -> pb.ChangeQuotaResponse:
            if Limit.DOLLARS_MONTH.value in given:
                self._check_priced()
            await self._put(decide, BUDGETS if Limit.DOLLARS_MONTH.value in given else QUOTAS)
            return pb.ChangeQuotaResponse(quota=_to_wire(subject, after[0]) if after else None)

        return await self._at_controller.run(request, here, lambda line, passed: line.change_quota(passed))

    def _check_priced(self) -> None:
        """Raise InvalidRequest if no request to the store has a price, so that a budget would bind nothing."""
        prices = self._costs.prices
        if not (prices.write or prices.read or prices.delete):
            raise InvalidRequest(
                f"{DOLLARS_TITLE} would bind nothing: requests to this store have no price. Set price_put_dollars and"
                " price_get_dollars of the brokers first, or bound bytes_in, bytes_out or requests"
            )

    async def list_quotas(self, request: pb.ListQuotasRequest) -> pb.ListQuotasResponse:
        await self._metadata.catch_up()
        found: QuotaSet = quota_set_of(self._metadata.catalog.others)
        quotas = [_to_wire(subject, stored) for subject, stored in sorted(found.quotas.items())]
        for text, why in sorted(found.unreadable.items()):
            principal, _, client_id = text.partition(" ")
            quotas.append(pb.StoredQuota(principal=principal, client_id=client_id, trouble=why))
        return pb.ListQuotasResponse(quotas=quotas, use=self._use_of(request.use_of) if request.use_of else None)

    def _use_of(self, principal: str) -> pb.QuotaUse:
        used = self._usages.used_by(principal, asyncio.get_running_loop().time())
        return pb.QuotaUse(
            limits=_limits(self._usages.quotas.of_principal(principal)),
            used=self._tables(hash_of(principal)) | {limit.value: amount for limit, amount in used.items()},
        )


def _to_wire(subject: Subject, stored: StoredQuota) -> pb.StoredQuota:
    return pb.StoredQuota(
        principal=subject.principal,
        client_id=subject.client_id,
        limits=_limits(stored.quota),
        created_ms=stored.created_ms,
        created_by=stored.created_by,
    )


def _limits(quota: Quota) -> dict[str, int]:
    return {limit.value: quota.of(limit) for limit in Limit if quota.of(limit)}
