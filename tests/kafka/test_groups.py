"""Unmodified clients of the Kafka protocol are members of groups: they share partitions, and commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

pytestmark = pytest.mark.kafka

DEADLINE_S = 60.0


def fill(bootstrap: str, topic: str, count: int = 60) -> set[bytes]:
    """Write messages to both partitions of a topic, and return them."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    values = {b"%s %d" % (topic.encode(), n) for n in range(count)}
    for n, value in enumerate(sorted(values)):
        producer.produce(topic, value, partition=n % 2)
    assert producer.flush(DEADLINE_S) == 0
    return values


def member(bootstrap: str, group: str, **settings: Any) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def poll(members: Iterable[Any], until: Callable[[], bool], found: list[bytes] | None = None) -> None:
    """Poll all members in turn until something is so; commit what they read, and add it to `found`."""
    end_s = time.monotonic() + DEADLINE_S
    while not until():
        assert time.monotonic() < end_s, "it never came about"
        for each in members:
            message = each.poll(0.05)
            if message is not None:
                assert not message.error(), message.error()
                if found is not None:
                    found.append(message.value())
                    commit(each, message)


def commit(consumer: Any, message: Any) -> None:
    """Commit a message, unless a rebalance has begun meanwhile: then its next reader gets it again."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        consumer.commit(message, asynchronous=False)
    except KafkaException as error:
        moves = KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.STALE_MEMBER_EPOCH
        if error.args[0].code() not in moves:
            raise


def numbers(consumer: Any) -> list[int]:
    return sorted(place.partition for place in consumer.assignment())


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_librdkafka_shares_a_topic_and_goes_on_where_it_was(bootstrap: str, strategy: str) -> None:
    topic = f"shared-{strategy}"
    values = fill(bootstrap, topic)
    found: list[bytes] = []
    first = member(bootstrap, topic, partition_assignment_strategy=strategy)
    first.subscribe([topic])
    poll([first], lambda: numbers(first) == [0, 1])
    second = member(bootstrap, topic, partition_assignment_strategy=strategy)
    second.subscribe([topic])
    poll([first, second], lambda: len(numbers(first)) == len(numbers(second)) == 1, found)
    poll([first, second], lambda: set(found) == values, found)
    first.close()
    poll([second], lambda: numbers(second) == [0, 1], found)
    second.close()
    more = fill(bootstrap, topic, 20)
    third, later = member(bootstrap, topic, partition_assignment_strategy=strategy), list[bytes]()
    third.subscribe([topic])
    poll([third], lambda: len(later) >= 20, later)
    assert set(later) == more
    third.close()


async def test_aiokafka_is_a_member(bootstrap: str) -> None:
    from aiokafka import AIOKafkaConsumer

    values = await asyncio.to_thread(fill, bootstrap, "aio")
    settings = {"bootstrap_servers": bootstrap, "group_id": "aio", "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer("aio", enable_auto_commit=False, **settings) as consumer:
        read = [await asyncio.wait_for(consumer.getone(), DEADLINE_S) for _ in values]
        assert {one.value for one in read} == values
        await consumer.commit()
        committed = [await consumer.committed(place) for place in sorted(consumer.assignment())]
        assert committed == [30, 30]


def test_kafka_python_is_a_member(bootstrap: str) -> None:
    from kafka import KafkaConsumer

    values = fill(bootstrap, "kafka-python-group")
    consumer = KafkaConsumer(
        "kafka-python-group",
        bootstrap_servers=bootstrap,
        group_id="kafka-python",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=60_000,
    )
    found = {next(consumer).value for _ in values}
    assert found == values
    consumer.commit()
    assert [consumer.committed(place) for place in sorted(consumer.assignment())] == [30, 30]
    consumer.close()
