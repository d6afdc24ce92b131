"""Tools of the Kafka protocol list and delete share groups, and members hear of new partitions; in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import delete_groups_request as dg
from ledgermq_broker.kafka.wire.generated import list_groups_request as lg
from ledgermq_broker.kafka.wire.messages import DELETE_GROUPS, LIST_GROUPS
from ledgermq_ledger import keys
from tests.broker.access import RULES, change
from tests.broker.kafka_members import KafkaMember
from tests.broker.kafka_sharers import Sharer, SharerLine
from tests.broker.kafka_world import KafkaClient, KafkaCluster, in_kafka_cluster
from tests.broker.test_kafka_identity import proven, topic
from tests.broker.test_kafka_share_offsets import BUNDLES, EARLIEST, PARTITIONS, Tool, worked, written

EMPTY, STABLE = "Empty", "Stable"


async def listed(client: KafkaClient, version: int = 5, **filters: Any) -> list[tuple[str, str, str]]:
    """Name, type and state of each group that one broker lists."""
    answer = await client.call(LIST_GROUPS, version, lg.ListGroupsRequest(**filters))
    assert answer.error_code == 0
    return [(one.group_id, one.group_type, one.group_state) for one in answer.groups]


async def listed_by_all(cluster: KafkaCluster, **filters: Any) -> list[tuple[str, str, str]]:
    return [one for address in cluster.brokers for one in await listed(cluster.connect(address), **filters)]


async def deleted(tool: Sharer, *names: str) -> list[int]:
    answer = await tool.call(DELETE_GROUPS, 2, dg.DeleteGroupsRequest(list(names)))
    assert len(answer.results) == len(set(names))
    return [one.error_code for one in answer.results]


@in_kafka_cluster("a:1", "b:1", "c:1", **EARLIEST, **BUNDLES)
async def test_an_empty_share_group_is_listed_by_its_coordinator_alone(cluster: KafkaCluster) -> None:
    await written(cluster)
    tool = await worked(cluster)
    assert await listed_by_all(cluster) == [("g", "share", EMPTY)]
    assert tool.client is None
    await tool.shown()
    assert tool.client is not None
    client = tool.client
    assert await listed(client, types_filter=["Share"]) == [("g", "share", EMPTY)]
    assert await listed(client, types_filter=["share"], states_filter=["empty", "dead"]) == [("g", "share", EMPTY)]
    assert await listed(client, types_filter=["consumer"]) == []
    assert await listed(client, states_filter=["Stable"]) == []
    assert await listed(client, version=4) == [], "such a client would take it for a consumer group"
    member = await Sharer(cluster).enter()
    assert await listed_by_all(cluster) == [("g", "share", STABLE)]
    await member.beat(member_epoch=-1)
    assert await listed_by_all(cluster) == [("g", "share", EMPTY)]


@in_kafka_cluster("a:1", "b:1", "c:1", **EARLIEST, **BUNDLES)
async def test_an_empty_share_group_is_deleted_at_all_owners(cluster: KafkaCluster) -> None:
    await written(cluster)
    tool = await worked(cluster)
    first, other = await deleted(tool, "g", "none", "g")
    assert first == 0
    assert other in (Code.GROUP_ID_NOT_FOUND, Code.NOT_COORDINATOR)
    assert await listed_by_all(cluster) == []
    assert await deleted(tool, "g") == [Code.GROUP_ID_NOT_FOUND]
    member = await Sharer(cluster).enter()
    for number in range(PARTITIONS):
        line = await member.line(number)
        assert {one.offset for one in await line.fetch(number) if one.partition == number} == set(range(5))


@in_kafka_cluster("a:1", "b:1", **EARLIEST, **BUNDLES)
async def test_a_share_group_with_members_stays(cluster: KafkaCluster) -> None:
    await written(cluster)
    tool = await worked(cluster)
    member = await Sharer(cluster).enter()
    assert await deleted(tool, "g") == [Code.NON_EMPTY_GROUP]
    assert await tool.offsets() == {("t", number): number for number in range(PARTITIONS)}
    await member.beat(member_epoch=-1)
    assert await deleted(tool, "g") == [0]
    member = await Sharer(cluster).enter()
    assert await deleted(tool, "g") == [Code.NON_EMPTY_GROUP], "it has not begun anywhere"


@in_kafka_cluster("a:1", **EARLIEST, **BUNDLES)
async def test_a_name_that_is_a_group_of_each_kind_is_not_deleted(cluster: KafkaCluster) -> None:
    await written(cluster)
    tool = await worked(cluster)
    consumer = KafkaMember(cluster, "g", ["t"])
    await consumer.enter()
    assert await consumer.commit(("t", 0, 3)) == [0]
    await consumer.leave()
    assert await deleted(tool, "g") == [Code.INVALID_GROUP_ID]
    assert sorted(await listed_by_all(cluster)) == [("g", "classic", EMPTY), ("g", "share", EMPTY)]
    line = cluster.line("a:1")
    await line.delete_group(pb.DeleteGroupRequest(group="g"))
    assert await deleted(tool, "g") == [0]
    assert await listed_by_all(cluster) == []


@in_kafka_cluster("a:1", "b:1", "c:1", **EARLIEST, **BUNDLES)
async def test_groups_are_listed_and_deleted_while_a_takeover_goes_on(cluster: KafkaCluster) -> None:
    """A share group is deleted as a whole, so it waits for the owner; a consumer group does not."""
    await written(cluster)
    opened = {address: broker.ownership.terms.opened for address, broker in cluster.brokers.items()}
    here = next(address for address in opened if keys.METADATA_BUNDLE in opened[address])
    victim, successor = (address for address in opened if address != here)
    assert opened[victim]

    async def coordinated_here(prefix: str) -> str:
        for number in range(100):
            request = pb.FindCoordinatorRequest(group=f"{prefix}{number}")
            if (await cluster.line(here).find_coordinator(request)).address == here:
                return request.group
        raise AssertionError

    plain, shared, none = [await coordinated_here(prefix) for prefix in ("plain", "shared", "none")]
    consumer = KafkaMember(cluster, plain, ["t"])
    await consumer.enter()
    assert await consumer.commit(("t", 0, 3)) == [0]
    await consumer.leave()
    await worked(cluster, shared)
    everything = [(plain, "classic", EMPTY), (shared, "share", EMPTY)]
    client = cluster.connect(here)
    assert sorted(await listed(client)) == everything
    cluster.views[successor].pause()
    await cluster.stop(victim, graceful=False)
    tool, one = Tool(cluster, shared), Tool(cluster, shared)
    tool.client, one.client = cluster.connect(here), cluster.connect(here)
    share = lg.ListGroupsRequest(types_filter=["share"])
    found, shares, codes, code = await asyncio.gather(
        listed(client),
        cluster.connect(here).call(LIST_GROUPS, 5, share),
        deleted(tool, plain, shared, none),
        deleted(one, shared),
    )
    waits = Code.COORDINATOR_LOAD_IN_PROGRESS
    assert sorted(found) == everything
    assert shares.error_code == waits, "such a list is whole"
    assert (codes, code) == ([0, waits, waits], [waits])
    cluster.views[successor].resume()
    await cluster.settled()
    assert await deleted(tool, plain, shared) == [Code.GROUP_ID_NOT_FOUND, 0]
    assert await listed(client) == []


@in_kafka_cluster("a:1", **RULES, **EARLIEST, **BUNDLES)
async def test_lists_and_deletion_show_what_the_caller_may_see(cluster: KafkaCluster) -> None:
    await topic(cluster, "t")
    await change(cluster, grant=["allow user:ann group g", "allow user:ann consume t"])
    member = Sharer(cluster)
    member.client = await proven(cluster, "ann")
    await member.beat()
    assert (await SharerLine(member, await proven(cluster, "ann")).ask(0)).error_code == 0
    await member.beat(member_epoch=-1)
    bob = await proven(cluster, "bob")
    assert await listed(bob) == []
    tool = Tool(cluster)
    tool.client = bob
    assert await deleted(tool, "g") == [Code.GROUP_AUTHORIZATION_FAILED]
    await change(cluster, grant=["allow user:bob group g"])
    assert await listed(bob) == [], "it is read where he may see no topic"
    await change(cluster, grant=["allow user:bob describe t"])
    assert await listed(bob) == [("g", "share", EMPTY)]
    assert await deleted(tool, "g") == [Code.TOPIC_AUTHORIZATION_FAILED]
    tool.client = await proven(cluster, "ann")
    assert await deleted(tool, "g") == [0]
    assert await listed(bob) == []


@in_kafka_cluster("a:1", "b:1", **BUNDLES)
async def test_a_member_hears_of_topics_as_they_are_though_most_heartbeats_ask_for_none(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    member = await Sharer(cluster, topics=["t", "later"]).enter()
    coordinator = member.client
    assert coordinator is not None
    calls: list[pb.DescribeTopicsRequest] = []
    service = cluster.brokers[coordinator.address].service
    whole = service.describe_topics

    async def counted(request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        calls.append(request)
        return await whole(request)

    service.describe_topics = counted  # type: ignore[method-assign]
    for _ in range(10):
        assert (await member.beat()).assignment is None
    assert len(calls) == 0
    await cluster.line("a:1").alter_topic(pb.AlterTopicRequest(name="t", partitions=3))
    await cluster.brokers[coordinator.address].metadata.catch_up()
    assert (await member.beat()).assignment is not None
    assert sorted(member.assigned) == [0, 1, 2]
    await cluster.create("later", partitions=2)
    await cluster.brokers[coordinator.address].metadata.catch_up()
    await member.beat()
    assert sorted(member.assigned) == [0, 0, 1, 1, 2]
    count = len(calls)
    assert count == 2
    assert (await member.beat(member_epoch=0, says_all=True)).assignment is not None
    assert len(calls) == count + 1, "a member that says everything is looked at anew"


@in_kafka_cluster("a:1", **RULES, **BUNDLES)
async def test_a_member_that_may_no_longer_see_its_topic_hears_of_it_at_its_next_heartbeat(
    cluster: KafkaCluster,
) -> None:
    await topic(cluster, "t")
    await change(cluster, grant=["allow user:ann group g", "allow user:bob group g"])
    may_read = await change(cluster, grant=["allow user:ann consume t"])
    member = Sharer(cluster)
    member.client = await proven(cluster, "ann")
    assert (await member.beat()).error_code == 0
    assert (await member.beat()).error_code == 0
    assert member.assigned
    member.client = await proven(cluster, "bob")
    assert (await member.beat()).error_code == Code.TOPIC_AUTHORIZATION_FAILED, "what ann may see is not shown to him"
    member.client = await proven(cluster, "ann")
    assert (await member.beat()).error_code == 0
    await change(cluster, revoke=may_read)
    assert (await member.beat()).error_code == Code.TOPIC_AUTHORIZATION_FAILED
