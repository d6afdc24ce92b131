"""A client of the bare protocol, without the SDK: it follows NOT_OWNER, retries retriable errors,
and counts its retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from ledgermq.client.connection.grpc_connection import GrpcConnection, GrpcConnector
from ledgermq.errors import LedgerMQError, NotOwner, ResourceExhausted, RetriableError, TopicExists
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto
from tests.broker.cluster import frame_of, read_all

DEADLINE_S = 40.0
ATTEMPT_S = 6.0
"""Longer than a broker waits for a bundle that it is just taking over: else its answer is lost, and
what it did is not.
"""

T = TypeVar("T")


class RawClient:
    def __init__(self, *addresses: str, attempt_s: float = ATTEMPT_S) -> None:
        self._addresses = list(addresses)
        self._connector = GrpcConnector(request_timeout_s=attempt_s)
        self._lines: dict[str, GrpcConnection] = {}
        self._owner: dict[tuple[str, int], str] = {}
        self._next = 0

    def line(self, address: str) -> GrpcConnection:
        if address not in self._lines:
            self._lines[address] = self._connector.connect(address)
        return self._lines[address]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self._lines.values():
            await line.close()

    async def create(self, name: str, partitions: int, **settings: str) -> pb.TopicInfo:
        request = pb.CreateTopicRequest(name=name, partitions=partitions, settings=settings)
        line = self.line(self._addresses[0])
        is_first = True
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    return (await line.create_topic(request)).topic
                except TopicExists:
                    if is_first:
                        raise
                    with suppress(RetriableError):  # made by an attempt before, whose answer did not come
                        [info] = (
                            await line.describe_topics(pb.DescribeTopicsRequest(topics=[name], fresh=True))
                        ).topics
                        if not info.HasField("error"):
                            return info
                except RetriableError:
                    pass
                is_first = False
                await asyncio.sleep(0.1)

    async def describe(self) -> pb.DescribeClusterResponse:
        return await self.line(self._addresses[0]).describe_cluster(pb.DescribeClusterRequest())

    async def owner(self, topic: str, partition: int) -> str:
        """Learned from any broker that answers, and kept until it is wrong."""
        async with asyncio.timeout(DEADLINE_S):
            while not self._owner.get((topic, partition)):
                self._next += 1
                try:
                    line = self.line(self._addresses[self._next % len(self._addresses)])
                    [info] = (await line.describe_topics(pb.DescribeTopicsRequest(topics=[topic]))).topics
                    self._owner[topic, partition] = (
                        info.partitions[partition].owner if len(info.partitions) > partition else ""
                    )
                except RetriableError:
                    pass
                if not self._owner.get((topic, partition)):
                    await asyncio.sleep(0.02)
        return self._owner[topic, partition]

    async def at_owner(
        self, topic: str, partition: int, ask: Callable[[GrpcConnection], Awaitable[T]]
    ) -> tuple[T, int]:
        """The answer of the partition's owner, and the number of retries that it took."""
        retries = 0
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    return await ask(self.line(await self.owner(topic, partition))), retries
                except NotOwner as error:
                    self._owner[topic, partition] = error.owner or ""
                    await asyncio.sleep((error.retry_after_ms or 0) / 1000)
                except RetriableError as error:
                    if not isinstance(error, ResourceExhausted):
                        self._owner[topic, partition] = ""  # it may be dead, or stopped: ask the others
                    await asyncio.sleep(0.02)
                retries += 1

    async def open(self, topic: str, partition: int, producer_id: bytes) -> pb.ProducerSession:
        wanted = pb.OpenProducerRequest(partitions=[pb.TopicPartition(topic=topic, partition=partition)])

        async def ask(line: GrpcConnection) -> int:
            [opened] = (await line.open_producer(wanted)).partitions
            if opened.HasField("error"):
                raise error_from_proto(opened.error)
            return opened.opened_slot

        slot, _ = await self.at_owner(topic, partition, ask)
        return pb.ProducerSession(id=producer_id, opened_slot=slot)

    async def produce(
        self, topic: str, partition: int, *values: bytes, session: pb.ProducerSession | None = None
    ) -> tuple[int, int]:
        """(base offset, retries); with a session a retry never stores twice, and the session moves
        on by the number of values.
        """
        frame = frame_of(topic, partition, *values, session=session)

        async def ask(line: GrpcConnection) -> int:
            [result] = (await line.produce_once(frame)).results
            if result.HasField("error"):
                raise error_from_proto(result.error)
            return result.base_offset

        offset, retries = await self.at_owner(topic, partition, ask)
        if session is not None:
            session.sequence += len(values)
        return offset, retries

    async def read_all(self, topic: str, partition: int) -> list[bytes]:
        values, _ = await self.at_owner(topic, partition, lambda line: read_all(line, topic, partition))
        return values

    async def error_of(self, topic: str, partition: int) -> LedgerMQError | None:
        """What producing one record says in the end: retriable errors are tried again, also at the
        address of a broker that is gone.
        """
        try:
            await self.produce(topic, partition, b"?")
        except LedgerMQError as error:
            return error
        return None
