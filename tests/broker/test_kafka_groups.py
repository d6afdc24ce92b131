"""Groups of clients of the Kafka protocol, in virtual time and byte by byte."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import GroupNotEmpty, InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.groups.offsets_topic import partition_of
from ledgermq_broker.kafka.handlers.groups.names import inside, outside
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import delete_groups_request as dg
from ledgermq_broker.kafka.wire.generated import describe_groups_request as de
from ledgermq_broker.kafka.wire.generated import list_groups_request as lg
from ledgermq_broker.kafka.wire.generated import offset_delete_request as od
from ledgermq_broker.kafka.wire.messages import DELETE_GROUPS, DESCRIBE_GROUPS, JOIN_GROUP, LIST_GROUPS, OFFSET_DELETE
from ledgermq_offsets.classic.consumer_protocol import assigned_partitions
from tests.broker.groups import Outsider, ask, committed_offset, coordinator_of
from tests.broker.kafka_members import KafkaMember, coordinator, enter_together
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster
from tests.waiting import until


async def describe(cluster: KafkaCluster, group: str) -> pb.GroupInfo:
    return (await ask(cluster, lambda line: line.describe_group(pb.DescribeGroupRequest(group=inside(group))))).group


async def join_natively(cluster: KafkaCluster, group: str, topic: str = "t") -> pb.GroupHeartbeatResponse:
    request = pb.GroupHeartbeatRequest(
        group=group, member_id="native", step=pb.JOIN, subscription=pb.GroupSubscription(topics=[topic])
    )
    return await ask(cluster, lambda line: line.group_heartbeat(request))


# Members


@in_kafka_cluster("a:1", "b:1", "c:1")
async def test_each_broker_names_the_coordinator_and_only_that_one_serves(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    for number in range(6):
        group = f"g{number}"
        lines = [await coordinator(cluster, group, at) for at in cluster.brokers]
        owner = await coordinator_of(cluster, group)
        request = KafkaMember(cluster, group).join_request()
        for at in cluster.brokers:
            code = (await cluster.connect(at).call(JOIN_GROUP, 9, request)).error_code
            assert code == (Code.MEMBER_ID_REQUIRED if at == owner else Code.NOT_COORDINATOR)
        for line in lines:
            assert (await line.call(JOIN_GROUP, 9, request)).error_code == Code.MEMBER_ID_REQUIRED


@in_kafka_cluster("a:1")
async def test_two_members_share_and_one_leaves(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    first, second = KafkaMember(cluster, "g"), KafkaMember(cluster, "g")
    await enter_together(first, second)
    assert first.generation == second.generation == 1
    assert first.leads != second.leads
    shares = [assigned_partitions(member.assigned)["t"] for member in (first, second)]
    assert sorted(shares) == [[0], [1]]
    assert [await first.heartbeat(), await second.heartbeat()] == [0, 0]
    assert await second.leave() == 0
    assert await first.heartbeat() == Code.REBALANCE_IN_PROGRESS
    await first.enter()
    assert (first.generation, first.leads) == (2, True)
    assert await second.heartbeat() == Code.UNKNOWN_MEMBER_ID


@in_kafka_cluster("a:1")
async def test_a_silent_member_is_removed_after_its_session(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    first, second = KafkaMember(cluster, "g"), KafkaMember(cluster, "g", session_timeout_ms=20_000)
    await enter_together(first, second)
    await asyncio.sleep(5.0)
    assert await second.heartbeat() == 0
    await asyncio.sleep(1.5)
    assert await second.heartbeat() == Code.REBALANCE_IN_PROGRESS
    assert await first.heartbeat() == Code.UNKNOWN_MEMBER_ID
    await second.enter()
    assert (second.leads, second.generation) == (True, 2)


@in_kafka_cluster("a:1")
async def test_a_held_join_outlives_its_session_and_a_lost_connection_removes_no_member(cluster: KafkaCluster) -> None:
    """Otherwise a member whose Join is held longer than its session comes and goes for ever."""
    await cluster.create("t")
    first = KafkaMember(cluster, "g", rebalance_timeout_ms=60_000, session_timeout_ms=60_000)
    await first.enter()
    second = KafkaMember(cluster, "g", rebalance_timeout_ms=60_000)
    joining = asyncio.create_task(second.join())
    await asyncio.sleep(20.0)  # three sessions of the second
    assert not joining.done()
    await until(lambda: bool(second.id))
    assert second.client is not None
    await second.client.close()  # the connection breaks; the client comes again with its id
    again = KafkaMember(cluster, "g")
    again.id = second.id
    joined = asyncio.create_task(again.join())
    await asyncio.sleep(0.1)
    assert await first.heartbeat() == Code.REBALANCE_IN_PROGRESS
    assert await first.join() == Code.NONE
    assert await joined == Code.NONE
    assert first.generation == again.generation == 2
    assert sorted(first.members) == sorted([first.id, again.id])
    joining.cancel()


@in_kafka_cluster("a:1")
async def test_a_static_member_comes_back_without_a_rebalance_and_its_former_process_is_fenced(
    cluster: KafkaCluster,
) -> None:
    await cluster.create("t")
    first = KafkaMember(cluster, "g", group_instance_id="one")
    second = KafkaMember(cluster, "g", group_instance_id="two")
    await enter_together(first, second)
    follower = second if first.leads else first
    again = KafkaMember(cluster, "g", group_instance_id=follower.settings["group_instance_id"])
    assert await again.join() == Code.NONE
    assert again.generation == follower.generation
    assert await again.sync() == Code.NONE
    assert again.assigned == follower.assigned
    assert await follower.heartbeat() == Code.FENCED_INSTANCE_ID
    assert await follower.commit(("t", 0, 0)) == [Code.FENCED_INSTANCE_ID]
    assert await (first if first.leads else second).heartbeat() == 0


@in_kafka_cluster("a:1")
async def test_a_subscription_of_half_a_mebibyte_joins_and_a_larger_one_gets_a_code(cluster: KafkaCluster) -> None:
    """Streams sends more than our own members may."""
    await cluster.create("t")
    large = [f"{n:0200d}" for n in range(2600)]
    await KafkaMember(cluster, "large", large).enter()
    too_large = KafkaMember(cluster, "too-large", large * 3)
    assert await too_large.join() == Code.GROUP_MAX_SIZE_REACHED


# Both kinds


@in_kafka_cluster("a:1")
async def test_members_of_both_kinds_are_refused_in_one_group(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await join_natively(cluster, "native")
    classic = KafkaMember(cluster, "native")
    assert await classic.join() == Code.INCONSISTENT_GROUP_PROTOCOL
    assert await classic.commit(("t", 0, 0)) == [Code.INCONSISTENT_GROUP_PROTOCOL]
    member = KafkaMember(cluster, "classic")
    await member.enter()
    with pytest.raises(InvalidRequest, match="members that use the Kafka protocol"):
        await join_natively(cluster, "classic")
    reset = pb.ResetOffsetsRequest(group="classic", resets=[pb.OffsetReset(topic="t")])
    with pytest.raises(GroupNotEmpty):
        await ask(cluster, lambda line: line.reset_offsets(reset))
    with pytest.raises(GroupNotEmpty):
        await Outsider(cluster, "classic").commit(("t", 0, 0))
    with pytest.raises(GroupNotEmpty):
        await ask(cluster, lambda line: line.delete_group(pb.DeleteGroupRequest(group="classic")))
    assert await member.leave() == 0
    await join_natively(cluster, "classic")  # an empty group takes either kind
    assert await member.join() == Code.INCONSISTENT_GROUP_PROTOCOL


@in_kafka_cluster("a:1")
async def test_both_kinds_read_what_either_committed(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await cluster.produce("t", 0, *[b"x"] * 20)
    member = KafkaMember(cluster, "g")
    await member.enter()
    note = "n" * 4096
    assert await member.commit(("t", 0, 7), metadata=note) == [0]
    assert await committed_offset(cluster, "g", "t", 0) == 7
    assert (await member.committed()) == (7, note, 0)
    assert await member.commit(("t", 0, 8), metadata=note + "n") == [Code.OFFSET_METADATA_TOO_LARGE]
    assert await member.leave() == 0
    outsider = Outsider(cluster, "g")
    assert await outsider.commit(("t", 0, 11)) == [""]
    for version in (1, 5, 7, 8, 9):
        assert await member.committed(version=version) == (11, "", 0)
    assert await member.committed("t", 1) == (-1, "", 0)
    assert await member.committed("nothing", 3) == (-1, "", 0)
    simple = KafkaMember(cluster, "g")
    assert await simple.commit(("t", 0, 3)) == [0]  # without membership
    assert await committed_offset(cluster, "g", "t", 0) == 3


# Commits


@in_kafka_cluster("a:1")
async def test_commits_go_back_and_beyond_the_end_and_fence_what_came_before(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    member = KafkaMember(cluster, "g")
    await member.enter()
    assert await member.commit(("t", 0, 10)) == [0]  # into an empty topic
    epoch = (await describe(cluster, "g")).committed[0].epoch
    assert await member.commit(("t", 0, 4)) == [0]
    found = (await describe(cluster, "g")).committed[0]
    assert found.offset == 4
    assert found.epoch > epoch, "going back is a reset: no earlier commit may come after it"
    assert await member.commit(("nothing", 0, 1), ("t", 9, 1), ("t", -1, 1), ("t", 1, -5), ("t", 1, 2)) == [
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.INVALID_REQUEST,
        Code.NONE,
    ]


@in_kafka_cluster("a:1")
async def test_a_rebalance_takes_commits_of_the_old_generation_until_all_have_joined(cluster: KafkaCluster) -> None:
    """Codes that a client does not expect drop its partitions."""
    await cluster.create("t")
    first, second = KafkaMember(cluster, "g"), KafkaMember(cluster, "g")
    await first.enter()
    joining = asyncio.create_task(second.join())
    await asyncio.sleep(0.5)
    assert await first.heartbeat() == Code.REBALANCE_IN_PROGRESS
    assert await first.commit(("t", 0, 1)) == [0]
    old = first.generation
    assert await first.join() == 0
    assert await joining == 0
    assert await first.commit(("t", 0, 2)) == [Code.REBALANCE_IN_PROGRESS]
    first.generation = old
    assert await first.commit(("t", 0, 2)) == [Code.ILLEGAL_GENERATION]
    stranger = KafkaMember(cluster, "g")
    assert await stranger.commit(("t", 0, 2)) == [Code.UNKNOWN_MEMBER_ID]
    assert (await first.committed())[0] == 1


@in_kafka_cluster("a:1", offsets_retention_ms=600_000)
async def test_commits_of_a_living_group_do_not_expire_and_those_of_one_that_left_do(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    member = KafkaMember(cluster, "g", session_timeout_ms=300_000)
    await member.enter()
    assert await member.commit(("t", 0, 0)) == [0]
    for _ in range(6):
        await asyncio.sleep(200)
        assert await member.heartbeat() == 0
    assert (await member.committed())[0] == 0
    assert await member.leave() == 0
    await asyncio.sleep(300)
    assert (await member.committed())[0] == 0, "its retention begins when the last member leaves"
    await asyncio.sleep(300 + 200)
    assert (await member.committed())[0] == -1


@in_kafka_cluster("a:1")
async def test_offsets_of_a_deleted_topic_are_gone(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    member = KafkaMember(cluster, "g")
    await member.enter()
    assert await member.commit(("t", 0, 5)) == [0]
    await ask(cluster, lambda line: line.delete_topic(pb.DeleteTopicRequest(name="t")))
    assert await member.commit(("t", 0, 6)) == [Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert await member.committed() == (-1, "", 0)
    assert await member.heartbeat() == 0
    await cluster.create("t")
    assert await member.committed() == (-1, "", 0)


# Takeover


@in_kafka_cluster("a:1", "b:1", "c:1")
async def test_members_go_on_when_their_coordinator_dies(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    first, second = (KafkaMember(cluster, "g", session_timeout_ms=20_000) for _ in range(2))
    await enter_together(first, second)
    assert await first.commit(("t", 0, 3)) == [0]
    for _ in range(2):
        await cluster.stop(await coordinator_of(cluster, "g"), graceful=False)
        assert [await first.heartbeat(), await second.heartbeat()] == [0, 0]
        assert (await first.committed())[0] == 3
        assert await second.commit(("t", 1, 4)) == [0]
    late = KafkaMember(cluster, "g")
    joining = asyncio.create_task(late.join())
    await asyncio.sleep(0.5)
    assert await first.heartbeat() == Code.REBALANCE_IN_PROGRESS
    assert await asyncio.gather(first.join(), second.join()) == [0, 0]
    assert await joining == 0
    assert first.generation == second.generation == late.generation > 1


@in_kafka_cluster("a:1", "b:1", "c:1")
async def test_a_held_join_is_answered_when_its_coordinator_leaves(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    first = KafkaMember(cluster, "g", session_timeout_ms=60_000)
    await first.enter()
    second = KafkaMember(cluster, "g")
    line = await coordinator(cluster, "g")
    request = second.join_request()
    request.member_id = (await line.call(JOIN_GROUP, 9, request)).member_id
    held = asyncio.create_task(line.call(JOIN_GROUP, 9, request))
    await asyncio.sleep(1.0)
    assert not held.done()
    owner = await coordinator_of(cluster, "g")
    others = [address for address in cluster.brokers if address != owner]
    await cluster.line(owner).drain_broker(pb.DrainBrokerRequest(address=owner))
    assert (await asyncio.wait_for(held, 20.0)).error_code == Code.NOT_COORDINATOR
    assert await first.heartbeat() in (0, Code.REBALANCE_IN_PROGRESS)
    assert await coordinator_of(cluster, "g") in others


# Tools


@in_kafka_cluster("a:1", "b:1")
async def test_tools_see_groups_of_both_kinds(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    member = KafkaMember(cluster, "classic")
    await member.enter()
    assert await member.commit(("t", 0, 0)) == [0]
    await join_natively(cluster, "native")
    assert await KafkaMember(cluster, "simple").commit(("t", 0, 0)) == [0]
    found = {}
    for at in cluster.brokers:
        answer = await cluster.connect(at).call(LIST_GROUPS, 5, lg.ListGroupsRequest())
        assert answer.error_code == 0
        for one in answer.groups:
            assert one.group_id not in found, "each group has one coordinator"
            found[one.group_id] = (one.protocol_type, one.group_state, one.group_type)
    assert found["classic"] == ("consumer", "Stable", "classic")
    assert found["simple"] == ("", "Empty", "classic")
    assert found["native"][::2] == ("consumer", "consumer")
    line = await coordinator(cluster, "classic")
    request = de.DescribeGroupsRequest(groups=["classic"])
    [shown] = (await line.call(DESCRIBE_GROUPS, 6, request)).groups
    assert (shown.group_state, shown.protocol_type, shown.protocol_data) == ("Stable", "consumer", "range")
    assert [(one.member_id, one.client_id) for one in shown.members] == [(member.id, "test")]
    assert assigned_partitions(bytes(shown.members[0].member_assignment)) == {"t": [0]}
    info = await describe(cluster, "classic")
    assert (info.state, info.member_count, info.assignor) == (pb.STABLE, 1, "range")
    assert [(given.topic, given.partition) for given in info.members[0].owned] == [("t", 0)]
    line = await coordinator(cluster, "native")
    [shown] = (await line.call(DESCRIBE_GROUPS, 6, de.DescribeGroupsRequest(groups=["native"]))).groups
    assert assigned_partitions(bytes(shown.members[0].member_assignment)) == {"t": [0, 1]}
    [gone] = (await line.call(DESCRIBE_GROUPS, 6, de.DescribeGroupsRequest(groups=["none"]))).groups
    assert gone.error_code in (Code.GROUP_ID_NOT_FOUND, Code.NOT_COORDINATOR)


@in_kafka_cluster("a:1")
async def test_groups_and_offsets_are_deleted_when_no_member_needs_them(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    member = KafkaMember(cluster, "g")
    await member.enter()
    assert await member.commit(("t", 0, 1), ("t", 1, 2)) == [0, 0]
    line = await coordinator(cluster, "g")

    async def delete_offset() -> tuple[int, int]:
        part = od.OffsetDeleteRequestPartition(partition_index=0)
        request = od.OffsetDeleteRequest("g", topics=[od.OffsetDeleteRequestTopic("t", partitions=[part])])
        answer = await line.call(OFFSET_DELETE, 0, request)
        return answer.error_code, answer.topics[0].partitions[0].error_code

    async def delete(*groups: str) -> list[int]:
        answer = await line.call(DELETE_GROUPS, 2, dg.DeleteGroupsRequest(groups_names=list(groups)))
        return [result.error_code for result in answer.results]

    assert await delete_offset() == (0, Code.GROUP_SUBSCRIBED_TO_TOPIC)
    assert await delete("g", "none") == [Code.NON_EMPTY_GROUP, Code.GROUP_ID_NOT_FOUND]
    assert await member.leave() == 0
    assert await delete_offset() == (0, 0)
    assert [(await member.committed("t", n))[0] for n in range(2)] == [-1, 2]
    assert await delete("g") == [0]
    assert [(await member.committed("t", n))[0] for n in range(2)] == [-1, -1]
    assert await member.heartbeat() == Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("name", ["a b", "flink:job/1", "Größe", "__kafka.x", "x" * 249])
def test_any_text_is_a_group_id_and_no_two_are_one(name: str) -> None:
    assert outside(inside(name)) == name
    assert inside(name) == name or inside(inside(name)) != inside(name)
    assert 0 <= partition_of(inside(name), 7) < 7


@in_kafka_cluster("a:1")
async def test_a_group_whose_id_has_spaces_works_and_one_without_id_is_refused(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    member = KafkaMember(cluster, "a group: of Flink")
    await member.enter()
    assert await member.commit(("t", 0, 0)) == [0]
    listed = (await cluster.connect("a:1").call(LIST_GROUPS, 5, lg.ListGroupsRequest())).groups
    assert [one.group_id for one in listed] == ["a group: of Flink"]
    nameless = KafkaMember(cluster, "").join_request()
    assert (await cluster.connect("a:1").call(JOIN_GROUP, 9, nameless)).error_code == Code.INVALID_GROUP_ID


@in_kafka_cluster("a:1")
async def test_old_clients_join_without_an_id(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    member = KafkaMember(cluster, "g")
    assert await member.join(version=1) == 0
    assert member.id
    assert await member.sync() == 0
    assert await member.heartbeat() == 0
