"""Unmodified administration clients of the Kafka protocol read and change settings."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.kafka

DEADLINE_S = 60.0


def described(admin: Any, kind: Any, name: str) -> dict[str, Any]:
    from confluent_kafka.admin import ConfigResource

    [future] = admin.describe_configs([ConfigResource(kind, name)], request_timeout=DEADLINE_S).values()
    found: dict[str, Any] = future.result(DEADLINE_S)
    return found


def test_librdkafka_reads_settings(bootstrap: str) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, ConfigSource, NewTopic, ResourceType

    admin = AdminClient({"bootstrap.servers": bootstrap})
    [future] = admin.create_topics([NewTopic("described", 1, 1, config={"retention.ms": "3600000"})]).values()
    future.result(DEADLINE_S)
    found = described(admin, ResourceType.TOPIC, "described")
    assert (found["retention.ms"].value, found["retention.ms"].source) == (
        "3600000",
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
    )
    assert found["retention.ms"].synonyms["log.retention.ms"].value == "-1"
    assert (found["cleanup.policy"].value, found["cleanup.policy"].is_default) == ("delete", True)
    assert not any(one.is_sensitive or one.is_read_only for one in found.values())
    [node] = admin.list_topics(timeout=DEADLINE_S).brokers
    cluster = admin.describe_cluster(include_authorized_operations=True).result(DEADLINE_S)
    assert ([one.id for one in cluster.nodes], cluster.controller.id) == ([node], node)
    found = described(admin, ResourceType.BROKER, str(node))
    assert (found["num.partitions"].value, found["num.partitions"].is_read_only) == ("2", True)
    with pytest.raises(KafkaException) as caught:
        described(admin, ResourceType.TOPIC, "unknown")
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_kafka_python_reads_settings(bootstrap: str) -> None:
    from kafka.admin import ConfigResource, KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic("described-too", 1, 1, topic_configs={"cleanup.policy": "compact"})])
    found = admin.describe_configs([ConfigResource("TOPIC", "described-too")], include_synonyms=True)
    policy = found["topic"]["described-too"]["cleanup.policy"]
    assert (policy["value"], policy["config_source"], policy["config_type"]) == (
        "compact",
        "DYNAMIC_TOPIC_CONFIG",
        "LIST",
    )
    assert [one["value"] for one in policy["synonyms"]] == ["compact", "delete"]
    cluster = admin.describe_cluster()
    [node] = [one["broker_id"] for one in cluster["brokers"]]
    assert cluster["controller_id"] == node
    found = admin.describe_configs([ConfigResource("BROKER", str(node))], config_filter="all")
    assert found["broker"][str(node)]["default.replication.factor"]["value"] == "1"
    admin.close()


def test_librdkafka_changes_settings(bootstrap: str) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewTopic,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {"retention.ms": "5", "max.message.bytes": "99"}
    [future] = admin.create_topics([NewTopic("altered", 1, 1, config=settings)]).values()
    future.result(DEADLINE_S)

    def step(name: str, kind: AlterConfigOpType, value: str | None = None, **more: bool) -> int:
        entry = ConfigEntry(name, value, incremental_operation=kind)
        resource = ConfigResource(ResourceType.TOPIC, "altered", incremental_configs=[entry])
        [future] = admin.incremental_alter_configs([resource], **more).values()
        try:
            future.result(DEADLINE_S)
        except KafkaException as error:
            return int(error.args[0].code())
        return 0

    def in_force(name: str) -> str | None:
        value: str | None = described(admin, ResourceType.TOPIC, "altered")[name].value
        return value

    assert step("retention.ms", AlterConfigOpType.SET, "7", validate_only=True) == 0
    assert in_force("retention.ms") == "5"
    assert step("retention.ms", AlterConfigOpType.SET, "7") == 0
    assert in_force("retention.ms") == "7"
    assert step("retention.ms", AlterConfigOpType.DELETE) == 0
    assert (in_force("retention.ms"), in_force("max.message.bytes")) == ("-1", "99")
    assert step("cleanup.policy", AlterConfigOpType.APPEND, "compact") == KafkaError.INVALID_CONFIG
    assert step("no.such", AlterConfigOpType.SET, "1") == KafkaError.INVALID_CONFIG
    whole = ConfigResource(ResourceType.TOPIC, "altered", set_config={"retention.bytes": "12"})
    with pytest.deprecated_call():
        [future] = admin.alter_configs([whole]).values()
    future.result(DEADLINE_S)
    assert (in_force("retention.bytes"), in_force("max.message.bytes")) == ("12", "1048576")


def test_kafka_python_changes_settings(bootstrap: str) -> None:
    from kafka.admin import ConfigResource, KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic("altered-too", 1, 1, topic_configs={"retention.ms": "5"})])

    def modified() -> dict[str, str]:
        found = admin.describe_configs([ConfigResource("TOPIC", "altered-too")])["topic"]["altered-too"]
        return {name: one["value"] for name, one in found.items()}

    admin.alter_configs([ConfigResource("TOPIC", "altered-too", {"retention.bytes": ("SET", "8")})])
    assert modified() == {"retention.ms": "5", "retention.bytes": "8"}
    admin.alter_configs([ConfigResource("TOPIC", "altered-too", {"retention.ms": ("DELETE", None)})])
    assert modified() == {"retention.bytes": "8"}
    admin.alter_configs([ConfigResource("TOPIC", "altered-too", {"retention.ms": "9"})], incremental=False)
    assert modified() == {"retention.ms": "9", "retention.bytes": "8"}  # it names those that are set
    admin.close()


def test_librdkafka_finds_the_largest_timestamp(bootstrap: str) -> None:
    from confluent_kafka import Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

    admin = AdminClient({"bootstrap.servers": bootstrap})
    [made] = admin.create_topics([NewTopic("timed", 1, 1)]).values()
    made.result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": bootstrap})
    for time_ms in (5000, 9000, 7000, 9000, 1000):
        producer.produce("timed", b"x", timestamp=time_ms)
    assert producer.flush(DEADLINE_S) == 0
    [found] = admin.list_offsets({TopicPartition("timed", 0): OffsetSpec.max_timestamp()}).values()
    largest = found.result(DEADLINE_S)
    assert (largest.offset, largest.timestamp) == (1, 9000)
