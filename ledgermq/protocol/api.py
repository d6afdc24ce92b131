"""The interface between clients and brokers: a broker's calls, independent of how their bytes
travel.

A broker's service object implements `BrokerApi`; so does a gRPC connection to it
(`ledgermq.client.grpc_connection`). An embedded or simulated cluster passes the service object
itself to the client. Produce and fetch carry encoded frames (`ledgermq.protocol.frames`), so that
payload bytes are never copied through protobuf objects; the other calls carry the published
messages. Errors are raised as `ledgermq.errors`, except the per-batch and per-partition ones that a
response holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import FetchFrame, ProduceFrame


class BrokerApi(Protocol):
    def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        """Receive frames of ProduceRequest, and yield answers in the same order. Many may be in
        flight.
        """
        ...

    async def produce_once(self, request: ProduceFrame) -> pb.ProduceResponse: ...

    def fetch(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        """Yield frames of FetchResponse until the caller closes the iterator."""
        ...

    async def fetch_once(self, request: pb.FetchRequest) -> FetchFrame: ...

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse: ...

    async def open_producer(self, request: pb.OpenProducerRequest) -> pb.OpenProducerResponse: ...

    async def describe_cluster(self, request: pb.DescribeClusterRequest) -> pb.DescribeClusterResponse: ...

    async def describe_topics(self, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse: ...

    async def create_topic(self, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse: ...

    async def alter_topic(self, request: pb.AlterTopicRequest) -> pb.AlterTopicResponse: ...

    async def delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse: ...

    async def delete_records(self, request: pb.DeleteRecordsRequest) -> pb.DeleteRecordsResponse: ...

    async def group_heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse: ...

    async def commit_offsets(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse: ...

    async def fetch_committed(self, request: pb.FetchCommittedRequest) -> pb.FetchCommittedResponse: ...

    async def reset_offsets(self, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse: ...

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse: ...

    async def describe_group(self, request: pb.DescribeGroupRequest) -> pb.DescribeGroupResponse: ...

    async def delete_group(self, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse: ...


class Connection(BrokerApi, Protocol):
    """A BrokerApi at an address."""

    address: str

    async def wait_lost(self) -> bool:
        """Return when the peer is found to be gone: True if it refuses connections, False if only
        the line was lost.
        """
        ...

    async def close(self) -> None: ...


class Connector(Protocol):
    """Opens connections: over gRPC between processes, as direct calls in embedded clusters and
    simulation.
    """

    def connect(self, address: str) -> Connection: ...
