"""Unmodified administration clients of the Kafka protocol create and delete topics, and delete records."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.kafka

DEADLINE_S = 60.0


def test_librdkafka_creates_and_deletes_topics(bootstrap: str) -> None:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewPartitions, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})

    def code_of(topic: NewTopic, *, validate_only: bool = False) -> int:
        [future] = admin.create_topics([topic], validate_only=validate_only).values()
        try:
            future.result(DEADLINE_S)
        except KafkaException as error:
            return int(error.args[0].code())
        return 0

    set_ = {"retention.ms": "3600000", "min.insync.replicas": "2"}
    assert code_of(NewTopic("made", 3, 3, config=set_)) == 0
    assert len(admin.list_topics("made", timeout=DEADLINE_S).topics["made"].partitions) == 3
    assert code_of(NewTopic("made", 3, 1)) == KafkaError.TOPIC_ALREADY_EXISTS
    assert code_of(NewTopic("by-default", -1, -1)) == 0
    assert len(admin.list_topics("by-default", timeout=DEADLINE_S).topics["by-default"].partitions) == 2
    assert code_of(NewTopic("by-hand", 4, replica_assignment=[[1], [1], [1], [1]])) == 0
    assert len(admin.list_topics("by-hand", timeout=DEADLINE_S).topics["by-hand"].partitions) == 4
    assert code_of(NewTopic("unset", 1, 1, config={"no.such.setting": "1"})) == KafkaError.INVALID_CONFIG
    assert code_of(NewTopic("unset", 1, 1, config={"retention.ms": "long"})) == KafkaError.INVALID_CONFIG
    assert code_of(NewTopic("no good name", 1, 1)) == KafkaError.TOPIC_EXCEPTION
    assert code_of(NewTopic("unset", 1, 1), validate_only=True) == 0
    assert code_of(NewTopic("made", 1, 1), validate_only=True) == KafkaError.TOPIC_ALREADY_EXISTS
    assert "unset" not in admin.list_topics(timeout=DEADLINE_S).topics

    def grown(count: int) -> int:
        [future] = admin.create_partitions([NewPartitions("made", count)]).values()
        try:
            future.result(DEADLINE_S)
        except KafkaException as error:
            return int(error.args[0].code())
        return 0

    assert [grown(5), grown(5), grown(2)] == [0, KafkaError.INVALID_PARTITIONS, KafkaError.INVALID_PARTITIONS]
    assert len(admin.list_topics("made", timeout=DEADLINE_S).topics["made"].partitions) == 5

    [future] = admin.delete_topics(["made"]).values()
    assert future.result(DEADLINE_S) is None
    assert "made" not in admin.list_topics(timeout=DEADLINE_S).topics
    [future] = admin.delete_topics(["made"]).values()
    with pytest.raises(KafkaException) as caught:
        future.result(DEADLINE_S)
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


async def test_aiokafka_creates_and_deletes_topics(bootstrap: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        answer = await admin.create_topics([NewTopic("of-aiokafka", 2, 1)])
        assert [error[:2] for error in answer.topic_errors] == [("of-aiokafka", 0)]
        assert "of-aiokafka" in await admin.list_topics()
        deleted = await admin.delete_topics(["of-aiokafka"])
        assert deleted.topic_error_codes == [("of-aiokafka", 0)]
        assert "of-aiokafka" not in await admin.list_topics()
    finally:
        await admin.close()


def test_kafka_python_creates_and_deletes_topics(bootstrap: str) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic
    from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic("of-kafka-python", 2, 1, topic_configs={"topic.delete.grace.ms": "0"})])
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic("of-kafka-python", 2, 1)])
    admin.delete_topics(["of-kafka-python"])
    assert "of-kafka-python" not in admin.list_topics()
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics(["of-kafka-python"])
    admin.create_topics([NewTopic("of-kafka-python", 3, 1)])  # without a grace, the name is free soon
    [found] = admin.describe_topics(["of-kafka-python"])
    assert len(found["partitions"]) == 3
    admin.close()


def test_librdkafka_deletes_records(bootstrap: str) -> None:
    from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {"held": {"legal.hold": "true"}, "cut": {}}
    for name, config in settings.items():
        [future] = admin.create_topics([NewTopic(name, 2, 1, config=config)]).values()
        future.result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": bootstrap})
    for name in settings:
        for row in range(5):
            producer.produce(name, b"%d" % row, partition=0)
    assert producer.flush(DEADLINE_S) == 0

    def deleted(topic: str, offset: int) -> int:
        [future] = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
        return int(future.result(DEADLINE_S).low_watermark)

    def refused(topic: str, offset: int) -> int:
        with pytest.raises(KafkaException) as caught:
            deleted(topic, offset)
        return int(caught.value.args[0].code())

    assert [deleted("cut", 2), deleted("cut", 1), deleted("cut", OFFSET_END)] == [2, 2, 5]
    assert refused("cut", 6) == KafkaError.OFFSET_OUT_OF_RANGE
    assert refused("held", 1) == KafkaError.POLICY_VIOLATION


def test_kafka_python_deletes_records(bootstrap: str) -> None:
    from kafka import KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient, NewTopic
    from kafka.errors import OffsetOutOfRangeError

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic("cut-too", 1, 1)])
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for row in range(5):
        producer.send("cut-too", b"%d" % row, partition=0)
    producer.flush(DEADLINE_S)
    producer.close()
    at = TopicPartition("cut-too", 0)
    assert admin.delete_records({at: 3})[at]["low_watermark"] == 3
    with pytest.raises(OffsetOutOfRangeError):
        admin.delete_records({at: 6})
    assert admin.delete_records({at: -1})[at]["low_watermark"] == 5
    admin.close()
