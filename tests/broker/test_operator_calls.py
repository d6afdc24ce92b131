"""What operators ask brokers: pages of topics, lags of groups, what brokers are; with and without access rules."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import grpc
import pytest

from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.client.messages.record import datetime_of
from ledgermq.errors import InvalidRequest, Unauthenticated, Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.status import error_from_status
from ledgermq_broker.groups.lags import GroupLag
from tests.broker.access import RULES, change, token
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import Outsider
from tests.virtual_time import EPOCH_US

NAMES = ["a.1", "a.2", "b.1", "b.2", "b.3", "c.1"]


async def pages(line: Connection, limit: int, prefix: str = "") -> list[list[str]]:
    found, after = [], ""
    while True:
        request = pb.DescribeTopicsRequest(prefix=prefix, after=after, limit=limit)
        names = [info.name for info in (await line.describe_topics(request)).topics]
        found.append(names)
        if len(names) < limit:
            return found
        after = names[-1]


@in_cluster("a:1")
async def test_topics_come_in_pages(cluster: Cluster) -> None:
    for name in reversed(NAMES):
        await cluster.create(name, 1)
    line = cluster.line("a:1")
    assert await pages(line, 4) == [NAMES[:4], NAMES[4:]]
    assert await pages(line, 2, "b.") == [["b.1", "b.2"], ["b.3"]]
    async with cluster.client() as client:
        assert [each.name for each in await client.topics.list(prefix="b.", after="b.1", limit=1)] == ["b.2"]
        assert [each.name for each in await client.list_topics()] == NAMES


@in_cluster("a:1", **RULES)
async def test_a_page_is_cut_behind_the_rules(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page but the last one is full, and none ends with a name that the caller may not see."""
    monkeypatch.setattr("ledgermq_broker.access.guards.own.LISTED_AT_ONCE", 2)
    root = (await token(cluster, "root")).text
    for name in NAMES:
        await cluster.create(name, 1, token=root)
    await change(cluster, grant=["allow user:alice describe a.2", "allow user:alice describe b.3"])
    alice = await token(cluster, "alice")
    assert await pages(cluster.line("a:1", alice.text), 2) == [["a.2", "b.3"], []]
    assert await pages(cluster.line("a:1", alice.text), 1) == [["a.2"], ["b.3"], []]


@in_cluster("a:1", "b:1")
async def test_a_client_leaves_out_what_an_older_broker_lists_too_much(cluster: Cluster) -> None:
    for name in NAMES:
        await cluster.create(name, 1)
    for broker in cluster.brokers.values():
        listed = broker.service.describe_topics

        async def every(request: pb.DescribeTopicsRequest, listed: object = listed) -> pb.DescribeTopicsResponse:
            assert callable(listed)
            answer: pb.DescribeTopicsResponse = await listed(pb.DescribeTopicsRequest(topics=request.topics))
            return answer

        broker.service.describe_topics = every
    async with cluster.client() as client:
        assert [each.name for each in await client.topics.list(prefix="b.", after="b.1", limit=1)] == ["b.2"]


async def read_some(cluster: Cluster) -> None:
    for topic in ("orders", "paid"):
        await cluster.create(topic, 2)
        for partition in (0, 1):
            await cluster.produce(topic, partition, b"1", b"2", b"3")
    await Outsider(cluster, "billing").commit(("orders", 0, 1), ("orders", 1, 3), ("paid", 0, 0))
    for number in range(5):
        await Outsider(cluster, f"g{number}").commit(("orders", 0, number % 3))


@in_cluster("a:1", "b:1", bundles=5)
async def test_lags_of_all_groups_by_one_call_of_each_broker(cluster: Cluster) -> None:
    await read_some(cluster)
    async with cluster.client() as client:
        found = {(each.group, each.topic): each for each in await client.groups.lags()}
        assert {at: each.records for at, each in found.items()} == {
            ("billing", "orders"): 2,
            ("billing", "paid"): 3,
            **{(f"g{number}", "orders"): 3 - number % 3 for number in range(5)},
        }
        assert found["billing", "orders"].partitions == 2
        assert {each.group for each in await client.groups.lags(topic="paid")} == {"billing"}
        assert [each.topic for each in await client.groups.lags(group="billing")] == ["orders", "paid"]
        page = await client.groups.lags(limit=2)
        assert [(each.group, each.topic) for each in page] == [
            ("billing", "orders"),
            ("billing", "paid"),
            ("g0", "orders"),
        ]
        assert [each.group for each in await client.groups.lags(limit=2, after="g0")] == ["g1", "g2"]
        await asyncio.sleep(20)
        assert (await client.groups.lags(group="g1"))[0].stuck_s >= 20
        await Outsider(cluster, "g1").commit(("orders", 0, 2))
        await asyncio.sleep(2)
        assert (await client.groups.lags(group="g1"))[0].stuck_s < 5


@in_cluster("a:1", **RULES)
async def test_lags_name_only_groups_and_topics_that_the_caller_may_see(cluster: Cluster) -> None:
    root = (await token(cluster, "root")).text
    for topic in ("orders", "paid"):
        await cluster.create(topic, 1, token=root)
    async with cluster.client(root) as client:
        topics = {name: (await client.describe_topic(name)).topic_id for name in ("orders", "paid")}
        for group in ("billing", "secret"):
            wanted = {TopicPartition(name, 0): (topic_id, 0) for name, topic_id in topics.items()}
            await client.groups.commit(group, wanted)
    await change(cluster, grant=["allow user:alice group billing", "allow user:alice describe orders"])
    async with cluster.client((await token(cluster, "alice")).text) as alice:
        assert [(each.group, each.topic) for each in await alice.groups.lags(limit=1)] == [("billing", "orders")]
        assert await alice.groups.lags(after="billing", limit=1) == []
        with pytest.raises(Unauthorized, match="does not have the operation 'cluster': ask an administrator"):
            await alice.describe_brokers()
        with pytest.raises(Unauthorized):
            await alice.list_connections()


@in_cluster("a:1", **RULES)
async def test_the_time_of_the_cluster_needs_a_token_and_no_right(cluster: Cluster) -> None:
    """It is the store's, which is also the one that delays count by."""
    async with cluster.client((await token(cluster, "alice")).text) as alice:
        found = await alice.cluster_time()
        assert found is not None
        store_us = EPOCH_US + round(asyncio.get_running_loop().time() * 1e6)
        assert abs(found - datetime_of(store_us)) < timedelta(seconds=2)
    async with cluster.client("wrong") as stranger:
        with pytest.raises(Unauthenticated):
            await stranger.cluster_time()


@in_cluster("a:1", "b:1")
async def test_brokers_say_what_they_are(cluster: Cluster) -> None:
    async with cluster.client() as client:
        found = {each.address: each for each in await client.describe_brokers()}
        assert found.keys() == {"a:1", "b:1"}
        assert sorted(bundle for each in found.values() for bundle in each.bundles) == [0, 1, 2]
        for each in found.values():
            assert each.version == cluster.brokers["a:1"].version
            assert each.started is not None
            assert each.settings["heartbeat_interval_ms"] == "500"
            assert not each.trouble


@in_cluster("a:1", "b:1")
async def test_a_broker_of_an_earlier_release_is_named(cluster: Cluster) -> None:
    async def no_such_call(request: object) -> pb.DescribeBrokerResponse:
        raise error_from_status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!", (), "b:1")

    for name in ("describe_broker", "list_lags", "list_connections"):
        setattr(cluster.brokers["b:1"].service, name, no_such_call)
    async with cluster.client() as client:
        found = {each.address: each for each in await client.describe_brokers()}
        assert found["a:1"].version
        assert "its release is older and has no such call" in found["b:1"].trouble
        with pytest.raises(InvalidRequest, match=r"b:1 .* its release is older and has no such call"):
            await client.groups.lags()
        with pytest.raises(InvalidRequest, match=r"b:1 .* its release is older and has no such call"):
            await client.list_connections()


@in_cluster("a:1")
async def test_requests_cannot_make_looks_at_lags_a_load(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    async def slow(partitions_max: int) -> list[GroupLag]:
        nonlocal looks
        looks += 1
        await asyncio.sleep(2)
        return []

    monkeypatch.setattr(cluster.brokers["a:1"].groups, "lags", slow)
    line = cluster.line("a:1")
    for _ in range(40):
        await asyncio.gather(*(line.list_lags(pb.ListLagsRequest()) for _ in range(5)))
        await asyncio.sleep(1)
    assert looks == 2, "each took two seconds, so at least twenty pass between them"


@in_cluster("a:1")
async def test_requests_that_are_cancelled_begin_no_look_after_the_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def slow(partitions_max: int) -> list[GroupLag]:
        nonlocal looks
        looks += 1
        await asyncio.sleep(2)
        return [GroupLag("billing", "orders", 0, 5, 1)]

    monkeypatch.setattr(cluster.brokers["a:1"].groups, "lags", slow)
    line = cluster.line("a:1")
    for _ in range(20):
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await line.list_lags(pb.ListLagsRequest())
        await asyncio.sleep(0.5)
    assert looks == 1, "it took two seconds, whether a caller waited or not"
    assert [info.records for info in (await line.list_lags(pb.ListLagsRequest())).lags] == [5]


@in_cluster("a:1", **RULES)
async def test_a_page_of_a_caller_without_rights_costs_few_lists(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each list sorts the names of all topics, so one a thousand of them would cost the square of their number."""
    monkeypatch.setattr("ledgermq_broker.access.guards.own.LISTED_AT_ONCE", 1)
    root = (await token(cluster, "root")).text
    for number in range(30):
        await cluster.create(f"hidden.{number:02}", 1, token=root)
    lists, service = 0, cluster.brokers["a:1"].service
    listed = service.describe_topics

    async def counted(request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        nonlocal lists
        lists += not request.topics
        return await listed(request)

    monkeypatch.setattr(service, "describe_topics", counted)
    alice = await token(cluster, "alice")
    assert await pages(cluster.line("a:1", alice.text), 1) == [[]]
    assert lists == 4, "1, 4 and 16 of them, and the rest"
