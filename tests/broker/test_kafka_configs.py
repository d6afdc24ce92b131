"""Clients of the Kafka protocol read and change settings: names, sources, rules, deleted topics, old caches."""

from __future__ import annotations

from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.handlers.admin import alterations, configs
from ledgermq_broker.kafka.handlers.admin.configs import BROKER, GROUP, RESOURCES_MAX, TOPIC
from ledgermq_broker.kafka.handlers.asked import Asked
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import alter_configs_request as ac
from ledgermq_broker.kafka.wire.generated import describe_configs_request as dc
from ledgermq_broker.kafka.wire.generated import incremental_alter_configs_request as ia
from ledgermq_broker.kafka.wire.messages import ALTER_CONFIGS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from ledgermq_ledger.topics.settings import NAMES
from tests.broker.access import RULES, change, token
from tests.broker.kafka_world import KafkaClient, KafkaCluster, in_kafka_cluster
from tests.broker.test_kafka_identity import proven

ON_THE_TOPIC, ON_THE_BROKER, BY_DEFAULT = 1, 4, 5
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
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


def stepping(
    *wanted: tuple[str, *tuple[tuple[str, int, str | None], ...]], kind: int = TOPIC, validate_only: bool = False
) -> ia.IncrementalAlterConfigsRequest:
    """Each with its name, then its operations: name, number, value."""
    resources = [
        ia.AlterConfigsResource(kind, name, [ia.AlterableConfig(*one) for one in ops]) for name, *ops in wanted
    ]
    return ia.IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)


def replacing(
    *wanted: tuple[str, *tuple[tuple[str, str | None], ...]], kind: int = TOPIC, validate_only: bool = False
) -> ac.AlterConfigsRequest:
    resources = [
        ac.AlterConfigsResource(kind, name, [ac.AlterableConfig(*one) for one in pairs]) for name, *pairs in wanted
    ]
    return ac.AlterConfigsRequest(resources=resources, validate_only=validate_only)


async def alter(client: KafkaClient, *wanted: Any, version: int = 1, **more: Any) -> list[Code]:
    answer = await client.call(INCREMENTAL_ALTER_CONFIGS, version, stepping(*wanted, **more))
    return [Code(one.error_code) for one in answer.responses]


async def replace(client: KafkaClient, *wanted: Any, version: int = 2, **more: Any) -> list[Code]:
    answer = await client.call(ALTER_CONFIGS, version, replacing(*wanted, **more))
    return [Code(one.error_code) for one in answer.responses]


async def set_on(cluster: KafkaCluster, name: str) -> dict[str, str]:
    request = pb.DescribeTopicsRequest(topics=[name], fresh=True)
    [info] = (await cluster.brokers["a:1"].service.describe_topics(request)).topics
    return dict(info.settings)


@in_kafka_cluster("a:1", "b:1")
async def test_single_settings_are_set_and_unset_by_the_words_of_creating(cluster: KafkaCluster) -> None:
    await cluster.create("t", retention_ms="5", max_message_bytes="9")
    client = cluster.connect("b:1")
    for version in (0, 1):
        steps = (("retention.ms", DELETE, None), ("compression.type", SET, "gzip"), ("segment.bytes", SET, "1"))
        assert await alter(client, ("t", *steps), version=version) == [Code.NONE]
        assert await set_on(cluster, "t") == {"max.message.bytes": "9", "compression.type": "lz4"}
    longest = ("retention.ms", SET, str(2**63 - 1))
    assert await alter(client, ("t", longest, ("flush.ms", DELETE, None))) == [Code.NONE]
    assert (await set_on(cluster, "t"))["retention.ms"] == "-1"
    assert await values(client, TOPIC, "t", keys=["retention.ms"]) == {"retention.ms": ("-1", ON_THE_TOPIC)}
    assert await alter(client, ("t", ("flush.ms", SET, "1"))) == [Code.NONE]


@in_kafka_cluster("a:1", topic_delete_grace_ms=HOUR_MS)
async def test_what_cannot_be_changed_says_why_and_changes_nothing(cluster: KafkaCluster) -> None:
    for name in ("t", "u", "v", "w", "x", "fine"):
        await cluster.create(name, retention_ms="5")
    await cluster.create("gone")
    await cluster.brokers["a:1"].service.delete_topic(pb.DeleteTopicRequest(name="gone"))
    client, fine = cluster.connect("a:1"), ("retention.bytes", SET, "7")
    wrong, unknown = Code.INVALID_CONFIG, Code.UNKNOWN_TOPIC_OR_PARTITION
    refused = [
        (("t", fine, ("cleanup.policy", APPEND, "compact")), wrong),
        (("u", fine, ("cleanup.policy", SUBTRACT, "delete")), wrong),
        (("v", fine, ("retention.ms", SET, None)), wrong),
        (("w", fine, ("no.such", DELETE, None)), wrong),
        (("x", fine, ("retention.ms", SET, "long")), wrong),
        (("gone", fine), unknown),
        (("never", fine), unknown),
        (("__metadata", fine), unknown),
    ]
    codes = await alter(client, *(wanted for wanted, _ in refused), ("fine", fine))
    assert codes == [code for _, code in refused] + [Code.NONE]
    again = Code.INVALID_REQUEST
    assert await alter(client, ("t", fine, ("retention.bytes", DELETE, None))) == [again]
    assert await alter(client, ("t", fine), ("t", ("retention.ms", SET, "8"))) == [again]
    assert await replace(client, ("t", ("retention.ms", "8"), ("retention.ms", "9"))) == [again]
    assert await replace(client, ("t", ("retention.ms", None)), ("u", ("no.such", "1"))) == [wrong, wrong]
    for name in ("t", "u", "v", "w", "x"):
        assert await set_on(cluster, name) == {"retention.ms": "5"}
    me = str(cluster.brokers_of("a:1").me)
    for kind in (BROKER, 8, 16):
        assert await alter(client, (me, ("num.partitions", SET, "1")), kind=kind) == [again]
        assert await replace(client, (me, ("num.partitions", "1")), kind=kind) == [again]


@in_kafka_cluster("a:1", "b:1")
async def test_validating_a_change_changes_nothing(cluster: KafkaCluster) -> None:
    await cluster.create("t", retention_ms="5")
    for address in cluster.brokers:
        client = cluster.connect(address)
        step, bad = ("retention.ms", SET, "8"), ("priority.levels", SET, "9")
        assert await alter(client, ("t", step), validate_only=True) == [Code.NONE]
        assert await alter(client, ("t", bad), validate_only=True) == [Code.INVALID_CONFIG]
        assert await replace(client, ("t", ("max.message.bytes", "8")), validate_only=True) == [Code.NONE]
        assert await set_on(cluster, "t") == {"retention.ms": "5"}


@in_kafka_cluster("a:1", "b:1")
async def test_replacing_unsets_the_rest_and_never_a_hold_that_is_not_named(cluster: KafkaCluster) -> None:
    await cluster.create("t", retention_ms="5", max_message_bytes="9")
    client = cluster.connect("b:1")
    for version in (0, 1, 2):
        wanted = (("retention.ms", f"{version}"), ("min.insync.replicas", "2"))
        assert await replace(client, ("t", *wanted), version=version) == [Code.NONE]
        assert await set_on(cluster, "t") == {"retention.ms": f"{version}"}
    assert await replace(client, ("t",)) == [Code.NONE]
    assert await set_on(cluster, "t") == {}
    assert await alter(client, ("t", ("legal.hold", SET, "TRUE"))) == [Code.NONE]
    assert await replace(client, ("t", ("retention.ms", "7"))) == [Code.POLICY_VIOLATION]
    assert await set_on(cluster, "t") == {"legal.hold": "TRUE"}
    assert await replace(client, ("t", ("retention.ms", "7"), ("legal.hold", "true"))) == [Code.NONE]
    assert await set_on(cluster, "t") == {"legal.hold": "true", "retention.ms": "7"}
    assert await replace(client, ("t", ("legal.hold", "false"))) == [Code.NONE]
    assert await set_on(cluster, "t") == {"legal.hold": "false"}


@in_kafka_cluster("a:1", **RULES)
async def test_rules_judge_who_may_change_settings(cluster: KafkaCluster) -> None:
    broker = cluster.brokers["a:1"]
    for name in ("mine", "seen", "theirs"):
        await broker.service.create_topic(pb.CreateTopicRequest(name=name))
    await change(cluster, grant=["allow user:ann alter mine", "allow user:ann describe seen"])
    admitted = await broker.door.admit("Bearer " + (await token(cluster, "ann")).text)
    handlers = alterations.answers(broker.context.sources, lambda: broker.settings)
    denied, names = Code.TOPIC_AUTHORIZATION_FAILED, ("mine", "seen", "theirs")
    for op in ("retention.ms", "flush.ms"):
        for validate_only in (True, False):
            steps = stepping(*((name, (op, SET, "7")) for name in names), validate_only=validate_only)
            whole = replacing(*((name, (op, "7")) for name in names), validate_only=validate_only)
            for api, request in ((INCREMENTAL_ALTER_CONFIGS, steps), (ALTER_CONFIGS, whole)):
                found = (await handlers[api](Asked(admitted.api, request, 1))).responses
                assert [one.error_code for one in found] == [Code.NONE, denied, denied]
    assert await set_on(cluster, "seen") == await set_on(cluster, "theirs") == {}


@in_kafka_cluster("a:1", kafka_share_auto_offset_reset="earliest")
async def test_any_share_group_shows_what_counts_for_all(cluster: KafkaCluster) -> None:
    client, broker = cluster.connect("a:1"), cluster.brokers["a:1"]
    found = await values(client, GROUP, "g")
    assert found == {
        "share.auto.offset.reset": ("earliest", ON_THE_BROKER),
        "share.delivery.count.limit": ("5", BY_DEFAULT),
        "share.heartbeat.interval.ms": ("5000", BY_DEFAULT),
        "share.record.lock.duration.ms": ("30000", BY_DEFAULT),
        "share.session.timeout.ms": ("45000", BY_DEFAULT),
    }
    broker.apply(broker.settings.model_copy(update={"kafka_share_auto_offset_reset": "latest"}))
    chosen = await values(client, GROUP, "gr\u00fcn", keys=["share.auto.offset.reset", "no.such"])
    assert chosen == {"share.auto.offset.reset": ("latest", BY_DEFAULT)}
    [shown] = await describe(client, (GROUP, "g"))
    assert all(one.read_only for one in shown.configs)
    assert [one.error_code for one in await describe(client, (GROUP, ""))] == [Code.INVALID_GROUP_ID]


@in_kafka_cluster("a:1")
async def test_a_share_group_takes_only_the_settings_that_it_has(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")

    async def altered(*configs: tuple[str, int, str | None], name: str = "g") -> int:
        resource = ia.AlterConfigsResource(GROUP, name, [ia.AlterableConfig(*each) for each in configs])
        [found] = (
            await client.call(INCREMENTAL_ALTER_CONFIGS, 1, ia.IncrementalAlterConfigsRequest([resource]))
        ).responses
        assert (found.error_message is None) == (found.error_code == 0)
        return int(found.error_code)

    reset, lock, wrong = "share.auto.offset.reset", "share.record.lock.duration.ms", Code.INVALID_CONFIG
    assert await altered((reset, SET, "latest"), (lock, SET, "30000")) == 0
    assert await altered((reset, DELETE, None), (lock, DELETE, None)) == 0
    assert await altered((reset, SET, "earliest")) == wrong
    assert await altered((lock, SET, "15000")) == wrong
    assert await altered((lock, SET, None)) == wrong
    assert await altered((lock, APPEND, "30000")) == wrong
    assert await altered((lock, SUBTRACT, "30000")) == wrong
    assert await altered(("consumer.session.timeout.ms", SET, "45000")) == wrong
    assert await altered((lock, SET, "30000"), (lock, SET, "30000")) == Code.INVALID_REQUEST
    assert await altered((reset, SET, "latest"), name="") == Code.INVALID_GROUP_ID

    async def replaced(**configs: str) -> int:
        resource = ac.AlterConfigsResource(
            GROUP, "g", [ac.AlterableConfig(name, text) for name, text in configs.items()]
        )
        [found] = (await client.call(ALTER_CONFIGS, 2, ac.AlterConfigsRequest([resource]))).responses
        return int(found.error_code)

    assert await replaced(**{reset: "latest"}) == 0
    assert await replaced() == 0
    assert await replaced(**{reset: "earliest"}) == wrong


@in_kafka_cluster("a:1", **RULES)
async def test_settings_of_a_group_are_for_its_members(cluster: KafkaCluster) -> None:
    client = await proven(cluster, "ann")
    [found] = await describe(client, (GROUP, "g"))
    assert (found.error_code, found.configs) == (Code.GROUP_AUTHORIZATION_FAILED, [])
    resource = ia.AlterConfigsResource(GROUP, "g", [ia.AlterableConfig("share.auto.offset.reset", SET, "latest")])
    request = ia.IncrementalAlterConfigsRequest([resource])
    [result] = (await client.call(INCREMENTAL_ALTER_CONFIGS, 1, request)).responses
    assert result.error_code == Code.GROUP_AUTHORIZATION_FAILED
    await change(cluster, grant=["allow user:ann group g"])
    assert "share.auto.offset.reset" in await values(client, GROUP, "g")
    [result] = (await client.call(INCREMENTAL_ALTER_CONFIGS, 1, request)).responses
    assert result.error_code == 0
