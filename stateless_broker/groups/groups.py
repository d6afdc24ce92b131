"""The groups of a cluster, as one broker serves them: which coordinator a group has, and the way to it."""

from __future__ import annotations

from ledgermq.errors import Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb


class Groups:
    async def heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        raise Unavailable("the coordinator is loading", retry_after_ms=1000)

    async def commit(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        raise Unavailable("the coordinator is loading", retry_after_ms=1000)

    async def committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        raise Unavailable("the coordinator is loading", retry_after_ms=1000)

    async def reset(self, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
        raise Unavailable("the coordinator is loading", retry_after_ms=1000)

    async def list(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        raise Unavailable("the coordinator is loading", retry_after_ms=1000)

    async def describe(self, request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse:
        raise Unavailable("the coordinator is loading", retry_after_ms=1000)

    async def delete(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        raise Unavailable("the coordinator is loading", retry_after_ms=1000)
