"""A member of a group as clients of the Kafka protocol are: it looks for its coordinator, joins, syncs, and keeps its
generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import find_coordinator_request as fc
from ledgermq_broker.kafka.wire.generated import heartbeat_request as h
from ledgermq_broker.kafka.wire.generated import join_group_request as j
from ledgermq_broker.kafka.wire.generated import leave_group_request as le
from ledgermq_broker.kafka.wire.generated import offset_commit_request as oc
from ledgermq_broker.kafka.wire.generated import offset_fetch_request as of
from ledgermq_broker.kafka.wire.generated import sync_group_request as sy
from ledgermq_broker.kafka.wire.messages import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from ledgermq_offsets.classic.consumer_protocol import assignment, subscription
from tests.broker.kafka_world import Ended, KafkaClient, KafkaCluster

AGAIN = (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_LOAD_IN_PROGRESS)


async def coordinator(cluster: KafkaCluster, group: str, at: str = "") -> KafkaClient:
    """Return a connection to the broker that any broker, or that `at`, names as the coordinator."""
    while True:
        address = at or next(iter(cluster.brokers))
        request = fc.FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        [found] = (await cluster.connect(address).call(FIND_COORDINATOR, 4, request)).coordinators
        if found.error_code == Code.NONE:
            named = f"{found.host.removesuffix('.example')}:1"
            if named in cluster.brokers:
                assert found.node_id == cluster.brokers[named].membership.me.kafka_node
                return cluster.connect(named)
        else:
            assert found.error_code in AGAIN, found
        await asyncio.sleep(0.1)


class KafkaMember:
    """`client`: to the coordinator; it looks for another one when that is no longer one."""

    def __init__(self, cluster: KafkaCluster, group: str, topics: Sequence[str] = ("t",), **settings: Any) -> None:
        self.cluster, self.group, self.topics = cluster, group, topics
        self.settings = {"session_timeout_ms": 6000, "rebalance_timeout_ms": 30_000, **settings}
        self.client: KafkaClient | None = None
        self.id = ""
        self.generation = -1
        self.leads = False
        self.members: list[str] = []
        self.assigned = b""

    async def call(self, api: Any, version: int, request: Any) -> Any:
        while True:
            if self.client is None:
                self.client = await coordinator(self.cluster, self.group)
            try:
                answer = await self.client.call(api, version, request)
            except Ended:
                assert self.client.address not in self.cluster.brokers, "the connection ended at a broker that lives"
                self.client = None
                continue
            if getattr(answer, "error_code", 0) in AGAIN:
                self.client = None
                await asyncio.sleep(0.1)
                continue
            return answer

    def join_request(self) -> j.JoinGroupRequest:
        return j.JoinGroupRequest(
            group_id=self.group,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[j.JoinGroupRequestProtocol(name="range", metadata=subscription(self.topics))],
            **self.settings,
        )

    async def join(self, version: int = 9) -> int:
        """Return the code, 0 if it has joined."""
        answer = await self.call(JOIN_GROUP, version, self.join_request())
        if answer.error_code == Code.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            answer = await self.call(JOIN_GROUP, version, self.join_request())
        if answer.error_code == Code.NONE:
            self.id, self.generation = answer.member_id, answer.generation_id
            self.leads = answer.leader == self.id
            self.members = [member.member_id for member in answer.members]
        return int(answer.error_code)

    async def sync(self) -> int:
        """The leader gives partition n of its first topic to the nth member. Return the code."""
        given = [
            sy.SyncGroupRequestAssignment(member_id=member, assignment=assignment({self.topics[0]: [at]}))
            for at, member in enumerate(self.members if self.leads else ())
        ]
        request = sy.SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            group_instance_id=self.settings.get("group_instance_id"),
            protocol_type="consumer",
            protocol_name="range",
            assignments=given,
        )
        answer = await self.call(SYNC_GROUP, 5, request)
        self.assigned = bytes(answer.assignment)
        return int(answer.error_code)

    async def enter(self) -> None:
        assert await self.join() == Code.NONE
        assert await self.sync() == Code.NONE

    async def heartbeat(self) -> int:
        request = h.HeartbeatRequest(
            self.group, self.generation, self.id, group_instance_id=self.settings.get("group_instance_id")
        )
        return int((await self.call(HEARTBEAT, 4, request)).error_code)

    async def leave(self) -> int:
        request = le.LeaveGroupRequest(self.group, members=[le.MemberIdentity(self.id)])
        answer = await self.call(LEAVE_GROUP, 5, request)
        return int(answer.error_code or answer.members[0].error_code)

    async def commit(self, *offsets: tuple[str, int, int], metadata: str = "", version: int = 9) -> list[int]:
        """Return the codes. `offsets`: (topic, partition, offset)."""
        while True:
            answer = await self.call(OFFSET_COMMIT, version, self.commit_request(offsets, metadata))
            codes = [part.error_code for topic in answer.topics for part in topic.partitions]
            if not set(codes) & set(AGAIN):
                return codes
            self.client = None
            await asyncio.sleep(0.1)

    def commit_request(self, offsets: Sequence[tuple[str, int, int]], metadata: str = "") -> oc.OffsetCommitRequest:
        return oc.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.id,
            group_instance_id=self.settings.get("group_instance_id"),
            topics=[
                oc.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        oc.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
                for topic, partition, offset in offsets
            ],
        )

    async def committed(self, topic: str = "t", partition: int = 0, version: int = 9) -> tuple[int, str, int]:
        """Return offset, metadata and code."""
        if version < 8:
            old = of.OffsetFetchRequest(
                group_id=self.group, topics=[of.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])]
            )
            part = (await self.call(OFFSET_FETCH, version, old)).topics[0].partitions[0]
            return part.committed_offset, part.metadata, part.error_code
        wanted = [of.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])]
        request = of.OffsetFetchRequest(groups=[of.OffsetFetchRequestGroup(group_id=self.group, topics=wanted)])
        [found] = (await self.call(OFFSET_FETCH, version, request)).groups
        assert found.error_code == Code.NONE, found
        part = found.topics[0].partitions[0]
        return part.committed_offset, part.metadata, part.error_code


async def enter_together(*members: KafkaMember) -> None:
    """Let all members be one generation, each of which is in it."""
    assert set(await asyncio.gather(*(member.join() for member in members))) == {Code.NONE}
    assert set(await asyncio.gather(*(member.sync() for member in members))) == {Code.NONE}
