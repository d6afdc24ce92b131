"""Unmodified clients of the Kafka protocol produce and read back what they wrote."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

pytestmark = pytest.mark.kafka

Headers = list[tuple[str, bytes | None]]
Row = tuple[bytes | None, bytes | None, Headers]
DEADLINE_S = 60.0


def rows(count: int, null: bytes | None = None) -> list[Row]:
    """Every third record has no key; some have headers, one of them `null`; some with a key have no value."""
    return [
        (
            None if n % 3 == 0 else b"key %d" % n,
            None if n % 11 == 5 and n % 3 else b"value %d " % n * (1 + n % 7),
            [("a", b"1"), ("empty", b""), ("none", null)] if n % 2 else [],
        )
        for n in range(count)
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_writes_idempotently_and_reads_back(bootstrap: str, codec: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic, wanted = f"librdkafka-{codec}", rows(300)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
            "batch.num.messages": 40,
        }
    )
    offsets: list[int] = []
    errors: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        errors.append(error) if error else offsets.append(message.offset())

    for key, value, headers in wanted:
        producer.produce(topic, value, key, partition=1, headers=headers, on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    assert (errors, offsets) == ([], list(range(300)))

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 1, 0)])
    found: list[tuple[int, Row]] = []
    until_s = time.monotonic() + DEADLINE_S
    while len(found) < 300 and time.monotonic() < until_s:
        for message in consumer.consume(100, 1.0):
            assert not message.error(), message.error()
            found.append((message.offset(), (message.key(), message.value(), message.headers() or [])))
    assert found == list(enumerate(wanted))
    assert consumer.get_watermark_offsets(TopicPartition(topic, 1), timeout=DEADLINE_S) == (0, 300)
    consumer.close()


async def test_aiokafka_writes_and_reads_back(bootstrap: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    wanted = rows(60)
    place = TopicPartition("aiokafka", 0)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        sent = [
            await producer.send("aiokafka", value, key, partition=0, headers=headers) for key, value, headers in wanted
        ]
        assert [(await one).offset for one in sent] == list(range(60))
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    async with consumer:
        consumer.assign([place])
        found = [await asyncio.wait_for(consumer.getone(), DEADLINE_S) for _ in wanted]
        assert [(one.key, one.value, list(one.headers)) for one in found] == wanted
        assert await consumer.end_offsets([place]) == {place: 60}
        [at] = (await consumer.offsets_for_times({place: found[30].timestamp})).values()
        assert at is not None
        assert at.offset <= 30
        assert at.timestamp == found[at.offset].timestamp


def test_kafka_python_writes_and_reads_back(bootstrap: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    wanted = rows(60, null=b"not null: kafka-python sends none")
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    sent = [producer.send("kafka-python", value, key, headers, partition=0) for key, value, headers in wanted]
    assert [one.get(DEADLINE_S).offset for one in sent] == list(range(60))
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
    consumer.assign([TopicPartition("kafka-python", 0)])
    found = [next(consumer) for _ in wanted]
    assert [(one.key, one.value, list(one.headers)) for one in found] == wanted
    consumer.close()


def test_a_client_sees_the_cluster(bootstrap: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("seen", b"x")
    assert producer.flush(DEADLINE_S) == 0
    listed = producer.list_topics(timeout=DEADLINE_S)
    assert "seen" in listed.topics
    assert not any(name.startswith("__") for name in listed.topics)
    [broker] = listed.brokers.values()
    assert f"{broker.host}:{broker.port}" == bootstrap
    leaders = {partition.leader for partition in listed.topics["seen"].partitions.values()}
    assert leaders == {broker.id}
