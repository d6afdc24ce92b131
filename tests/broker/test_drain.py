"""Draining a broker: it hands over what it owns and takes nothing new, and programs notice nothing. In virtual time."""

from __future__ import annotations

import asyncio
import json

import pytest
from prometheus_client import CollectorRegistry

from ledgermq.errors import DeadlineExceeded, InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.costs.racks import RackTraffic
from ledgermq_broker.metrics.scrape import BrokerCollector
from ledgermq_broker.metrics.topic_totals import TopicTotals
from ledgermq_ledger import keys
from tests.broker.cluster import Cluster, frame_of, in_cluster
from tests.broker.traffic import RECORDS, traffic
from tests.waiting import until


def owned(cluster: Cluster, address: str) -> list[int]:
    return sorted(cluster.brokers[address].ownership.opened)


@in_cluster("a:1", "b:1", bundles=5)
async def test_programs_go_on_without_an_error_while_a_broker_is_drained(cluster: Cluster) -> None:
    await cluster.create("t", 4)
    async with cluster.client() as client:
        await until(lambda: len(owned(cluster, "a:1")) > 1)
        async with traffic(client, "t") as going:
            await until(lambda: going.sent > 100)
            await client.drain_broker("a:1")
            assert owned(cluster, "a:1") == []
            assert owned(cluster, "b:1") == list(range(5))
            shown = {broker.address: broker.draining for broker in (await client.describe_cluster()).brokers}
            assert shown == {"a:1": True, "b:1": False}
            assert going.sent < RECORDS, "it was drained under load"
        await asyncio.sleep(30)
        assert owned(cluster, "a:1") == [], "it takes nothing new"
        await client.drain_broker("a:1")  # a repetition changes nothing
        await client.undrain_broker("a:1")
        await until(lambda: len(owned(cluster, "a:1")) >= 2)


@in_cluster("a:1", "b:1")
async def test_a_drained_broker_sends_callers_to_the_owner(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    async with cluster.client() as client:
        id_of_a = cluster.brokers["a:1"].broker_id
        await client.drain_broker(id_of_a)
    for partition in (0, 1):
        [result] = (await cluster.line("a:1").produce_once(frame_of("t", partition, b"x"))).results
        assert (result.error.code, result.error.owner) == ("NOT_OWNER", "b:1")


@in_cluster("a:1", "b:1")
async def test_bundles_move_within_a_second_though_they_were_taken_just_now(cluster: Cluster) -> None:
    """`holding_ms` is for balance; an operator who drains a broker need not wait for it."""
    async with cluster.client() as client:
        await client.drain_broker("b:1")
        await client.undrain_broker("b:1")
        assert {owner.epoch for owner in cluster.brokers["a:1"].ownership.opened.values()} == {1, 2}
        began_s = asyncio.get_running_loop().time()
        await client.drain_broker("a:1")
    assert asyncio.get_running_loop().time() - began_s < cluster.settings.holding_ms / 1000 - 1


@in_cluster("a:1", "b:1")
async def test_wrong_drains_are_refused_and_change_nothing(cluster: Cluster) -> None:
    async with cluster.client() as client:
        with pytest.raises(InvalidRequest, match="there is no broker 'c:1'; the brokers are a:1, b:1"):
            await client.drain_broker("c:1")
        with pytest.raises(InvalidRequest, match="this is the broker at b:1, not at 'a:1'"):
            await cluster.line("b:1").drain_broker(pb.DrainBrokerRequest(address="a:1"))
        await client.undrain_broker("a:1")  # it is not drained: nothing changes
        await client.drain_broker("a:1")
        with pytest.raises(InvalidRequest, match="no other broker could take over what b:1 owns"):
            await client.drain_broker("b:1")
    assert owned(cluster, "b:1") == [0, 1, 2]


@in_cluster("a:1", "b:1")
async def test_drained_brokers_serve_when_no_other_is_there(cluster: Cluster) -> None:
    """The last broker that was not drained crashes: what is drained takes over, and is drained again by
    the next broker.
    """
    await cluster.create("t", 2)
    await cluster.produce("t", 0, b"before")
    async with cluster.client() as client:
        await client.drain_broker("a:1")
        await cluster.stop("b:1", graceful=False)
        await until(lambda: owned(cluster, "a:1") == [0, 1, 2], 60)
        assert await cluster.read_all("t", 0) == [b"before"]
        assert (await cluster.produce("t", 0, b"after"))[0] == 1
        with pytest.raises(DeadlineExceeded, match=r"still owns the bundles \[0, 1, 2\]"):
            await client.drain_broker("a:1", timeout_s=5)
        await cluster.start("c:1")
        await until(lambda: owned(cluster, "c:1") == [0, 1, 2], 60)
        assert owned(cluster, "a:1") == []
        assert await cluster.read_all("t", 0) == [b"before", b"after"]


@in_cluster("a:1", "b:1")
async def test_earlier_releases_read_that_it_leaves_and_a_stop_ends_it(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.drain_broker("a:1")
    key = keys.broker(cluster.brokers["a:1"].broker_id)
    found = json.loads(await cluster.store.get(key))
    assert (found["leaving"], found["draining"], found["bundles"]) == (True, True, {})
    await cluster.stop("a:1")
    assert key not in [info.key async for info in cluster.store.list(keys.BROKERS)]
    await cluster.start("a:1")
    await until(lambda: bool(owned(cluster, "a:1")))  # a start ends the drain


@in_cluster("a:1", "b:1")
async def test_the_metric_shows_a_drain(cluster: Cluster) -> None:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(lambda: cluster.brokers["a:1"], TopicTotals(10), StoreCosts(), RackTraffic()))
    assert registry.get_sample_value("ledgermq_draining") == 0
    async with cluster.client() as client:
        await client.drain_broker("a:1")
    assert registry.get_sample_value("ledgermq_draining") == 1
