"""Unmodified clients of the Kafka protocol write transactions, and readers see all of one or nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

DEADLINE_S = 60.0


def producer(bootstrap: str, transactional_id: str, **settings: Any) -> Any:
    from confluent_kafka import Producer

    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 5, **settings})
    made.init_transactions(DEADLINE_S)
    return made


@contextmanager
def reader(bootstrap: str, topic: str, level: str = "read_committed") -> Iterator[Any]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"readers-{uuid.uuid4()}",
            "isolation.level": level,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
    try:
        yield consumer
    finally:
        consumer.close()


def read(consumer: Any, count: int, quiet_s: float = 1.0) -> list[bytes]:
    """Return `count` records, after which nothing more comes for a while."""
    found: list[bytes] = []
    end_s = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < end_s, f"{len(found)} of {count} came"
        message = consumer.poll(0.2)
        if message is not None:
            assert not message.error(), message.error()
            found.append(message.value())
    message = consumer.poll(quiet_s)
    assert message is None, message.value()
    return sorted(found)


@pytest.fixture
def topic(bootstrap: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"t{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, 2)]).values():
        made.result(DEADLINE_S)
    return name


def test_librdkafka_commits_and_aborts(bootstrap: str, topic: str) -> None:
    writer = producer(bootstrap, f"{topic}-x")
    kept = []
    for n in range(6):
        writer.begin_transaction()
        for row in range(50):
            value = b"%d-%d" % (n, row)
            writer.produce(topic, value, partition=row % 2)
            kept += [value] if n % 3 != 1 else []
        if n % 3 != 1:
            writer.commit_transaction(DEADLINE_S)
        else:
            writer.flush(DEADLINE_S)
            writer.abort_transaction(DEADLINE_S)
    for level in ("read_committed", "read_uncommitted"):
        with reader(bootstrap, topic, level) as consumer:
            assert read(consumer, len(kept)) == sorted(kept)


@pytest.mark.timeout(900)
def test_a_transaction_of_many_small_batches(bootstrap: str, topic: str) -> None:
    """10,000 batches were the bound of a transaction in a bundle, which a program would meet again and again (H12)."""
    small = {"batch.num.messages": 1, "linger.ms": 0, "transaction.timeout.ms": 600_000}
    writer, count = producer(bootstrap, f"{topic}-x", **small), 11_000
    writer.begin_transaction()
    for row in range(count):
        writer.produce(topic, b"%d" % row, partition=0)
    assert writer.flush(5 * DEADLINE_S) == 0
    writer.commit_transaction(5 * DEADLINE_S)
    with reader(bootstrap, topic) as consumer:
        assert read(consumer, count) == sorted(b"%d" % row for row in range(count))


def test_librdkafka_aborts_what_is_still_on_its_way(bootstrap: str, topic: str) -> None:
    writer = producer(bootstrap, f"{topic}-x")
    for n in range(4):
        writer.begin_transaction()
        for row in range(200):
            writer.produce(topic, b"never %d %d" % (n, row), partition=row % 2)
        writer.abort_transaction(DEADLINE_S)
        writer.begin_transaction()
        writer.produce(topic, b"%d" % n, partition=0)
        writer.commit_transaction(DEADLINE_S)
    with reader(bootstrap, topic) as consumer:
        assert read(consumer, 4) == [b"0", b"1", b"2", b"3"]


def test_a_second_producer_of_an_id_fences_the_first(bootstrap: str, topic: str) -> None:
    from confluent_kafka import KafkaError, KafkaException

    first = producer(bootstrap, f"{topic}-x")
    first.begin_transaction()
    first.produce(topic, b"never", partition=0)
    first.flush(DEADLINE_S)
    second = producer(bootstrap, f"{topic}-x")
    with pytest.raises(KafkaException) as raised:
        first.commit_transaction(DEADLINE_S)
    error = raised.value.args[0]
    assert error.fatal()
    assert error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    second.begin_transaction()
    second.produce(topic, b"a", partition=0)
    second.commit_transaction(DEADLINE_S)
    with reader(bootstrap, topic) as consumer:
        assert read(consumer, 1) == [b"a"]


def test_librdkafka_consumes_transforms_and_produces(bootstrap: str, topic: str) -> None:
    """Each message is written once, though the first attempt at each batch is aborted."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    out = f"{topic}-out"
    plain = Producer({"bootstrap.servers": bootstrap})
    for n in range(40):
        plain.produce(topic, b"%d" % n, partition=0)
    assert plain.flush(DEADLINE_S) == 0
    group = f"{topic}-group"
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    writer = producer(bootstrap, f"{topic}-x")
    messages: list[Any] = []
    end_s = time.monotonic() + DEADLINE_S
    while len(messages) < 40:
        assert time.monotonic() < end_s
        messages += consumer.consume(40 - len(messages), 0.5)
    for at in range(0, 40, 10):
        for commit in (False, True):
            writer.begin_transaction()
            for message in messages[at : at + 10]:
                writer.produce(out, message.value() + b"!", partition=0)
            offsets = [TopicPartition(topic, 0, messages[at + 9].offset() + 1)]
            writer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), DEADLINE_S)
            (writer.commit_transaction if commit else writer.abort_transaction)(DEADLINE_S)
    [found] = consumer.committed([TopicPartition(topic, 0)], DEADLINE_S)
    assert found.offset == 40
    consumer.close()
    with reader(bootstrap, out) as last:
        assert read(last, 40) == sorted(b"%d!" % n for n in range(40))


def test_a_read_committed_consumer_sees_no_delay_beside_an_open_transaction(bootstrap: str, topic: str) -> None:
    """In Kafka it would see nothing behind the open transaction's first record."""
    from confluent_kafka import Producer

    writer = producer(bootstrap, f"{topic}-x")
    writer.begin_transaction()
    writer.produce(topic, b"open", partition=0)
    writer.flush(DEADLINE_S)
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    with reader(bootstrap, topic) as consumer:
        for n in range(5):
            plain.produce(topic, b"%d" % n, partition=0)
            assert plain.flush(DEADLINE_S) == 0
            assert read(consumer, 1, quiet_s=0.1) == [b"%d" % n]
        writer.commit_transaction(DEADLINE_S)
        assert read(consumer, 1) == [b"open"]


async def test_aiokafka_reads_processes_and_writes(bootstrap: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    place = TopicPartition(topic, 0)
    group = f"{topic}-group"
    async with asyncio.timeout(5 * DEADLINE_S):
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-x") as writer:
            for n in range(6):
                try:
                    async with writer.transaction():
                        for row in range(10):
                            await writer.send(topic, b"%d-%d" % (n, row), partition=row % 2)
                        await writer.send_offsets_to_transaction({place: n}, group)
                        if n % 2:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    pass
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        async with consumer:
            consumer.assign([place, TopicPartition(topic, 1)])
            assert await consumer.committed(place) == 4
            await consumer.seek_to_beginning()
            found = [(await asyncio.wait_for(consumer.getone(), DEADLINE_S)).value for _ in range(30)]
            assert sorted(found) == sorted(b"%d-%d" % (n, row) for n in (0, 2, 4) for row in range(10))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.getone(), 1.0)
