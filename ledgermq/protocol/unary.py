"""Implement the unary calls of `BrokerApi` through one method `ask`; shared by all connections,
however they carry a call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol import methods
from ledgermq.protocol.frames import FetchFrame, ProduceFrame
from ledgermq.protocol.methods import Method


class UnaryCalls(ABC):
    @abstractmethod
    async def ask(self, method: Method, request: Any, wait_s: float = 0.0) -> Any:
        """Return the answer to one request.

        `wait_s`: how long the callee may hold it on purpose, on top of the call's own time.
        """

    async def produce_once(self, request: ProduceFrame) -> pb.ProduceResponse:
        answer: pb.ProduceResponse = await self.ask(methods.PRODUCE_ONCE, request)
        return answer

    async def fetch_once(self, request: pb.FetchRequest) -> FetchFrame:
        answer: FetchFrame = await self.ask(methods.FETCH_ONCE, request, request.max_wait_ms / 1000)
        return answer

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        answer: pb.ListOffsetsResponse = await self.ask(methods.LIST_OFFSETS, request)
        return answer

    async def open_producer(self, request: pb.OpenProducerRequest) -> pb.OpenProducerResponse:
        answer: pb.OpenProducerResponse = await self.ask(methods.OPEN_PRODUCER, request)
        return answer

    async def describe_cluster(self, request: pb.DescribeClusterRequest) -> pb.DescribeClusterResponse:
        answer: pb.DescribeClusterResponse = await self.ask(methods.DESCRIBE_CLUSTER, request)
        return answer

    async def describe_topics(self, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        answer: pb.DescribeTopicsResponse = await self.ask(methods.DESCRIBE_TOPICS, request)
        return answer

    async def create_topic(self, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
        answer: pb.CreateTopicResponse = await self.ask(methods.CREATE_TOPIC, request)
        return answer

    async def alter_topic(self, request: pb.AlterTopicRequest) -> pb.AlterTopicResponse:
        answer: pb.AlterTopicResponse = await self.ask(methods.ALTER_TOPIC, request)
        return answer

    async def delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        answer: pb.DeleteTopicResponse = await self.ask(methods.DELETE_TOPIC, request)
        return answer

    async def delete_records(self, request: pb.DeleteRecordsRequest) -> pb.DeleteRecordsResponse:
        answer: pb.DeleteRecordsResponse = await self.ask(methods.DELETE_RECORDS, request)
        return answer

    async def group_heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        answer: pb.GroupHeartbeatResponse = await self.ask(methods.GROUP_HEARTBEAT, request, request.max_wait_ms / 1000)
        return answer

    async def commit_offsets(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        answer: pb.CommitOffsetsResponse = await self.ask(methods.COMMIT_OFFSETS, request)
        return answer

    async def fetch_committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse:
        answer: pb.FetchCommittedResponse = await self.ask(methods.FETCH_COMMITTED, request)
        return answer

    async def reset_offsets(self, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
        answer: pb.ResetOffsetsResponse = await self.ask(methods.RESET_OFFSETS, request)
        return answer

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        answer: pb.ListGroupsResponse = await self.ask(methods.LIST_GROUPS, request)
        return answer

    async def describe_group(self, request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse:
        answer: pb.DescribeGroupResponse = await self.ask(methods.DESCRIBE_GROUP, request)
        return answer

    async def delete_group(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
        answer: pb.DeleteGroupResponse = await self.ask(methods.DELETE_GROUP, request)
        return answer
