"""Clusters with quotas of principals."""

from __future__ import annotations

import asyncio

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.access.quota_counts import QuotaCounts
from tests.broker.cluster import Cluster

KIB = 1024


class Counted(QuotaCounts):
    def __init__(self) -> None:
        self.refusals: list[tuple[str, str]] = []
        self.held_s = 0.0

    def refused(self, principal: str, limit: str) -> None:
        self.refusals.append((principal, limit))

    def held(self, principal: str, limit: str, seconds: float) -> None:
        self.held_s += seconds


async def set_quota(cluster: Cluster, principal: str, client_id: str = "", **limits: int) -> None:
    request = pb.ChangeQuotaRequest(principal=principal, client_id=client_id, set=limits)
    await next(iter(cluster.brokers.values())).service.change_quota(request)


def errors_of(answer: pb.ProduceResponse) -> list[pb.Error]:
    return [result.error for result in answer.results if result.HasField("error")]


def now_s() -> float:
    return asyncio.get_running_loop().time()
