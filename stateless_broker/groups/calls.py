"""The group methods of `BrokerApi`: each goes to the coordinator of its group."""

from __future__ import annotations

from ledgermq.protocol import ledgermq_pb2 as pb
from stateless_broker.groups.groups import Groups


class GroupCalls:
    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    async def group_heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        return await self._groups.heartbeat(request)

    async def commit_offsets(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        return await self._groups.commit(request)

    async def fetch_committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        return await self._groups.committed(request)

    async def reset_offsets(self, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
        return await self._groups.reset(request)

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        return await self._groups.list(request)

    async def describe_group(self, request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse:
        return await self._groups.describe(request)

    async def delete_group(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        return await self._groups.delete(request)
