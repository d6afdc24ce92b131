"""A coordinator that answers as it is told: what no coordinator of ours can be made to say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ledgermq.protocol import ledgermq_pb2 as pb
from tests.unit.client.hostile import ADDRESS, HostileBroker

Heartbeat = Callable[[pb.GroupHeartbeatRequest], pb.GroupHeartbeatResponse]


def assigned(*partitions: int, epoch: int = 5, group_epoch: int = 10, topic: str = "t") -> pb.GroupHeartbeatResponse:
    given = [pb.GivenPartition(topic=topic, topic_id=1, partition=partition, epoch=epoch) for partition in partitions]
    return pb.GroupHeartbeatResponse(
        group_epoch=group_epoch, assigned=given, session_timeout_ms=45_000, heartbeat_interval_ms=3000
    )


class HostileCoordinator(HostileBroker):
    """`on_heartbeat` makes the answers, or raises; `holds`: as long polls should be, when nothing
    is new.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heartbeats: list[pb.GroupHeartbeatRequest] = []
        self.on_heartbeat: Heartbeat = lambda request: assigned(0, 1)
        self.holds = True
        self.commits: list[pb.CommitOffsetsRequest] = []
        self.on_commit: Callable[[pb.CommitOffsetsRequest], pb.CommitOffsetsResponse] = lambda request: (
            pb.CommitOffsetsResponse(results=[pb.CommitResult() for _ in request.commits])
        )
        self.on_committed: Callable[[pb.FetchCommittedRequest], pb.FetchCommittedResponse] = lambda request: (
            pb.FetchCommittedResponse(
                partitions=[
                    pb.CommittedPartition(topic=at.topic, topic_id=1, partition=at.partition, offset=0)
                    for at in request.partitions
                ]
            )
        )

    def connect(self, address: str) -> HostileCoordinator:
        assert address == ADDRESS
        return self

    async def group_heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        self.heartbeats.append(request)
        await self._answer()
        answer = self.on_heartbeat(request)
        if self.holds and request.step == pb.STAY and list(request.owned) == list(answer.assigned):
            await asyncio.sleep(request.max_wait_ms / 1000)
        return answer

    async def commit_offsets(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        await self._answer()
        self.commits.append(request)
        return self.on_commit(request)

    async def fetch_committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        await self._answer()
        return self.on_committed(request)
