"""Topics of a test, by librdkafka: make them, write to them, and read the newest value of each key."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

SECONDS_MAX = 60


def create(bootstrap: str, *topics: str, partitions: int = 2) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    wanted = [NewTopic(topic, partitions) for topic in topics]
    admin = AdminClient({"bootstrap.servers": bootstrap})  # it has to live until all is made
    for made in admin.create_topics(wanted).values():
        made.result(SECONDS_MAX)


def write(bootstrap: str, topic: str, values: Sequence[str]) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value.encode())
    assert producer.flush(SECONDS_MAX) == 0


def ends(bootstrap: str, topic: str, partitions: int = 2) -> int:
    """Return the sum of the partitions' end offsets. A partition may have no leader for a moment, as after the kill of
    a broker. librdkafka keeps that answer, and fails with "unknown partition" without asking again, for as long as its
    client lives: so another client asks.
    """
    from confluent_kafka import KafkaError, KafkaException

    end_s = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return _ends(bootstrap, topic, partitions)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION or time.monotonic() > end_s:
                raise
            time.sleep(0.05)


def _ends(bootstrap: str, topic: str, partitions: int) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-ends"})
    try:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        return sum(int(consumer.get_watermark_offsets(place, SECONDS_MAX)[1]) for place in places)
    finally:
        consumer.close()


@contextmanager
def newest(bootstrap: str, topic: str, partitions: int = 2) -> Iterator[Callable[[], dict[str, str]]]:
    """Give a function that reads on and returns the newest value of each key."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-newest",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: dict[str, str] = {}

    def read() -> dict[str, str]:
        for message in consumer.consume(1000, 0.2):
            assert not message.error(), message.error()
            found[message.key().decode()] = message.value().decode()
        return found

    try:
        yield read
    finally:
        consumer.close()
