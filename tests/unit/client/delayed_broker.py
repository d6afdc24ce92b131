"""A broker that keeps delayed records and judges sessions as an intake does, and does nothing else. It has
two bundles with one partition of the topic `t` each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ledgermq.errors import LedgerMQError, OutOfOrderSequence
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.protocol.frames import ProduceFrame
from ledgermq.protocol.status import error_to_proto
from tests.unit.client.hostile import ADDRESS, HostileBroker


@dataclass(frozen=True)
class Block:
    """A batch in the intake of its partition's bundle."""

    partition: int
    header: pb.ProduceBatch
    rows: pa.RecordBatch

    def column(self, name: str) -> list[Any]:
        return list(self.rows.column(name).to_pylist())

    @property
    def dues_us(self) -> list[int]:
        return [moment.value for moment in self.rows.column("timestamp")]


class DelayedBroker(HostileBroker):
    """`now_us`: the time that it reports. `refusals`: errors for the next frames, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self.now_us = 0
        self.opened: list[pb.OpenProducerRequest] = []
        self.refusals: list[LedgerMQError] = []
        self.lost_answers = 0
        self.outcomes: dict[tuple[int, int, int], pb.RecallOutcome] = {}
        self.recalls: list[pb.RecallDelayedRequest] = []
        self.lists: dict[int, pb.ListDelayedResponse | LedgerMQError] = {}
        self.listed: list[pb.ListDelayedRequest] = []
        self._next: dict[bytes, int] = {}
        self._stored: dict[tuple[bytes, int], int] = {}

    async def describe_cluster(self, request: pb.DescribeClusterRequest) -> pb.DescribeClusterResponse:
        return pb.DescribeClusterResponse(bundles=[pb.BundleInfo(bundle=number, owner=ADDRESS) for number in range(3)])

    async def describe_topics(self, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        partitions = [pb.PartitionInfo(bundle=1 + number, owner=ADDRESS) for number in range(2)]
        return pb.DescribeTopicsResponse(topics=[pb.TopicInfo(name="t", topic_id=1, partitions=partitions)])

    async def open_producer(self, request: pb.OpenProducerRequest) -> pb.OpenProducerResponse:
        await self._answer()
        self.opened.append(request)
        opened = [pb.OpenedPartition(opened_slot=1) for _ in request.partitions]
        return pb.OpenProducerResponse(partitions=opened, now_us=self.now_us)

    async def produce_delayed(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        async for frame in requests:
            await self._answer()
            if self.refusals:
                raise self.refusals.pop(0)
            assert frame.header.acks == pb.DURABLE
            answer = pb.ProduceResponse()
            for header, data in zip(frame.header.batches, frame.payload, strict=True):
                try:
                    answer.results.add(base_offset=self._store(header, bytes(data)), topic_id=1)
                except LedgerMQError as error:
                    answer.results.add(error=error_to_proto(error))
            if self.lost_answers:
                self.lost_answers -= 1
                return
            yield answer

    def _store(self, header: pb.ProduceBatch, data: bytes) -> int:
        session = header.producer
        if (session.id, session.sequence) in self._stored:
            return self._stored[(session.id, session.sequence)]
        if session.sequence != self._next.get(session.id, 0):
            raise OutOfOrderSequence(f"sequence {session.sequence} is not next")
        self._next[session.id] = session.sequence + 1
        offset = sum(block.partition == header.partition for block in self.blocks)
        self._stored[(session.id, session.sequence)] = offset
        self.blocks.append(Block(header.partition, header, decode_batch(data)))
        return offset

    async def recall_delayed(self, request: pb.RecallDelayedRequest) -> pb.RecallDelayedResponse:
        await self._answer()
        self.recalls.append(request)
        outcome = self.outcomes.get((request.partition, request.offset, request.row), pb.RECALLED)
        return pb.RecallDelayedResponse(outcome=outcome)

    async def list_delayed(self, request: pb.ListDelayedRequest) -> pb.ListDelayedResponse:
        self.listed.append(request)
        found = self.lists.get(request.bundle, pb.ListDelayedResponse())
        if isinstance(found, LedgerMQError):
            raise found
        return found
