"""Quotas that are changed while answers are lost and other programs change them too. In virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledgermq.client.admin.quotas import QuotaDescription
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.metadata.controller import Controller
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.lost_answers import lose_the_answer


async def limits(cluster: Cluster) -> Sequence[tuple[str, int | None]]:
    async with cluster.client() as client:
        return [(quota.principal, quota.requests) for quota in await client.quotas.list()]


@pytest.mark.parametrize("before", [None, 10])
@in_cluster("a:1", "b:1")
async def test_a_change_whose_answer_was_lost_does_not_undo_a_later_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, before: int | None
) -> None:
    """Also one that changed nothing, as the limit was so already."""
    async with cluster.client() as one, cluster.client() as other:
        if before is not None:
            await one.quotas.set("user:ann", requests=before)
        lose_the_answer(
            monkeypatch, Controller, "put_rules", stored=True, then=lambda: other.quotas.set("user:ann", requests=20)
        )
        assert (await one.quotas.set("user:ann", requests=10)).requests == 20
        assert await limits(cluster) == [("user:ann", 20)]
        await one.quotas.set("user:ann", requests=10)
        assert await limits(cluster) == [("user:ann", 10)]


@in_cluster("a:1", "b:1")
async def test_a_removal_whose_answer_was_lost_removes_no_later_quota(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:
        await one.quotas.set("user:ann", requests=10)
        lose_the_answer(
            monkeypatch, Controller, "put_rules", stored=True, then=lambda: other.quotas.set("user:ann", requests=20)
        )
        await one.quotas.unset("user:ann")
        assert await limits(cluster) == [("user:ann", 20)]


@in_cluster("a:1", "b:1")
async def test_a_change_whose_answer_was_lost_does_not_bring_a_removed_quota_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:
        lose_the_answer(monkeypatch, Controller, "put_rules", stored=True, then=lambda: other.quotas.unset("user:ann"))
        assert await one.quotas.set("user:ann", requests=10) == QuotaDescription("user:ann")
        assert await limits(cluster) == []


@in_cluster("a:1", "b:1")
async def test_a_change_that_was_not_made_is_made_by_the_next_attempt(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as one, cluster.client() as other:
        lose_the_answer(
            monkeypatch, Controller, "put_rules", stored=False, then=lambda: other.quotas.set("user:ann", requests=20)
        )
        await one.quotas.set("user:ann", requests=10)
        assert await limits(cluster) == [("user:ann", 10)]


@in_cluster("a:1")
async def test_the_nonce_of_a_change_has_a_bound(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequest, match="at most 16 bytes, this one has 17"):
        await cluster.line("a:1").change_quota(
            pb.ChangeQuotaRequest(principal="*", set={"requests": 1}, nonce=bytes(17))
        )
