"""A member of a share group as Java's client is one: it finds its coordinator, is given partitions, opens a session at
each of their leaders, fetches there, and acknowledges.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import share_acknowledge_request as sa
from ledgermq_broker.kafka.wire.generated import share_fetch_request as sf
from ledgermq_broker.kafka.wire.generated import share_group_describe_request as sd
from ledgermq_broker.kafka.wire.generated import share_group_heartbeat_request as sh
from ledgermq_broker.kafka.wire.messages import (
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
)
from tests.broker.kafka_members import KafkaMember
from tests.broker.kafka_world import KafkaClient, KafkaCluster, records_of

GAP, ACCEPT, RELEASE, REJECT = range(4)

_numbers = itertools.count()

Acks = Mapping[int, Sequence[tuple[int, int, list[int]]]]
"""By partition: first and last offset, and the types."""


@dataclass(frozen=True)
class Got:
    """One message: `deliveries`: with this one."""

    partition: int
    offset: int
    value: bytes | None
    deliveries: int


class Sharer(KafkaMember):
    """`assigned`: (topic id, partition). `epoch`: as a member. Sessions are of connections: `connect` opens them."""

    def __init__(self, cluster: KafkaCluster, group: str = "g", topics: Sequence[str] = ("t",)) -> None:
        super().__init__(cluster, group, topics)
        self.settings = {}
        self.id = f"mem+ber/{next(_numbers)}"
        self.epoch = 0
        self.topic_id = bytes(16)
        self.assigned: list[int] = []
        self.lines: dict[str, SharerLine] = {}

    async def beat(self, *, says_all: bool = False, **fields: Any) -> Any:
        given = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "subscribed_topic_names": list(self.topics) if says_all or self.epoch == 0 else None,
            **fields,
        }
        answer = await self.call(SHARE_GROUP_HEARTBEAT, 1, sh.ShareGroupHeartbeatRequest(**given))
        if answer.error_code == Code.NONE:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.assigned = [n for topic in answer.assignment.topic_partitions for n in topic.partitions]
                for topic in answer.assignment.topic_partitions:
                    self.topic_id = topic.topic_id
        return answer

    async def enter(self) -> Sharer:
        answer = await self.beat()
        assert answer.error_code == Code.NONE, answer.error_message
        return self

    async def shown(self) -> Any:
        answer = await self.call(SHARE_GROUP_DESCRIBE, 1, sd.ShareGroupDescribeRequest([self.group]))
        [found] = answer.groups
        return found

    async def line(self, partition: int = 0) -> SharerLine:
        """Return its session at the leader of a partition, whose first request is to come."""
        address = await self.cluster.owner_of(self.topics[0], partition)
        found = self.lines.get(address)
        if found is None or found.client.is_over:
            found = self.lines[address] = SharerLine(self, self.cluster.connect(address))
        return found


class SharerLine:
    def __init__(self, sharer: Sharer, client: KafkaClient) -> None:
        self.sharer, self.client = sharer, client
        self.epoch = 0
        self.lock_ms = 0

    def _next(self) -> int:
        epoch, self.epoch = self.epoch, self.epoch + 1
        return epoch

    async def ask(
        self,
        *partitions: int,
        acks: Acks | None = None,
        forgets: Iterable[int] = (),
        wait_ms: int = 0,
        records: int = 500,
        max_bytes: int = 50_000_000,
        epoch: int | None = None,
        topic_id: bytes = b"",
    ) -> Any:
        uuid = topic_id or self.sharer.topic_id
        asked = {number: sf.FetchPartition(number) for number in partitions}
        for number, batches in (acks or {}).items():
            asked[number] = sf.FetchPartition(number, [sf.AcknowledgementBatch(*each) for each in batches])
        request = sf.ShareFetchRequest(
            group_id=self.sharer.group,
            member_id=self.sharer.id,
            share_session_epoch=self._next() if epoch is None else epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            max_records=records,
            batch_size=records,
            topics=[sf.FetchTopic(uuid, list(asked.values()))] if asked else [],
            forgotten_topics_data=[sf.ForgottenTopic(uuid, list(forgets))] if forgets else [],
        )
        answer = await self.client.call(SHARE_FETCH, 1, request)
        self.lock_ms = answer.acquisition_lock_timeout_ms
        return answer

    async def fetch(self, *partitions: int, **more: Any) -> list[Got]:
        """Fetch from the session, to which these are added; return what is leased to it."""
        answer = await self.ask(*partitions, **more)
        assert answer.error_code == Code.NONE, answer
        found = []
        for part in (part for topic in answer.responses for part in topic.partitions):
            assert (part.error_code, part.acknowledge_error_code) == (0, 0), part
            found += got_of(part)
        return found

    async def acknowledge(self, acks: Acks, *, epoch: int | None = None) -> dict[int, int]:
        """Return the code of each partition; -1: that of the whole."""
        request = sa.ShareAcknowledgeRequest(
            group_id=self.sharer.group,
            member_id=self.sharer.id,
            share_session_epoch=self._next() if epoch is None else epoch,
            topics=[
                sa.AcknowledgeTopic(
                    self.sharer.topic_id,
                    [
                        sa.AcknowledgePartition(number, [sa.AcknowledgementBatch(*each) for each in batches])
                        for number, batches in acks.items()
                    ],
                )
            ]
            if acks
            else [],
        )
        answer = await self.client.call(SHARE_ACKNOWLEDGE, 1, request)
        if answer.error_code:
            return {-1: answer.error_code}
        return {part.partition_index: part.error_code for topic in answer.responses for part in topic.partitions}

    async def accept(self, *messages: Got, word: int = ACCEPT) -> dict[int, int]:
        acks: dict[int, list[tuple[int, int, list[int]]]] = {}
        for one in sorted(messages, key=lambda one: one.offset):
            acks.setdefault(one.partition, []).append((one.offset, one.offset, [word]))
        return await self.acknowledge(acks)


def got_of(part: Any) -> list[Got]:
    """The messages of a partition that are leased; every record that is sent is leased."""
    deliveries = {
        offset: each.delivery_count
        for each in part.acquired_records
        for offset in range(each.first_offset, each.last_offset + 1)
    }
    records = records_of(part)
    assert {offset for offset, _ in records} == deliveries.keys()
    return [Got(part.partition_index, offset, value, deliveries[offset]) for offset, value in records]
