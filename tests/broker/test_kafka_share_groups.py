"""Share groups (KIP-932) in virtual time and byte by byte: members, sessions, leases."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.cluster.heartbeat import KAFKA_SHARES
from ledgermq_broker.kafka.handlers.shares.acknowledging import Topic
from ledgermq_broker.kafka.handlers.shares.converting import DELIVERIES_MAX
from ledgermq_broker.kafka.handlers.shares.topics import LOOK_PAUSE_S, TopicNames
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import api_versions_request as av
from ledgermq_broker.kafka.wire.generated import create_partitions_request as cp
from ledgermq_broker.kafka.wire.generated import list_groups_request as lg
from ledgermq_broker.kafka.wire.messages import API_VERSIONS, CREATE_PARTITIONS, LIST_GROUPS, SHARE_FETCH
from tests.broker.access import RULES, change
from tests.broker.kafka_consumers import KafkaConsumer
from tests.broker.kafka_sharers import ACCEPT, GAP, REJECT, RELEASE, Got, Sharer, SharerLine
from tests.broker.kafka_world import KafkaCluster, batch_of, in_kafka_cluster
from tests.broker.test_kafka_identity import proven, topic
from tests.waiting import until

LOCK_S = 30.0


def values(messages: list[Got]) -> list[bytes | None]:
    return [one.value for one in messages]


async def produce(cluster: KafkaCluster, *written: bytes, partition: int = 0) -> None:
    answer = await (await cluster.leader_client("t", partition)).produce("t", partition, batch_of(*written))
    assert answer.error_code == 0, answer


async def shares(cluster: KafkaCluster) -> list[pb.ShareInfo]:
    """What the owner of partition 0 knows of the group."""
    address = await cluster.owner_of("t", 0)
    bundle = cluster.brokers[address].metadata.catalog.topics_by_name["t"].bundles[0]
    answer = await cluster.line(address).list_shares(pb.ListSharesRequest(bundle=bundle, group="g"))
    return [one for one in answer.shares if one.partition == 0]


async def sharer(cluster: KafkaCluster, group: str = "g") -> Sharer:
    return await Sharer(cluster, group).enter()


EARLIEST = {"kafka_share_auto_offset_reset": "earliest"}


# What is offered


@in_kafka_cluster("a:1", "b:1")
async def test_share_groups_are_offered_while_every_broker_serves_them(cluster: KafkaCluster) -> None:
    async def offered() -> tuple[bool, bool]:
        answer = await cluster.connect("a:1").call(API_VERSIONS, 4, av.ApiVersionsRequest("c", "1"))
        keys = {one.api_key for one in answer.api_keys}
        return SHARE_FETCH.key in keys, "share.version" in {one.name for one in answer.finalized_features}

    assert await offered() == (True, True)
    older = cluster.brokers["b:1"].membership
    older.me = replace(older.me, features=tuple(one for one in older.me.features if one != KAFKA_SHARES), release="0.1")
    await until(lambda: bool(cluster.brokers["a:1"].membership.lacking(KAFKA_SHARES)))
    assert await offered() == (False, False)


# Members


@in_kafka_cluster("a:1", "b:1")
async def test_each_member_is_given_all_partitions_and_hears_of_new_ones(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=3)
    first, second = await sharer(cluster), await sharer(cluster)
    assert first.assigned == second.assigned == [0, 1, 2]
    assert (await first.beat()).assignment is None, "nothing has changed"
    wanted = cp.CreatePartitionsRequest(topics=[cp.CreatePartitionsTopic("t", 4, None)], timeout_ms=10_000)
    [made] = (await first.call(CREATE_PARTITIONS, 3, wanted)).results
    assert made.error_code == 0, made

    async def has_grown() -> bool:
        await first.beat()
        return first.assigned == [0, 1, 2, 3]

    await until(has_grown, every_s=0.2)
    shown = await first.shown()
    assert (shown.group_state, sorted(one.member_id for one in shown.members)) == (
        "Stable",
        sorted((first.id, second.id)),
    )
    assert shown.members[0].assignment.topic_partitions[0].topic_name == "t"
    answer = await first.call(LIST_GROUPS, 5, lg.ListGroupsRequest(types_filter=["share"]))
    assert [(one.group_id, one.group_type) for one in answer.groups] == [("g", "share")]
    assert (await second.beat(member_epoch=-1)).member_epoch == -1
    assert [one.member_id for one in (await first.shown()).members] == [first.id]


@in_kafka_cluster("a:1")
async def test_heartbeats_that_mean_nothing_are_refused(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    member = Sharer(cluster)
    for fields, code in (
        ({"group_id": ""}, Code.INVALID_REQUEST),
        ({"member_id": ""}, Code.INVALID_REQUEST),
        ({"member_epoch": -2}, Code.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, Code.INVALID_REQUEST),
        ({"subscribed_topic_names": []}, Code.INVALID_REQUEST),
        ({"member_epoch": 5, "subscribed_topic_names": None}, Code.UNKNOWN_MEMBER_ID),
    ):
        answer = await member.beat(**fields)
        assert answer.error_code == code, (fields, answer)
    answer = await member.beat(member_epoch=5, subscribed_topic_names=["t", "none", "__metadata"])
    assert (answer.error_code, answer.member_epoch, member.assigned) == (0, 6, [0, 1])
    other = KafkaConsumer(cluster, "taken")
    await other.enter()
    answer = await Sharer(cluster, "taken").beat()
    assert answer.error_code == Code.GROUP_ID_NOT_FOUND


@in_kafka_cluster("a:1", "b:1")
async def test_a_new_coordinator_knows_a_member_from_its_first_heartbeat(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=2)
    member = await sharer(cluster)
    assert member.client is not None
    epoch = member.epoch
    await cluster.stop(member.client.address, graceful=False)
    member.client = None
    answer = await member.beat(says_all=True)  # as clients do after an error
    assert answer.error_code == 0, answer
    assert member.epoch > epoch
    assert member.assigned == [0, 1]


# Sessions and leases


@in_kafka_cluster("a:1", **EARLIEST)
async def test_two_members_share_a_partition(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await produce(cluster, *(b"%d" % n for n in range(10)))
    one, two = await (await sharer(cluster)).line(), await (await sharer(cluster)).line()
    first = await one.fetch(0, records=4)
    second = await two.fetch(0, records=100)
    assert values(first) == [b"0", b"1", b"2", b"3"]
    assert values(second) == [b"%d" % n for n in range(4, 10)]
    assert one.lock_ms == 1000 * LOCK_S
    assert await one.acknowledge({0: [(0, 2, [ACCEPT, REJECT, GAP]), (3, 3, [RELEASE])]}) == {0: 0}
    assert [(g.value, g.deliveries) for g in await two.fetch(acks={0: [(4, 9, [ACCEPT])]})] == [(b"3", 2)]
    assert await two.accept(Got(0, 3, b"", 0)) == {0: 0}
    assert await one.fetch() == []
    [info] = await shares(cluster)
    assert (info.start, info.end) == (10, 10)


@in_kafka_cluster("a:1")
async def test_a_group_begins_at_the_end_unless_the_setting_says_otherwise(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await produce(cluster, b"before")
    line = await (await sharer(cluster)).line()
    assert await line.fetch(0) == []
    await produce(cluster, b"after")
    assert values(await line.fetch()) == [b"after"]


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_fetch_waits_for_messages(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    line = await (await sharer(cluster)).line()
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    assert await line.fetch(0, wait_ms=500) == []
    assert 0.4 < loop.time() - begun_s < 1.0
    waiting = asyncio.create_task(line.fetch(wait_ms=20_000))
    await asyncio.sleep(1)
    await produce(cluster, b"1")
    assert values(await waiting) == [b"1"]


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_lock_ends_and_its_late_word_does_not_count(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await produce(cluster, b"0", b"1")
    one, two = await (await sharer(cluster)).line(), await (await sharer(cluster)).line()
    await one.fetch(0)
    assert await two.fetch(0) == []
    await asyncio.sleep(LOCK_S + 2)
    assert [(g.value, g.deliveries) for g in await two.fetch()] == [(b"0", 2), (b"1", 2)]
    assert await one.acknowledge({0: [(0, 1, [ACCEPT])]}) == {0: Code.INVALID_RECORD_STATE}
    assert await two.acknowledge({0: [(0, 1, [ACCEPT])]}) == {0: 0}
    assert await two.acknowledge({0: [(0, 1, [ACCEPT])]}) == {0: Code.INVALID_RECORD_STATE}, "they are not held now"


@in_kafka_cluster("a:1", **EARLIEST)
async def test_of_offsets_that_are_only_partly_held_those_that_are_count(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await produce(cluster, *(b"%d" % n for n in range(4)))
    one = await (await sharer(cluster)).line()
    await one.fetch(0, records=2)
    assert await one.acknowledge({0: [(0, 3, [ACCEPT])]}) == {0: Code.INVALID_RECORD_STATE}
    assert values(await one.fetch()) == [b"2", b"3"]
    assert await one.acknowledge({0: [(2, 1, [ACCEPT])], 1: [(0, 0, [ACCEPT])]}) == {
        0: Code.INVALID_REQUEST,
        1: Code.INVALID_RECORD_STATE,
    }


@in_kafka_cluster("a:1", **EARLIEST)
async def test_what_a_connection_held_is_free_when_it_ends_and_the_delivery_counts(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await produce(cluster, b"0")
    one, two = await (await sharer(cluster)).line(), await (await sharer(cluster)).line()
    await one.fetch(0)
    await one.client.close()
    assert [(g.value, g.deliveries) for g in await two.fetch(0)] == [(b"0", 2)]
    answer = await two.ask(epoch=-1)
    assert answer.error_code == 0
    three = await (await sharer(cluster)).line()
    assert [(g.value, g.deliveries) for g in await three.fetch(0)] == [(b"0", 2)], "a session that was closed"
    assert await three.acknowledge({0: [(0, 0, [RELEASE])]}, epoch=-1) == {0: 0}
    assert (await three.ask(epoch=5)).error_code == Code.SHARE_SESSION_NOT_FOUND


@in_kafka_cluster("a:1", **EARLIEST)
async def test_requests_of_another_epoch_are_refused_and_a_session_begins_anew(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await produce(cluster, b"0")
    line = await (await sharer(cluster)).line()
    assert (await line.ask(0, epoch=1)).error_code == Code.SHARE_SESSION_NOT_FOUND
    assert await line.acknowledge({}, epoch=0) == {-1: Code.INVALID_SHARE_SESSION_EPOCH}
    assert (await line.ask(acks={0: [(0, 0, [ACCEPT])]}, epoch=0)).error_code == Code.INVALID_REQUEST
    line.epoch = 0
    assert values(await line.fetch(0)) == [b"0"]
    assert (await line.ask(epoch=7)).error_code == Code.INVALID_SHARE_SESSION_EPOCH
    line.epoch = 0
    assert await line.fetch(0) == []
    assert await line.acknowledge({0: [(0, 0, [ACCEPT])]}) == {0: 0}, "what it held before"


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_message_comes_five_times_and_is_then_finished(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await produce(cluster, b"bad", b"good")
    line = await (await sharer(cluster)).line()
    for attempt in range(1, DELIVERIES_MAX + 1):
        found = await line.fetch(0)
        assert (found[0].value, found[0].deliveries) == (b"bad", attempt)
        if len(found) > 1:
            assert await line.accept(found[1]) == {0: 0}
        assert await line.accept(found[0], word=RELEASE) == {0: 0}
    assert await line.fetch(wait_ms=1000) == []
    [info] = await shares(cluster)
    assert info.start == 2


@in_kafka_cluster("a:1", **EARLIEST)
async def test_what_an_answer_has_no_room_for_comes_next_with_the_same_count(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await produce(cluster, b"a" * 1000)
    await produce(cluster, b"b" * 1000)
    line = await (await sharer(cluster)).line()
    first = await line.fetch(0, max_bytes=500)
    second = await line.fetch()
    assert [(g.offset, g.deliveries) for g in (*first, *second)] == [(0, 1), (1, 1)]


@in_kafka_cluster("a:1", **EARLIEST)
async def test_topics_that_are_not_there_and_forgotten_partitions(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=2)
    await produce(cluster, b"0")
    await produce(cluster, b"1", partition=1)
    member = await sharer(cluster)
    line = await member.line()
    answer = await line.ask(0, topic_id=member.topic_id[:8] + bytes(7) + b"\xff")
    [part] = answer.responses[0].partitions
    assert part.error_code == Code.UNKNOWN_TOPIC_ID
    line.epoch = 0
    assert values(await line.fetch(1)) == [b"1"]
    assert values(await line.fetch(0, forgets=[1])) == [b"0"]
    [part] = (await line.ask(7)).responses[0].partitions
    assert part.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert await line.acknowledge({0: [(0, 0, [ACCEPT])], 1: [(0, 0, [ACCEPT])]}) == {0: 0, 1: 0}


# Owners


@in_kafka_cluster("a:1", "b:1", **EARLIEST)
async def test_another_broker_is_no_leader_and_says_so(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await produce(cluster, b"0")
    member = await sharer(cluster)
    owner = await cluster.owner_of("t", 0)
    other = next(address for address in cluster.brokers if address != owner)
    line = SharerLine(member, cluster.connect(other))
    [part] = (await line.ask(0)).responses[0].partitions
    assert part.error_code == Code.NOT_LEADER_OR_FOLLOWER


# Beside our own members


@in_kafka_cluster("a:1", **EARLIEST)
async def test_members_of_both_kinds_share_one_queue_group(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await produce(cluster, *(b"%d" % n for n in range(6)))
    line = await (await sharer(cluster)).line()
    assert len(await line.fetch(0, records=2)) == 2
    service = cluster.brokers["a:1"].service
    request = pb.ShareFetchRequest(group="g", member_id="ours", partitions=[pb.SharePartition(topic="t")])
    frame = await service.share_fetch(request)
    [part] = frame.header.partitions
    assert [(one.first, one.last) for one in part.ranges] == [(2, 5)]
    assert await line.acknowledge({0: [(2, 2, [ACCEPT])]}) == {0: Code.INVALID_RECORD_STATE}
    assert await line.acknowledge({0: [(0, 1, [ACCEPT])]}) == {0: 0}


@in_kafka_cluster("a:1", **EARLIEST)
async def test_a_filter_of_our_members_keeps_others_out(cluster: KafkaCluster) -> None:
    await cluster.create("t")
    await produce(cluster, b"0")
    service = cluster.brokers["a:1"].service
    request = pb.ShareFetchRequest(
        group="g", member_id="ours", partitions=[pb.SharePartition(topic="t")], filter="a || b"
    )
    await service.share_fetch(request)
    line = await (await sharer(cluster)).line()
    [part] = (await line.ask(0)).responses[0].partitions
    assert part.error_code == Code.UNKNOWN_SERVER_ERROR
    assert "filter" in (part.error_message or "")


# Rules


@in_kafka_cluster("a:1", **RULES, **EARLIEST)
async def test_members_need_the_group_and_the_topic(cluster: KafkaCluster) -> None:
    await topic(cluster, "t")

    async def beat(member: Sharer) -> int:
        member.client = await proven(cluster, "ann")
        return int((await member.beat(says_all=True)).error_code)

    async def fetched(member: Sharer) -> tuple[int, int]:
        line = SharerLine(member, await proven(cluster, "ann"))
        answer = await line.ask(0)
        parts = [part for one in answer.responses for part in one.partitions]
        return answer.error_code, max((part.error_code for part in parts), default=0)

    member = Sharer(cluster)
    assert await beat(member) == Code.GROUP_AUTHORIZATION_FAILED
    await change(cluster, grant=["allow user:ann group g"])
    assert await beat(member) == Code.TOPIC_AUTHORIZATION_FAILED
    await change(cluster, grant=["allow user:ann describe t"])
    assert await beat(member) == 0
    assert await fetched(member) == (0, Code.TOPIC_AUTHORIZATION_FAILED)
    other = Sharer(cluster, "other")
    other.topic_id = member.topic_id
    assert await fetched(other) == (Code.GROUP_AUTHORIZATION_FAILED, 0)
    await change(cluster, grant=["allow user:ann consume t"])
    assert await fetched(member) == (0, 0)
    unknown = Sharer(cluster)
    unknown.topic_id = member.topic_id[:8] + bytes(7) + b"\xff"
    assert await fetched(unknown) == (0, Code.UNKNOWN_TOPIC_ID)


# Names


@in_kafka_cluster("a:1")
async def test_an_id_that_no_topic_has_is_looked_for_again_after_a_while(cluster: KafkaCluster) -> None:
    info = await cluster.create("t")
    brokers, service = cluster.brokers_of("a:1"), cluster.brokers["a:1"].service
    names = TopicNames(brokers)
    coming = [brokers.topic_uuid(info.topic_id + number) for number in range(50)]
    await names.learn(service, coming)
    assert [found for uuid in coming if (found := names.of(uuid))] == [Topic(info.topic_id, "t")]
    uuid = brokers.topic_uuid((await cluster.create("u")).topic_id)
    assert uuid in coming
    await until(lambda: "u" in cluster.brokers["a:1"].metadata.catalog.topics_by_name)
    await names.learn(service, coming)
    assert names.of(uuid) is None
    await asyncio.sleep(LOOK_PAUSE_S)
    await names.learn(service, coming)
    found = names.of(uuid)
    assert found is not None
    assert found.name == "u"
