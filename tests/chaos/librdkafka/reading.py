"""Take messages as a member of a group, and forget those of partitions that another member gets."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.chaos.groups import KAFKA_GROUPS, PROCESSORS
from tests.chaos.librdkafka.program import SESSION_MS, Program
from tests.simulation.history import Partition

POLL_MS_MAX = 8_000
STALL_S = 11.0
"""Longer than a program may leave its consumer alone."""
STRATEGIES = ("range,roundrobin", "roundrobin", "cooperative-sticky")


def protocol_of(group: str, seed: int) -> str:
    """Return the protocol that all members of a group speak in a run."""
    if group == PROCESSORS:
        return random.Random(f"protocol {seed}").choice(("classic", "consumer"))
    return "classic" if group == "workers" else "consumer"


def _membership(group: str, name: str, seed: int) -> dict[str, Any]:
    if protocol_of(group, seed) == "consumer":
        return {"group.protocol": "consumer"}
    strategy = random.Random(f"strategy {group} {seed}").choice(STRATEGIES)
    known = {"group.instance.id": name} if name.endswith("0") else {}
    times = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 1000}
    return {"group.protocol": "classic", "partition.assignment.strategy": strategy, **times, **known}


class GroupReader:
    """`taken`: messages that are not handled yet, all of partitions that this member holds."""

    def __init__(self, program: Program, revoked: Callable[[set[Partition], bool], None], **more: Any) -> None:
        """`revoked` is called with partitions that are taken away, and whether they are lost, within a poll."""
        self._program, self._revoked = program, revoked
        self.taken: list[Message] = []
        membership = _membership(program.role, program.name, program.seed)
        start = {"auto.offset.reset": "earliest", "max.poll.interval.ms": POLL_MS_MAX}
        self.consumer = Consumer({**program.settings, "group.id": program.role, **membership, **start, **more})
        self.consumer.subscribe([KAFKA_GROUPS[program.role]], on_revoke=self._on_revoke, on_lost=self._on_lost)

    def poll(self, count: int, seconds: float) -> None:
        """Take messages until there are `count`, or none comes for now."""
        end_s = time.monotonic() + seconds
        while len(self.taken) < count and time.monotonic() < end_s:
            message = self.consumer.poll(0.05 if self.taken else 0.5)
            if message is not None and message.error() is None:
                self.taken.append(message)
            elif message is not None:
                self._told(message.error())
            elif self.taken:
                return

    def close(self) -> None:
        self._program.turn()
        self.consumer.close()

    def _told(self, error: KafkaError | None) -> None:
        assert error is not None
        self._program.told(error)

    def _on_revoke(self, _: Consumer, places: list[TopicPartition]) -> None:
        self._forget(places, lost=False)

    def _on_lost(self, _: Consumer, places: list[TopicPartition]) -> None:
        self._forget(places, lost=True)

    def _forget(self, places: list[TopicPartition], *, lost: bool) -> None:
        gone = {(place.topic, place.partition) for place in places}
        self.taken = [message for message in self.taken if place_of(message) not in gone]
        self._revoked(gone, lost)


def place_of(message: Message) -> Partition:
    topic, number = message.topic(), message.partition()
    assert topic is not None
    assert number is not None
    return topic, number


def ends_of(messages: list[Message]) -> dict[Partition, int]:
    """Return the next offset to read by partition."""
    return {place_of(message): offset_of(message) + 1 for message in messages}


def offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
