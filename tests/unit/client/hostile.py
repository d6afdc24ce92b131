"""A peer that gives prepared answers: garbage, errors, or nothing.

It stands for what no real broker of ours can be made to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from crc32c import crc32c

import ledgermq
from ledgermq.client.messages.columns import rows_to_arrow
from ledgermq.client.messages.record import row_of
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection, Connector
from ledgermq.protocol.batches.records import encode_batch
from ledgermq.protocol.frames import FetchFrame, Frame, ProduceFrame
from tests.virtual_time import virtual_in, virtual_sources

ADDRESS = "hostile:1"
NOW_US = 1_700_000_000_000_000


def encoded(*values: bytes) -> bytes:
    return encode_batch(rows_to_arrow([row_of(value, None, None, None, None, NOW_US) for value in values]))


def fetched(
    data: bytes,
    *,
    count: int,
    base: int = 0,
    crc: int | None = None,
    length: int | None = None,
    topic: str = "t",
    partition: int = 0,
) -> FetchFrame:
    """A fetch answer with one batch, which may lie about it."""
    batch = pb.FetchedBatch(
        base_offset=base,
        record_count=count,
        length=len(data) if length is None else length,
        crc=crc32c(data) if crc is None else crc,
    )
    part = pb.FetchedPartition(
        topic=topic, topic_id=1, partition=partition, high_watermark=min(base + count, 2**64 - 1), batches=[batch]
    )
    return Frame(pb.FetchHeader(partitions=[part]), [data])


def refused(error: pb.Error, topic: str = "t", partition: int = 0) -> FetchFrame:
    part = pb.FetchedPartition(topic=topic, topic_id=1, partition=partition, error=error)
    return Frame(pb.FetchHeader(partitions=[part]), [])


async def forever() -> None:
    await asyncio.Event().wait()


class HostileBroker(Connection, Connector):
    """One topic `t` with two partitions.

    `on_produce` makes the answer to a frame; `fetches` are the answers of one stream each.
    """

    def __init__(self) -> None:
        self.address = ADDRESS
        self.silent = False
        self.produced: list[ProduceFrame] = []
        self.on_produce: Callable[[ProduceFrame], pb.ProduceResponse | None] = lambda frame: pb.ProduceResponse(
            results=[pb.ProduceResult(base_offset=0) for _ in frame.header.batches]
        )
        self.fetches: list[list[FetchFrame]] = []
        self.requests: list[pb.FetchRequest] = []
        self.streams_open = 0
        self.topic_error: pb.Error | None = None
        self.offset = 0
        self.settings: dict[str, str] = {}
        self.looked_up = pb.FindMessagesResponse()

    def connect(self, address: str) -> Connection:
        return self if address == ADDRESS else NoListener(address)

    async def _answer(self) -> None:
        if self.silent:
            await forever()

    async def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        async for frame in requests:
            await self._answer()
            self.produced.append(frame)
            response = self.on_produce(frame)
            if response is None:
                return
            yield response

    async def produce_once(self, request: ProduceFrame) -> pb.ProduceResponse:
        raise AssertionError("not used by the SDK")

    async def fetch(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        await self._answer()
        self.requests.append(request)
        self.streams_open += 1
        try:
            for frame in self.fetches.pop(0) if self.fetches else ():
                yield frame
            await forever()
        finally:
            self.streams_open -= 1

    async def fetch_once(self, request: pb.FetchRequest) -> FetchFrame:
        raise AssertionError("not used by the SDK")

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        await self._answer()
        return pb.ListOffsetsResponse(results=[pb.OffsetResult(offset=self.offset) for _ in request.queries])

    async def find_messages(self, request: pb.FindMessagesRequest) -> pb.FindMessagesResponse:
        await self._answer()
        return self.looked_up

    async def open_producer(self, request: pb.OpenProducerRequest) -> pb.OpenProducerResponse:
        await self._answer()
        return pb.OpenProducerResponse(partitions=[pb.OpenedPartition(opened_slot=1) for _ in request.partitions])

    async def describe_cluster(self, request: pb.DescribeClusterRequest) -> pb.DescribeClusterResponse:
        await self._answer()
        return pb.DescribeClusterResponse(cluster_id="c")

    async def describe_topics(self, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsResponse:
        await self._answer()
        info = pb.TopicInfo(
            name="t", topic_id=1, partitions=[pb.PartitionInfo(bundle=1, owner=ADDRESS)] * 2, settings=self.settings
        )
        if self.topic_error is not None:
            info.error.CopyFrom(self.topic_error)
        return pb.DescribeTopicsResponse(topics=[info])

    async def create_topic(self, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
        raise Unavailable("no controller")

    async def alter_topic(self, request: pb.AlterTopicRequest) -> pb.AlterTopicResponse:
        raise Unavailable("no controller")

    async def delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        raise Unavailable("no controller")

    async def delete_records(self, request: pb.DeleteRecordsRequest) -> pb.DeleteRecordsResponse:
        return pb.DeleteRecordsResponse(results=[pb.DeletedRecords(log_start=self.offset) for _ in request.partitions])

    def credential(self) -> str:
        return ""

    async def wait_lost(self) -> bool:
        await forever()
        return True

    async def close(self) -> None:
        return None


class NoListener(HostileBroker):
    """An address without a listener."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address

    async def _answer(self) -> None:
        raise Unavailable(f"{self.address} refuses the connection")


@asynccontextmanager
async def hostile_broker() -> AsyncIterator[tuple[HostileBroker, ledgermq.Client]]:
    broker = HostileBroker()
    async with ledgermq.Client(
        broker, [ADDRESS], ClientSettings(timeout_s=5, attempt_timeout_s=2), virtual_sources(5)
    ) as client:
        yield broker, client
        for made in client._made:
            if isinstance(made, ledgermq.Producer):
                await made.abort()


against_a_hostile_broker = virtual_in(hostile_broker, "broker", "client")


def now_s() -> float:
    return asyncio.get_running_loop().time()
