"""Clients of the Kafka protocol create and delete topics: numbers, settings, names, rules, quotas, old caches."""

from __future__ import annotations

import asyncio
from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.admin import topics
from ledgermq_broker.kafka.handlers.asked import Asked
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import create_partitions_request as cp
from ledgermq_broker.kafka.wire.generated import create_topics_request as c
from ledgermq_broker.kafka.wire.generated import delete_topics_request as d
from ledgermq_broker.kafka.wire.generated import describe_cluster_request as dcl
from ledgermq_broker.kafka.wire.messages import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, DESCRIBE_CLUSTER
from tests.broker.access import RULES, change, token
from tests.broker.kafka_world import KafkaClient, KafkaCluster, in_kafka_cluster
from tests.broker.test_quotas import set_quota

HOUR_MS = 60 * 60 * 1000
LONGEST = str(2**63 - 1)


def topic(name: str, partitions: int = -1, replicas: int = -1, **settings: str | None) -> c.CreatableTopic:
    configs = [c.CreatableTopicConfig(name.replace("_", "."), value) for name, value in settings.items()]
    return c.CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=configs)


async def create(client: KafkaClient, *wanted: c.CreatableTopic, version: int = 7, **more: Any) -> list[Any]:
    """The answers, in the order of their names."""
    request = c.CreateTopicsRequest(topics=list(wanted), **{"timeout_ms": 30_000, **more})
    answer = await client.call(CREATE_TOPICS, version, request)
    return sorted(answer.topics, key=lambda found: str(found.name))


async def delete(client: KafkaClient, *wanted: str | bytes, version: int = 6, **more: Any) -> list[Code]:
    """The codes, in order. Bytes are ids of topics."""
    states = [
        d.DeleteTopicState(name=one) if isinstance(one, str) else d.DeleteTopicState(name=None, topic_id=one)
        for one in wanted
    ]
    names = [one for one in wanted if isinstance(one, str)]
    request = d.DeleteTopicsRequest(topics=states, topic_names=names, **{"timeout_ms": 30_000, **more})
    return [Code(found.error_code) for found in (await client.call(DELETE_TOPICS, version, request)).responses]


async def described(cluster: KafkaCluster, name: str) -> pb.TopicInfo:
    request = pb.DescribeTopicsRequest(topics=[name], fresh=True)
    [info] = (await next(iter(cluster.brokers.values())).service.describe_topics(request)).topics
    return info


@in_kafka_cluster("a:1", default_partitions=2)
async def test_numbers_that_mean_nothing_are_refused_and_any_number_of_replicas_is_one(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    by_hand = topic("f")
    by_hand.assignments = [c.CreatableReplicaAssignment(number, [1, 2]) for number in (2, 0, 1)]
    gap, both = topic("g"), topic("h", 2)
    gap.assignments = both.assignments = [c.CreatableReplicaAssignment(1, [1])]
    wanted = [topic("a", 0), topic("b", -2), topic("c", 1, 0), topic("d", 3, 3), topic("e"), by_hand, gap, both]
    found = await create(client, *wanted)
    assert [(one.error_code, one.num_partitions, one.replication_factor) for one in found] == [
        (Code.INVALID_PARTITIONS, -1, -1),
        (Code.INVALID_PARTITIONS, -1, -1),
        (Code.INVALID_REPLICATION_FACTOR, -1, -1),
        (Code.NONE, 3, 1),
        (Code.NONE, 2, 1),
        (Code.NONE, 3, 1),
        (Code.INVALID_REPLICA_ASSIGNMENT, -1, -1),
        (Code.INVALID_REQUEST, -1, -1),
    ]
    listed = await client.metadata()
    assert {one.name: one.topic_id for one in listed.topics} == {
        one.name: one.topic_id for one in found if not one.error_code
    }


@in_kafka_cluster("a:1")
async def test_settings_are_ours_kafkas_storage_is_ignored_and_the_rest_refused(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    fine = {"retention_ms": LONGEST, "cleanup_policy": "compact, delete", "compression_type": "uncompressed"}
    wanted = [
        topic("a", 1, 3, **fine, segment_bytes="1", min_insync_replicas="2"),
        topic("b", compression_type="gzip", message_timestamp_before_max_ms=LONGEST),
        topic("c", no_such_setting="1"),
        topic("d", retention_ms="long"),
        topic("e", retention_ms=None),
        topic("f", internal_kind="hidden"),
        topic("g", min_compaction_lag_ms=LONGEST),
    ]
    found = await create(client, *wanted)
    assert [one.error_code for one in found] == [Code.NONE] * 2 + [Code.INVALID_CONFIG] * 5
    assert dict((await described(cluster, "a")).settings) == {
        "retention.ms": "-1",
        "cleanup.policy": "compact,delete",
        "compression.type": "none",
    }
    assert (await described(cluster, "b")).settings["compression.type"] == "lz4"
    assert ("compression.type", "uncompressed") in {(one.name, one.value) for one in found[0].configs}


@in_kafka_cluster("a:1")
async def test_names_that_exist_stand_twice_or_are_none_are_refused(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    assert [one.error_code for one in await create(client, topic("there"))] == [Code.NONE]
    wanted = [topic("twice"), topic("twice"), topic("there"), topic("not a name"), topic("__consumer_offsets")]
    codes = {one.name: one.error_code for one in await create(client, *wanted, topic("fine"), topic("x" * 250))}
    assert codes == {
        "twice": Code.INVALID_REQUEST,
        "there": Code.TOPIC_ALREADY_EXISTS,
        "not a name": Code.INVALID_TOPIC_EXCEPTION,
        "__consumer_offsets": Code.INVALID_TOPIC_EXCEPTION,
        "fine": Code.NONE,
        "x" * 250: Code.INVALID_TOPIC_EXCEPTION,
    }
    assert await delete(client, "fine", "there", "fine", "gone", "__metadata") == [
        Code.INVALID_REQUEST,
        Code.NONE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]


@in_kafka_cluster("a:1", "b:1")
async def test_validating_changes_nothing_and_says_what_creating_would(cluster: KafkaCluster) -> None:
    await cluster.create("there")
    for address in cluster.brokers:
        client = cluster.connect(address)
        wanted = [topic("a", 3), topic("b", no_such="1"), topic("c", 10**6), topic("there")]
        found = await create(client, *wanted, validate_only=True)
        assert [(one.error_code, one.num_partitions) for one in found] == [
            (Code.NONE, 3),
            (Code.INVALID_CONFIG, -1),
            (Code.INVALID_REQUEST, -1),
            (Code.TOPIC_ALREADY_EXISTS, -1),
        ]
        assert found[0].topic_id == bytes(16)
        assert {one.name for one in (await client.metadata()).topics} == {"there"}


@in_kafka_cluster("a:1", topic_delete_grace_ms=HOUR_MS)
async def test_a_deleted_topic_is_unknown_and_keeps_its_name_while_it_can_be_brought_back(
    cluster: KafkaCluster,
) -> None:
    client = cluster.connect("a:1")
    [made] = await create(client, topic("t"))
    assert await delete(client, "t") == [Code.NONE]
    assert await delete(client, "t") == [Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert await delete(client, made.topic_id) == [Code.UNKNOWN_TOPIC_ID]
    [found] = await create(client, topic("t"))
    assert (found.error_code, "delete --now" in found.error_message) == (Code.TOPIC_ALREADY_EXISTS, True)
    await cluster.brokers["a:1"].service.undelete_topic(pb.UndeleteTopicRequest(name="t"))
    assert await delete(client, made.topic_id) == [Code.NONE]


@in_kafka_cluster("a:1")
async def test_without_a_grace_a_name_is_free_soon_and_an_id_is_never_used_again(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    ids = set()
    for _ in range(3):
        [made] = await create(client, topic("t"))
        assert made.error_code == Code.NONE
        ids.add(made.topic_id)
        assert await delete(client, made.topic_id) == [Code.NONE]
    assert len(ids) == 3
    [made] = await create(client, topic("t"))
    assert await delete(client, *ids) == [Code.UNKNOWN_TOPIC_ID] * 3
    assert await delete(client, bytes(16), b"x" * 16) == [Code.UNKNOWN_TOPIC_ID] * 2
    assert (await described(cluster, "t")).topic_id > 0


@in_kafka_cluster("a:1", "b:1", "c:1")
async def test_every_broker_knows_a_topic_at_once_and_forgets_it_at_once(cluster: KafkaCluster) -> None:
    """A client creates at one broker and asks another, whose catalog is a moment old."""
    clients = [cluster.connect(address) for address in cluster.brokers]
    for number, client in enumerate(clients):
        name = f"t{number}"
        [made] = await create(client, topic(name, 2))
        for other in clients:
            [found] = (await other.metadata(name)).topics
            assert (found.error_code, found.topic_id, len(found.partitions)) == (Code.NONE, made.topic_id, 2)
        other = clients[(number + 1) % 3]
        assert [one.error_code for one in await create(client, topic(name))] == [Code.TOPIC_ALREADY_EXISTS]
        assert await delete(other, name) == [Code.NONE]
        assert await delete(client, name) == [Code.UNKNOWN_TOPIC_OR_PARTITION]


@in_kafka_cluster("a:1", **RULES)
async def test_rules_judge_each_topic(cluster: KafkaCluster) -> None:
    await cluster.brokers["a:1"].service.create_topic(pb.CreateTopicRequest(name="theirs"))
    await change(cluster, grant=["allow user:ann create mine*", "allow user:ann delete mine*"])
    broker = cluster.brokers["a:1"]
    admitted = await broker.door.admit("Bearer " + (await token(cluster, "ann")).text)
    handlers = topics.answers(cluster.brokers_of("a:1"), broker.context.sources)

    async def created(*names: str, validate_only: bool) -> list[Code]:
        wanted = [topic(name) for name in names]
        request = c.CreateTopicsRequest(topics=wanted, timeout_ms=30_000, validate_only=validate_only)
        return [one.error_code for one in (await handlers[CREATE_TOPICS](Asked(admitted.api, request, 7))).topics]

    fine, denied = Code.NONE, Code.TOPIC_AUTHORIZATION_FAILED
    assert await created("mine", "mine2", "other", validate_only=False) == [fine, fine, denied]
    assert await created("mine3", "other", validate_only=True) == [fine, denied]
    unwanted = d.DeleteTopicsRequest(topic_names=["mine", "theirs", "never"], timeout_ms=30_000)
    answer = await handlers[DELETE_TOPICS](Asked(admitted.api, unwanted, 5))
    assert [one.error_code for one in answer.responses] == [fine, denied, denied]


@in_kafka_cluster("a:1", topics_max=2)
async def test_a_bound_of_the_cluster_is_not_waited_for(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    codes = [one.error_code for one in await create(client, topic("a"), topic("b"), topic("c"))]
    assert codes == [Code.NONE, Code.NONE, Code.POLICY_VIOLATION]


@in_kafka_cluster("a:1", topic_delete_grace_ms=0)
async def test_a_change_ends_with_the_time_of_its_request(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    started_s = asyncio.get_running_loop().time()
    async with cluster.brokers["a:1"].controller._lock:
        found = await create(client, topic("a"), topic("b"), timeout_ms=2000)
        assert [one.error_code for one in found] == [Code.REQUEST_TIMED_OUT] * 2
        assert await delete(client, "a", timeout_ms=0) in ([Code.UNKNOWN_TOPIC_OR_PARTITION], [Code.REQUEST_TIMED_OUT])
    assert asyncio.get_running_loop().time() - started_s < 4
    await asyncio.sleep(1)
    assert (await described(cluster, "a")).topic_id > 0
    assert (await described(cluster, "b")).HasField("error")


@in_kafka_cluster("a:1", "b:1")
async def test_partitions_are_added_and_never_taken_away(cluster: KafkaCluster) -> None:
    for name in ("t", "u"):
        await cluster.create(name, partitions=2)
    client = cluster.connect("b:1")

    async def grow(*wanted: tuple[str, int, int | None], validate_only: bool = False) -> list[Code]:
        topics = [
            cp.CreatePartitionsTopic(
                name, count, None if given is None else [cp.CreatePartitionsAssignment([1]) for _ in range(given)]
            )
            for name, count, given in wanted
        ]
        request = cp.CreatePartitionsRequest(topics=topics, timeout_ms=30_000, validate_only=validate_only)
        return [Code(one.error_code) for one in (await client.call(CREATE_PARTITIONS, 3, request)).results]

    async def counts() -> list[int]:
        return [len(one.partitions) for one in (await cluster.connect("a:1").metadata("t", "u")).topics]

    none, few = Code.NONE, Code.INVALID_PARTITIONS
    assert await grow(("t", 3, None), ("u", 10**6, None), validate_only=True) == [none, Code.INVALID_REQUEST]
    assert await counts() == [2, 2]
    assert await grow(("t", 4, None), ("u", 3, 2), ("gone", 9, None), ("__metadata", 9, None)) == [
        none,
        Code.INVALID_REPLICA_ASSIGNMENT,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await grow(("t", 4, None), ("u", 3, 1)) == [few, none]
    assert await grow(("t", 1, None), ("u", -1, None)) == [few, few]
    assert await grow(("t", 5, None), ("t", 6, None)) == [Code.INVALID_REQUEST]
    assert await counts() == [4, 3]


@in_kafka_cluster("a:1", "b:1", "c:1", kafka=["a:1", "b:1"])
async def test_the_cluster_is_described_as_metadata_does(cluster: KafkaCluster) -> None:
    client = cluster.connect("b:1")
    metadata = await client.metadata()
    for version in (0, 1, 2):
        found = await client.call(DESCRIBE_CLUSTER, version, dcl.DescribeClusterRequest())
        assert (found.error_code, found.error_message, found.cluster_id) == (Code.NONE, None, metadata.cluster_id)
        assert found.controller_id == cluster.brokers_of("b:1").me
        assert [(one.broker_id, one.host, one.port) for one in found.brokers] == [
            (one.node_id, one.host, one.port) for one in metadata.brokers
        ]
    assert {one.host for one in found.brokers} == {"a.example", "b.example"}
    for kind, code in ((2, Code.MISMATCHED_ENDPOINT_TYPE), (3, Code.UNSUPPORTED_ENDPOINT_TYPE)):
        found = await client.call(DESCRIBE_CLUSTER, 2, dcl.DescribeClusterRequest(endpoint_type=kind))
        assert (found.error_code, found.brokers) == (code, [])


@in_kafka_cluster("a:1")
async def test_changes_above_a_quota_wait_and_are_then_refused_for_now(cluster: KafkaCluster) -> None:
    await set_quota(cluster, "anonymous", requests=1)
    client, loop = cluster.connect("a:1"), asyncio.get_running_loop()
    began_s = loop.time()
    found = await create(client, *(topic(f"t{number:02}", 1) for number in range(40)))
    codes = [one.error_code for one in found]
    assert 9 <= loop.time() - began_s < 12  # ten seconds for the request, not for each topic
    made = codes.count(Code.NONE)
    assert 2 <= made < 40
    assert codes == [Code.NONE] * made + [Code.THROTTLING_QUOTA_EXCEEDED] * (40 - made)
    await asyncio.sleep(60)
    [again] = await create(client, topic(found[made].name, 1))
    assert again.error_code == Code.NONE
