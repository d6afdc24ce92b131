"""Who may describe a group sees what is of topics that it may describe, and no other topic's name."""

from __future__ import annotations

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import consumer_group_describe_request as cd
from ledgermq_broker.kafka.wire.generated import describe_groups_request as dg
from ledgermq_broker.kafka.wire.generated import offset_fetch_request as of
from ledgermq_broker.kafka.wire.messages import CONSUMER_GROUP_DESCRIBE, DESCRIBE_GROUPS, OFFSET_FETCH
from tests.broker.access import RULES, change, token
from tests.broker.kafka_consumers import KafkaConsumer, settle
from tests.broker.kafka_producer import SecondProducer
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster
from tests.broker.test_kafka_identity import proven, topic

TOPICS = ("mine", "theirs")
ALL = "produce,consume *", "group *", "transaction *"


async def filled(cluster: KafkaCluster) -> None:
    """A group has a member, a committed offset of each topic, and one that a transaction has staged."""
    for name in TOPICS:
        await topic(cluster, name)
    await change(cluster, grant=[f"allow user:bob {rule}" for rule in ALL])
    client = await proven(cluster, "bob")
    member = KafkaConsumer(cluster, "g", TOPICS)
    member.client = client
    await settle(member)
    assert len(member.owned) == 2
    producer = SecondProducer(cluster, "x", client)
    await producer.init()
    present = {"member_id": member.id, "generation_id": member.generation}
    for name in TOPICS:
        assert await producer.send_offsets("g", 3, name, **present) == 0
    assert await producer.end() == 0
    for name in TOPICS:
        assert await producer.send_offsets("g", 5, name, **present) == 0


def named(group: pb.GroupInfo) -> list[set[str]]:
    """Return the topics of each list of a description."""
    [member] = group.members
    lists = (group.committed, group.pending, member.assigned, member.owned, member.target)
    return [{row.topic for row in rows} for rows in lists] + [set(member.subscription.topics)]


@in_kafka_cluster("a:1", **RULES)
async def test_a_description_of_a_group_shows_only_topics_that_the_caller_may_describe(cluster: KafkaCluster) -> None:
    await filled(cluster)
    await change(cluster, grant=["allow user:ann group g", "allow user:ann describe mine"])
    await change(cluster, grant=["allow user:eve group g"])
    request = pb.DescribeGroupRequest(group="g")
    for user, visible in (("bob", set(TOPICS)), ("ann", {"mine"}), ("eve", set())):
        line = cluster.line("a:1", (await token(cluster, user)).text)
        described = (await line.describe_group(request)).group
        assert named(described) == [visible] * 6, user
        assert described.member_count == 1
        committed = await line.fetch_committed(pb.FetchCommittedRequest(group="g", without_staged=True))
        assert {part.topic for part in committed.partitions} == visible, user
        by_kafka = await proven(cluster, user)
        [found] = (await by_kafka.call(CONSUMER_GROUP_DESCRIBE, 1, cd.ConsumerGroupDescribeRequest(["g"]))).groups
        assert found.error_code == Code.NONE
        [shown] = found.members
        assert set(shown.subscribed_topic_names) == visible, user
        for given in (shown.assignment, shown.target_assignment):
            assert {each.topic_name for each in given.topic_partitions} == visible, user
        [found] = (await by_kafka.call(DESCRIBE_GROUPS, 5, dg.DescribeGroupsRequest(["g"]))).groups
        [shown] = found.members
        for name in TOPICS:
            assert (name.encode() in bytes(shown.member_assignment)) is (name in visible), user
            assert (name.encode() in bytes(shown.member_metadata)) is (name in visible), user
        asked = [of.OffsetFetchRequestGroup("g", topics=None)]
        [found] = (await by_kafka.call(OFFSET_FETCH, 8, of.OffsetFetchRequest(groups=asked))).groups
        assert {each.name for each in found.topics} == visible, user


@in_kafka_cluster("a:1", **RULES)
async def test_a_group_that_the_caller_may_not_see_stays_hidden(cluster: KafkaCluster) -> None:
    await filled(cluster)
    await change(cluster, grant=["allow user:ann describe *"])
    by_kafka = await proven(cluster, "ann")
    [found] = (await by_kafka.call(CONSUMER_GROUP_DESCRIBE, 1, cd.ConsumerGroupDescribeRequest(["g"]))).groups
    assert (found.error_code, found.members) == (Code.GROUP_AUTHORIZATION_FAILED, [])
