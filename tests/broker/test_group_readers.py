"""Which groups read a topic, by one call of each coordinator's partition, and what a trace makes of it."""

from __future__ import annotations

import pytest

import ledgermq
from ledgermq.client.groups.admin.group_admin import listed_groups
from ledgermq.client.operating.tracing import GroupRead
from ledgermq.errors import Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger import keys
from tests.broker.access import RULES, change, token
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.groups import Member, Outsider
from tests.broker.kafka_members import KafkaMember
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster
from tests.waiting import until

Found = dict[str, tuple[list[tuple[int, int]], bool]]


async def readers(client: ledgermq.Client, topic: str) -> Found:
    """([(partition, offset)], whether a member names the topic) by group."""
    found = await listed_groups(client.groups._connections, topic)
    assert all(is_of_topic for _, is_of_topic in found)
    return {info.group: ([(at.partition, at.offset) for at in info.committed], info.subscribed) for info, _ in found}


@in_cluster("a:1", "b:1")
async def test_groups_that_read_a_topic_come_with_their_offsets_of_it(cluster: Cluster) -> None:
    for name in ("orders", "mails"):
        await cluster.create(name, 3)
        await cluster.produce(name, 0, b"1", b"2")
    await Outsider(cluster, "billing").commit(("orders", 0, 1), ("orders", 2, 0), ("mails", 0, 2))
    await Outsider(cluster, "mailer").commit(("mails", 0, 2))
    await Member(cluster, "audit", "m", ["orders"]).join()
    async with cluster.client() as client:
        assert await readers(client, "orders") == {"billing": ([(0, 1), (2, 0)], False), "audit": ([], True)}
        assert await readers(client, "mails") == {"billing": ([(0, 2)], False), "mailer": ([(0, 2)], False)}
        assert await readers(client, "absent") == {}
        assert [each.name for each in await client.groups.list()] == ["audit", "billing", "mailer"]
        for group, (offsets, _) in (await readers(client, "orders")).items():
            described = (await client.groups.describe(group)).committed
            assert offsets == [
                (at.partition, each.stored.offset) for at, each in described.items() if at.topic == "orders"
            ]


@in_kafka_cluster("a:1")
async def test_members_that_speak_the_kafka_protocol_read_what_they_name(cluster: KafkaCluster) -> None:
    for name in ("t", "other"):
        await cluster.create(name)
    member = KafkaMember(cluster, "analytics")
    await member.enter()
    async with cluster.client() as client:
        assert await readers(client, "t") == {"analytics": ([], True)}
        assert await readers(client, "other") == {}
        assert await member.commit(("t", 0, 0)) == [0]
        assert await readers(client, "t") == {"analytics": ([(0, 0)], True)}


@pytest.mark.parametrize("is_old", [False, True], ids=["today", "earlier release"])
def test_a_trace_names_the_groups_that_have_read_a_message(is_old: bool) -> None:
    """A broker of an earlier release lists all groups, without offsets: each is described then."""

    @in_cluster("a:1")
    async def traced(cluster: Cluster) -> None:
        service = cluster.brokers["a:1"].service
        listed, described, calls = service.list_groups, service.describe_group, list[str]()

        async def earlier(request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
            return await listed(pb.ListGroupsRequest(partition=request.partition))

        async def counted(request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse:
            calls.append(request.group)
            return await described(request)

        if is_old:
            service.list_groups = earlier  # type: ignore[method-assign]  # what that broker does
        service.describe_group = counted  # type: ignore[method-assign]  # to count its calls
        await cluster.create("orders", 2)
        await cluster.create("mails", 1)
        await cluster.produce("orders", 0, b"1", b"2", b"3")
        for group, topic, offset in (("behind", "orders", 1), ("beyond", "orders", 2), ("other", "mails", 0)):
            await Outsider(cluster, group).commit((topic, 0, offset))
        await Outsider(cluster, "elsewhere").commit(("orders", 1, 0))
        await Member(cluster, "audit", "m", ["orders"]).join()
        async with cluster.client() as client:
            found = (await client.trace("orders:0:1")).groups
        states = [(each.group, each.state, each.committed) for each in found]
        assert states == [("audit", "not read", None), ("behind", "not read", 1), ("beyond", "read", 2)]
        assert all(isinstance(each, GroupRead) for each in found)
        assert bool(calls) is is_old

    traced()


@in_cluster("a:1")
async def test_offsets_of_a_topic_that_was_made_again_are_not_those_of_its_messages(cluster: Cluster) -> None:
    await cluster.create("orders", 1)
    await cluster.produce("orders", 0, b"1", b"2")
    await Outsider(cluster, "billing").commit(("orders", 0, 2))
    await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name="orders", now=True))
    async with cluster.client() as client:

        async def is_made() -> bool:
            try:
                return bool(await client.create_topic("orders", 1))
            except ledgermq.errors.LedgerMQError:
                return False

        await until(is_made, every_s=1)
        await cluster.produce("orders", 0, b"3")
        assert (await client.trace("orders:0:0")).groups == []


@in_cluster("a:1", **RULES)
async def test_the_list_shows_groups_and_topics_that_the_caller_may_see(cluster: Cluster) -> None:
    root, alice = (await token(cluster, "root")).text, (await token(cluster, "alice")).text
    await cluster.create("orders", 1, token=root)
    await change(
        cluster,
        grant=["allow user:alice describe orders", "allow user:alice group mine", "allow user:alice consume orders"],
    )
    async with cluster.client(root) as client:
        topic_id = (await client.describe_topic("orders")).topic_id
        for group in ("mine", "theirs"):
            await client.groups.commit(group, {ledgermq.TopicPartition("orders", 0): (topic_id, 0)})
    async with cluster.client(alice) as client:
        assert await readers(client, "orders") == {"mine": ([(0, 0)], False)}
        with pytest.raises(Unauthorized, match=r"secret"):
            await readers(client, "secret")


@in_cluster("a:1", **RULES)
async def test_names_of_topics_are_those_that_the_caller_may_see(cluster: Cluster) -> None:
    root, alice = (await token(cluster, "root")).text, (await token(cluster, "alice")).text
    made = {name: await cluster.create(name, 3, token=root) for name in ("a.1", "a.2", "b.1", "gone")}
    await cluster.line("a:1", root).delete_topic(pb.DeleteTopicRequest(name="gone"))
    await change(cluster, grant=["allow user:alice describe a.*"])
    async with cluster.client(root) as client, cluster.client(alice) as hers:
        names = {name: made[name].topic_id for name in ("a.1", "a.2", "b.1")}
        assert await client._admin.topic_names() == names
        assert list(await hers._admin.topic_names()) == ["a.1", "a.2"]
    [first, *_] = (await cluster.line("a:1", root).describe_topics(pb.DescribeTopicsRequest(names_only=True))).topics
    assert (first.name, len(first.partitions)) == ("a.1", 0)
    assert keys.OFFSETS_TOPIC not in names
