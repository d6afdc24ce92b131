"""Clients of the Kafka protocol read and change settings: names, sources, rules, deleted topics, old caches."""

from __future__ import annotations

from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.admin import configs
from ledgermq_broker.kafka.handlers.admin.configs import BROKER, RESOURCES_MAX, TOPIC
from ledgermq_broker.kafka.handlers.asked import Asked
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import describe_configs_request as dc
from ledgermq_broker.kafka.wire.messages import DESCRIBE_CONFIGS
from ledgermq_ledger.topics.settings import NAMES
from tests.broker.access import RULES, change, token
from tests.broker.kafka_world import KafkaClient, KafkaCluster, in_kafka_cluster

ON_THE_TOPIC, ON_THE_BROKER, BY_DEFAULT = 1, 4, 5
HOUR_MS = 60 * 60 * 1000


def asking(
    *wanted: tuple[int, str], keys: list[str] | None = None, synonyms: bool = False
) -> dc.DescribeConfigsRequest:
    resources = [dc.DescribeConfigsResource(kind, name, keys) for kind, name in wanted]
    return dc.DescribeConfigsRequest(resources=resources, include_synonyms=synonyms)


async def describe(client: KafkaClient, *wanted: tuple[int, str], version: int = 4, **more: Any) -> list[Any]:
    return list((await client.call(DESCRIBE_CONFIGS, version, asking(*wanted, **more))).results)


async def values(client: KafkaClient, kind: int, name: str, **more: Any) -> dict[str, tuple[str | None, int]]:
    """Value and source of each setting."""
    [found] = await describe(client, (kind, name), **more)
    assert found.error_code == Code.NONE, found.error_message
    return {one.name: (one.value, one.config_source) for one in found.configs}


@in_kafka_cluster("a:1", message_ttl_ms=HOUR_MS)
async def test_every_setting_of_a_topic_has_its_value_in_force_and_where_it_comes_from(cluster: KafkaCluster) -> None:
    await cluster.create("t", cleanup_policy="delete,compact", retention_ms="1_000", compression_type="none")
    await cluster.create("u__retry", message_ttl_ms_max="5")
    client = cluster.connect("a:1")
    found = await values(client, TOPIC, "t")
    assert found.keys() == set(NAMES)
    assert (
        found
        | {
            "cleanup.policy": ("compact,delete", ON_THE_TOPIC),
            "retention.ms": ("1000", ON_THE_TOPIC),
            "retention.bytes": ("-1", BY_DEFAULT),
            "compression.type": ("uncompressed", ON_THE_TOPIC),
            "max.message.bytes": ("1048576", BY_DEFAULT),
            "message.timestamp.type": ("CreateTime", BY_DEFAULT),
            "min.cleanable.dirty.ratio": ("0.5", BY_DEFAULT),
            "legal.hold": ("false", BY_DEFAULT),
            "message.ttl.ms": (str(HOUR_MS), ON_THE_BROKER),
            "message.ttl.ms.max": (None, BY_DEFAULT),
        }
        == found
    )
    for version in (1, 2, 3):
        assert await values(client, TOPIC, "t", version=version) == found
    assert (await values(client, TOPIC, "t", keys=[])) == found
    assert (await values(client, TOPIC, "t", keys=["legal.hold", "no.such"])).keys() == {"legal.hold"}


@in_kafka_cluster("a:1", message_ttl_ms=HOUR_MS)
async def test_synonyms_say_what_would_count_without_it(cluster: KafkaCluster) -> None:
    await cluster.create("t", retention_ms="5", message_ttl_ms="7")
    client = cluster.connect("a:1")
    [found] = await describe(client, (TOPIC, "t"), synonyms=True)
    synonyms = {one.name: [(s.name, s.value, s.source) for s in one.synonyms] for one in found.configs}
    assert synonyms["retention.ms"] == [("retention.ms", "5", ON_THE_TOPIC), ("log.retention.ms", "-1", BY_DEFAULT)]
    assert synonyms["legal.hold"] == [("legal.hold", "false", BY_DEFAULT)]
    assert synonyms["message.ttl.ms"] == [
        ("message.ttl.ms", "7", ON_THE_TOPIC),
        ("message_ttl_ms", str(HOUR_MS), ON_THE_BROKER),
    ]
    types = {one.name: one.config_type for one in found.configs}
    assert [types[name] for name in ("legal.hold", "archive.url", "retention.ms", "cleanup.policy")] == [1, 2, 5, 7]
    assert not any(one.is_sensitive or one.read_only for one in found.configs)
    [found] = await describe(client, (TOPIC, "t"))
    assert not any(one.synonyms for one in found.configs)


@in_kafka_cluster("a:1", "b:1", default_partitions=3)
async def test_a_broker_shows_the_names_that_kafkas_programs_look_for_as_they_are_now(cluster: KafkaCluster) -> None:
    client, broker = cluster.connect("a:1"), cluster.brokers["a:1"]
    me = str(cluster.brokers_of("a:1").me)
    found = await values(client, BROKER, me)
    assert (
        found
        | {
            "broker.id": (me, ON_THE_BROKER),
            "num.partitions": ("3", ON_THE_BROKER),
            "default.replication.factor": ("1", BY_DEFAULT),
            "log.retention.ms": ("-1", BY_DEFAULT),
            "log.cleanup.policy": ("delete", BY_DEFAULT),
            "message.max.bytes": ("1048576", BY_DEFAULT),
        }
        == found
    )
    broker.apply(broker.settings.model_copy(update={"default_partitions": 9}))
    assert (await values(client, BROKER, me, keys=["num.partitions"])) == {"num.partitions": ("9", ON_THE_BROKER)}
    [shown] = await describe(client, (BROKER, me))
    assert all(one.read_only for one in shown.configs)
    other = str(cluster.brokers_of("b:1").me)
    codes = [one.error_code for one in await describe(client, (BROKER, other), (BROKER, "x"), (8, me), (99, "x"))]
    assert codes == [Code.INVALID_REQUEST] * 4
    assert await values(client, BROKER, "") == {}


@in_kafka_cluster("a:1", "b:1", topic_delete_grace_ms=HOUR_MS)
async def test_a_topic_is_described_at_once_everywhere_and_is_unknown_once_deleted(cluster: KafkaCluster) -> None:
    service = cluster.brokers["a:1"].service
    clients = [cluster.connect(address) for address in cluster.brokers]
    await service.create_topic(pb.CreateTopicRequest(name="t", settings={"retention.ms": "5"}))
    for client in clients:
        assert (await values(client, TOPIC, "t", keys=["retention.ms"])) == {"retention.ms": ("5", ON_THE_TOPIC)}
    await service.delete_topic(pb.DeleteTopicRequest(name="t"))
    for client in clients:
        names = ("t", "never", "__metadata", "__consumer_offsets")
        found = await describe(client, *((TOPIC, name) for name in names))
        assert [one.resource_name for one in found] == list(names)
        assert [one.error_code for one in found] == [Code.UNKNOWN_TOPIC_OR_PARTITION] * 4
        assert not any(one.configs for one in found)


@in_kafka_cluster("a:1")
async def test_many_resources_are_answered_and_too_many_refused(cluster: KafkaCluster) -> None:
    """A request of some megabytes would get an answer of gigabytes."""
    await cluster.create("t")
    client = cluster.connect("a:1")
    unknown = [(TOPIC, f"u{number}") for number in range(RESOURCES_MAX - 1)]
    found = await describe(client, (TOPIC, "t"), (TOPIC, "t"), *unknown, keys=["legal.hold"])
    assert [one.error_code for one in found] == [Code.NONE] + [Code.UNKNOWN_TOPIC_OR_PARTITION] * len(unknown)
    found = await describe(client, (TOPIC, "t"), (TOPIC, "one.more"), *unknown)
    assert {one.error_code for one in found} == {Code.INVALID_REQUEST}


@in_kafka_cluster("a:1", **RULES)
async def test_rules_judge_who_may_read_settings(cluster: KafkaCluster) -> None:
    broker = cluster.brokers["a:1"]
    for name in ("mine", "theirs"):
        await broker.service.create_topic(pb.CreateTopicRequest(name=name))
    await change(cluster, grant=["allow user:ann describe mine*"])
    admitted = await broker.door.admit("Bearer " + (await token(cluster, "ann")).text)
    handler = configs.answers(cluster.brokers_of("a:1"), lambda: broker.settings)[DESCRIBE_CONFIGS]
    request = asking((TOPIC, "mine"), (TOPIC, "theirs"), (TOPIC, "never"), (TOPIC, "mine.never"))
    found = (await handler(Asked(admitted.api, request, 4))).results
    denied = Code.TOPIC_AUTHORIZATION_FAILED
    assert [one.error_code for one in found] == [Code.NONE, denied, denied, Code.UNKNOWN_TOPIC_OR_PARTITION]
