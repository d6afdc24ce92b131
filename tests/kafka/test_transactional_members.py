"""Programs that read as members of a group which the broker assigns (KIP-848), and write and commit their offsets in
transactions: each record is copied once, while members and brokers are killed.

A call of librdkafka that adds offsets to a transaction waits without end, whatever its time limit, if the group's
coordinator that it knows has gone for good (its issues 5456 and 5511). So the program for librdkafka restarts itself
when it has stood still for a while, as docs/kafka.md advises.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra import java, maven
from tests.e2e.processes import BrokerProcesses
from tests.kafka.brokers import processes, seed, seeds
from tests.kafka.java import command, running
from tests.kafka.topics import create, write

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAMS = Path(__file__).parent / "programs"
PARTITIONS = 4
DEADLINE_S = 240.0

COPIES_BY_LIBRDKAFKA = """
import os, sys, threading, time
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
bootstrap, group, source, target, name = sys.argv[1:]
last_turn_s = None

def restart_when_standing_still():
    while last_turn_s is None or time.monotonic() - last_turn_s < 30:
        time.sleep(1)
    print("restarts", flush=True)
    os.execv(sys.executable, sys.orig_argv)

threading.Thread(target=restart_when_standing_still, daemon=True).start()
consumer = Consumer({
    "bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer", "enable.auto.commit": False,
    "auto.offset.reset": "earliest", "isolation.level": "read_committed",
})
settings = {"transactional.id": name, "transaction.timeout.ms": 10000, "linger.ms": 0}
producer = Producer({"bootstrap.servers": bootstrap, **settings})
producer.init_transactions(120)
consumer.subscribe([source])

def back():
    for place in consumer.committed(consumer.assignment(), 60):
        consumer.seek(TopicPartition(place.topic, place.partition, max(0, place.offset)))

while True:
    last_turn_s = time.monotonic()
    messages = [message for message in consumer.consume(7, 0.2) if not message.error()]
    if not messages:
        continue
    ends = {(message.topic(), message.partition()): message.offset() + 1 for message in messages}
    try:
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value(), partition=message.partition())
        offsets = [TopicPartition(*place, end) for place, end in ends.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
        producer.commit_transaction(60)
    except KafkaException as error:
        print("aborted", error, flush=True)
        if error.args[0].fatal():
            raise
        producer.abort_transaction(60)
        back()
        continue
    for message in messages:
        print("copied", message.value().decode(), flush=True)
"""

Copier = Callable[[str, str], list[str]]
"""`copier(bootstrap, name)` returns the command of a program that copies from "source" to "target"."""


@pytest.fixture(scope="module")
def java_copier(tmp_path_factory: pytest.TempPathFactory) -> Copier:
    command("ReadProcessWrite")  # skips where there is no Java
    folder = tmp_path_factory.mktemp("classes")
    java.compile_source(PROGRAMS / "ReadProcessWrite.java", folder, maven.jars("kafka"))
    return lambda at, name: command("ReadProcessWrite", at, "g", "source", "target", name, classes=folder)


@pytest.fixture
def librdkafka_copier() -> Copier:
    return lambda at, name: [sys.executable, "-c", COPIES_BY_LIBRDKAFKA, at, "g", "source", "target", name]


@pytest.fixture(params=["java_copier", "librdkafka_copier"])
def copier(request: pytest.FixtureRequest) -> Copier:
    found: Copier = request.getfixturevalue(request.param)
    return found


def copied(*logs: Path) -> set[str]:
    lines = [line.split() for log in logs if log.exists() for line in log.read_text(errors="replace").splitlines()]
    return {words[1] for words in lines if words[:1] == ["copied"]}


def committed(bootstrap: str, count: int) -> list[str]:
    """Return what a reader of "target" sees, once there is so much, and nothing more comes for a while."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "isolation.level": "read_committed"})
    found: list[str] = []
    try:
        consumer.assign([TopicPartition("target", number, 0) for number in range(PARTITIONS)])
        end_s = time.monotonic() + DEADLINE_S
        while len(found) < count and time.monotonic() < end_s:
            found += [message.value().decode() for message in consumer.consume(1000, 0.5) if not message.error()]
        found += [message.value().decode() for message in consumer.consume(1000, 3.0) if not message.error()]
    finally:
        consumer.close()
    return sorted(found)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerProcesses]:
    with processes(tmp_path, 3, "--group-session-timeout-ms", "6000") as found:
        yield found


def test_each_record_is_copied_once_while_members_and_brokers_are_killed(
    brokers: BrokerProcesses, copier: Copier, tmp_path: Path
) -> None:
    at = seeds(brokers)
    create(at, "source", "target", partitions=PARTITIONS)
    values: list[str] = []

    def more(count: int) -> None:
        new = [f"v{len(values) + n}" for n in range(count)]
        write(seeds(brokers), "source", new)
        values.extend(new)

    logs = [tmp_path / f"copier-{number}.log" for number in range(3)]

    def until_copied(count: int, of: Path) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while len(copied(of)) < count:
            assert time.monotonic() < end_s, [log.read_text(errors="replace")[-2000:] for log in logs if log.exists()]
            if len(copied(*logs)) == len(values):  # the other one has copied what this one would have
                more(20)
            time.sleep(0.05)

    more(150)
    with running(copier(at, "one"), logs[0]) as first, running(copier(at, "two"), logs[1]):
        until_copied(20, logs[0])
        more(100)
        brokers.kill(brokers.running[0])
        brokers.wait_ready(brokers.spawn())
        more(100)
        first.kill()  # in the middle of a transaction, most often
        until_copied(len(copied(logs[1])) + 20, logs[1])
        brokers.kill(brokers.running[0])
        with running(copier(seeds(brokers), "one"), logs[2]):  # under its transactional id: what was open is aborted
            more(100)
            until_copied(1, logs[2])
            brokers.wait_ready(brokers.spawn())
            assert committed(seed(brokers.running[-1]), len(values)) == sorted(values)
