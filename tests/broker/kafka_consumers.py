"""A member of a group as clients with `group.protocol=consumer` (KIP-848) are: it names its epoch, takes what it is
given, lets go what is no longer given to it, and says so.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import consumer_group_describe_request as cd
from ledgermq_broker.kafka.wire.generated import consumer_group_heartbeat_request as ch
from ledgermq_broker.kafka.wire.messages import CONSUMER_GROUP_DESCRIBE, CONSUMER_GROUP_HEARTBEAT
from tests.broker.kafka_members import KafkaMember
from tests.broker.kafka_world import KafkaCluster

PAUSE_S = 0.2

_numbers = itertools.count()


class KafkaConsumer(KafkaMember):
    """`generation`: its epoch. `owned`: (topic id, partition). `said`: whether the coordinator knows what it owns.
    `states`: what it states when it joins.
    """

    def __init__(self, cluster: KafkaCluster, group: str, topics: Sequence[str] | None = ("t",), **states: Any) -> None:
        super().__init__(cluster, group, topics or ())
        self.settings = {"group_instance_id": states.get("instance_id")}
        self.states = {
            "rebalance_timeout_ms": 30_000,
            "subscribed_topic_names": None if topics is None else list(topics),
            **states,
        }
        self.id = f"mem+ber/{next(_numbers)}"  # base64, as librdkafka draws them
        self.generation = 0
        self.owned: set[tuple[bytes, int]] = set()
        self.said = False
        self.news = 0
        self.message = ""
        self.interval_ms = 0

    @property
    def numbers(self) -> list[int]:
        return sorted(number for _, number in self.owned)

    def partitions(self) -> list[ch.TopicPartitions]:
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, number in sorted(self.owned):
            by_topic.setdefault(topic_id, []).append(number)
        return [ch.TopicPartitions(topic_id, numbers) for topic_id, numbers in by_topic.items()]

    def request(self, **fields: Any) -> ch.ConsumerGroupHeartbeatRequest:
        """Return the next heartbeat of a client that keeps to the protocol, but for `fields`."""
        joins = self.generation == 0
        given = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.generation,
            "instance_id": self.states.get("instance_id"),
            "topic_partitions": [] if joins else None if self.said else self.partitions(),
            **(self.states if joins else {}),
            **fields,
        }
        return ch.ConsumerGroupHeartbeatRequest(**given)

    async def send(self, request: ch.ConsumerGroupHeartbeatRequest, version: int = 1) -> Any:
        return await self.call(CONSUMER_GROUP_HEARTBEAT, version, request)

    async def beat(self, version: int = 1, **fields: Any) -> int:
        """Send a heartbeat, take what is given, let go the rest. Return the code."""
        answer = await self.send(self.request(**fields), version)
        self.message = answer.error_message or ""
        if answer.error_code == Code.NONE:
            self.said = True
            self.take(answer)
        return int(answer.error_code)

    def take(self, answer: Any) -> None:
        self.id, self.generation, self.interval_ms = answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms
        if answer.assignment is not None:
            self.news += 1
            self.owned = {(topic.topic_id, n) for topic in answer.assignment.topic_partitions for n in topic.partitions}
            self.said = False

    async def enter(self) -> None:
        assert await self.beat() == Code.NONE, self.message

    async def leave(self, epoch: int = -1) -> int:
        code = await self.beat(member_epoch=epoch, topic_partitions=None)
        self.generation, self.owned, self.said = 0, set(), False
        return code

    async def shown(self, version: int = 1) -> Any:
        """Return how tools see the group."""
        answer = await self.call(CONSUMER_GROUP_DESCRIBE, version, cd.ConsumerGroupDescribeRequest([self.group]))
        [found] = answer.groups
        return found


async def settle(*members: KafkaConsumer, beats: int = 6) -> None:
    """Send heartbeats until nothing more changes."""
    for _ in range(beats):
        for member in members:
            assert await member.beat() == Code.NONE, member.message
        await asyncio.sleep(PAUSE_S)
