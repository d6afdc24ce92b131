"""Quotas as they are set and shown: changes, what old brokers and later releases do, metrics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import InvalidConfig, InvalidRequest, ResourceExhausted, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.access.state.quotas import Quota, StoredQuota, Subject
from ledgermq_broker.access.state.records import encode_quota, quota_key
from ledgermq_broker.cluster.heartbeat import QUOTAS, Heartbeat, encode_heartbeat
from ledgermq_broker.features import ANNOUNCED
from ledgermq_broker.metrics.features.quotas import OTHERS, PRINCIPALS_MAX, QuotaMetrics
from ledgermq_ledger import keys
from ledgermq_ledger.topics.catalog import Catalog
from tests.broker.access import RULES, token
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.quotas import set_quota
from tests.waiting import until


@in_cluster("a:1", "b:1")
async def test_use_is_described_at_each_broker(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("t", 4)
        await client.quotas.set("anonymous", bytes_in=1000, calls=70)
        async with client.producer() as producer:
            await producer.send("t", b"x" * 300)
        uses = await client.quotas.describe("anonymous")
        assert [use.broker for use in uses] == ["a:1", "b:1"]
        assert all(use.limits == {"bytes_in": 1000, "calls": 70} for use in uses)
        assert 300 <= sum(use.used["bytes_in"] for use in uses) <= 1000
        assert all(use.used["connections"] == use.used["calls"] == 0 for use in uses), "this network has none"
        assert (await client.quotas.describe("user:other"))[0].limits == {}


@in_cluster("a:1", "b:1")
async def test_a_change_binds_every_broker_when_it_is_answered(cluster: Cluster) -> None:
    async with cluster.client() as client:
        made = await client.quotas.set("anonymous", bytes_in=1000, requests=5)
        assert (made.principal, made.bytes_in, made.requests, made.connections) == ("anonymous", 1000, 5, None)
        for broker in cluster.brokers.values():
            assert broker.rules.usages.quotas.of_principal("anonymous") == Quota(bytes_in=1000, requests=5)
        assert (await client.quotas.set("anonymous", requests=7)).bytes_in == 1000, "limits that are not named stay"
        await client.quotas.set("anonymous", "nightly", bytes_out=9)
        [first, second] = await client.quotas.list()
        assert (first.client_id, first.requests, second.client_id, second.bytes_out) == ("", 7, "nightly", 9)
        left = await client.quotas.unset("anonymous", "", "requests")
        assert left is not None
        assert (left.bytes_in, left.requests) == (1000, None)
        assert await client.quotas.unset("anonymous") is None
        assert await client.quotas.unset("anonymous", "nightly") is None
        assert await client.quotas.unset("anonymous") is None, "it is gone already"
        assert await client.quotas.list() == []
        for broker in cluster.brokers.values():
            assert broker.rules.usages.quotas.of_principal("anonymous") == Quota()


@in_cluster("a:1")
async def test_a_wrong_change_is_refused_and_changes_nothing(cluster: Cluster) -> None:
    async with cluster.client() as client:
        for principal, client_id, limits in (
            ("alice", "", {"requests": 1}),
            ("user:alice", "two words", {"requests": 1}),
            ("user:alice", "", {"requests": 0}),
            ("user:alice", "", {}),
        ):
            with pytest.raises(InvalidRequest):
                await client.quotas.set(principal, client_id, **limits)
        with pytest.raises(InvalidRequest, match="bytes_in"):
            await client.quotas.unset("user:alice", "", "bytes_inn")
        assert await client.quotas.list() == []


@in_cluster("a:1", "b:1", **RULES)
async def test_brokers_are_bound_by_no_quota(cluster: Cluster) -> None:
    """Their internal calls would otherwise stop the cluster."""
    root = (await token(cluster, "root")).text
    await set_quota(cluster, "*", requests=1)
    line = cluster.line("a:1", credential=cluster.brokers["b:1"].credentials.credential("a:1"))
    for _ in range(20):
        await line.describe_cluster(pb.DescribeClusterRequest())
    own = cluster.line("a:1", root)
    await own.describe_cluster(pb.DescribeClusterRequest())
    with pytest.raises(ResourceExhausted):
        await own.describe_cluster(pb.DescribeClusterRequest())


@in_cluster("a:1", "b:1")
async def test_without_rules_brokers_are_known_and_a_wrong_proof_helps_nobody(cluster: Cluster) -> None:
    await set_quota(cluster, "anonymous", requests=1)
    broker = cluster.line("a:1", credential=cluster.brokers["b:1"].credentials.credential("a:1"))
    for _ in range(20):
        await broker.describe_cluster(pb.DescribeClusterRequest())
    liar = cluster.line("a:1", credential="LedgerMQ-Broker not-a-proof")
    await liar.describe_cluster(pb.DescribeClusterRequest())
    with pytest.raises(ResourceExhausted):
        await liar.describe_cluster(pb.DescribeClusterRequest())


@in_cluster("a:1")
async def test_a_client_id_that_is_none_is_refused(cluster: Cluster) -> None:
    for wrong in ("two words", "*", "x" * 250):
        with pytest.raises(InvalidConfig):
            await cluster.line("a:1", client_id=wrong).describe_cluster(pb.DescribeClusterRequest())
        with pytest.raises(InvalidConfig):
            ClientSettings(client_id=wrong)


@in_cluster("a:1")
async def test_no_quota_is_stored_beside_a_broker_that_ignores_quotas(cluster: Cluster) -> None:
    old = Heartbeat("old", "old:1", 1, "s", features=tuple(each for each in ANNOUNCED if each != QUOTAS))
    cluster.network.listen(old.address, cluster.brokers["a:1"].service)  # it lives
    await cluster.store.put(keys.broker("old"), encode_heartbeat(old))
    await until(lambda: bool(cluster.brokers["a:1"].membership.lacking(QUOTAS)))
    with pytest.raises(Unavailable, match="quotas need every broker"):
        await set_quota(cluster, "*", requests=1)


@in_cluster("a:1")
async def test_a_quota_that_cannot_be_read_is_listed_and_can_be_removed(cluster: Cluster) -> None:
    key = quota_key(Subject("user:alice"))

    def decide(catalog: Catalog) -> list[tuple[bytes, bytes | None]]:
        return [(key, encode_quota(StoredQuota(Quota(requests=1))) + b"\x08\x02")]  # version 2

    await cluster.brokers["a:1"].controller.put_rules(decide)
    async with cluster.client() as client:
        [shown] = await client.quotas.list()
        assert shown.principal == "user:alice"
        assert "version 2" in shown.trouble
        assert await client.quotas.unset("user:alice") is None
        assert await client.quotas.list() == []


def test_metrics_of_throttled_calls_have_bounded_labels() -> None:
    registry = CollectorRegistry()
    metrics = QuotaMetrics(registry)
    for number in range(PRINCIPALS_MAX + 50):
        metrics.refused(f"user:{number}", "requests")
        metrics.held(f"user:{number}", "bytes_out", 0.5)
    labels = {"principal": OTHERS, "limit": "requests"}
    assert registry.get_sample_value("ledgermq_quota_refusals_total", labels) == 50
    assert (
        registry.get_sample_value("ledgermq_quota_held_seconds_total", {"principal": "user:0", "limit": "bytes_out"})
        == 0.5
    )
    shown = {sample.labels["principal"] for family in registry.collect() for sample in family.samples}
    assert len(shown) == PRINCIPALS_MAX + 1
