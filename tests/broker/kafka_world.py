"""A cluster whose brokers speak the Kafka protocol, in virtual time and without sockets: a client of these tests
hands bytes to a connection, and gets bytes back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from ledgermq.buffers import Buffer
from ledgermq.runtime.ports.turns import Turns
from ledgermq_broker.broker import Broker
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.connection import Connection
from ledgermq_broker.kafka.handlers.groups.share_members import ShareMembers
from ledgermq_broker.kafka.handlers.shares.sessions import Room
from ledgermq_broker.kafka.parts import ALL_ELEMENTS_MAX, AT_ONCE_MAX, FREE_PER_S, Parts
from ledgermq_broker.kafka.wire.frames import FrameBuffer, read_response, request_frame
from ledgermq_broker.kafka.wire.generated import fetch_request as f
from ledgermq_broker.kafka.wire.generated import init_producer_id_request as i
from ledgermq_broker.kafka.wire.generated import list_offsets_request as lo
from ledgermq_broker.kafka.wire.generated import metadata_request as m
from ledgermq_broker.kafka.wire.generated import produce_request as p
from ledgermq_broker.kafka.wire.messages import (
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    Api,
    read_whole,
    written,
)
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import FAST_CONSTANTS, Cluster
from tests.virtual_time import VirtualTest, virtual_in, virtual_sources

BATCH_MEMORY_MAX = 256 * 1024 * 1024


class KafkaCluster(Cluster):
    """`kafka`: addresses of brokers that clients of this protocol reach; none: all."""

    def __init__(self, *args: Any, kafka: Sequence[str] = (), **settings: object) -> None:
        super().__init__(*args, **settings)
        self.kafka = kafka
        self.clients: list[KafkaClient] = []
        self.members = defaultdict[Broker, ShareMembers](ShareMembers)
        """Of share groups, as each broker knows them."""
        self.share_rooms = defaultdict[Broker, Room](Room)
        self.turns = Turns(ALL_ELEMENTS_MAX, AT_ONCE_MAX, free_per_s=FREE_PER_S)

    def observers(self, address: str) -> dict[str, object]:
        is_reached = not self.kafka or address in self.kafka
        return {**super().observers(address), "kafka_address": f"{address[0]}.example:9092" if is_reached else ""}

    def connect(self, address: str, host: str = "10.0.0.1") -> KafkaClient:
        client = KafkaClient(self, address, host)
        self.clients.append(client)
        return client

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        await super().close()

    def brokers_of(self, address: str) -> Brokers:
        broker = self.brokers[address]
        offset = lambda: broker.metadata.catalog.offset  # noqa: E731
        return Brokers(broker.membership, broker.directory, broker.cluster_id, offset, broker.calls)

    async def leader_client(self, topic: str, partition: int) -> KafkaClient:
        return self.connect(await self.owner_of(topic, partition))


@asynccontextmanager
async def kafka_cluster(
    *addresses: str, store: ObjectStore | None = None, **settings: object
) -> AsyncIterator[KafkaCluster]:
    cluster = KafkaCluster(store or MemoryStore("", virtual_sources(1000)), FAST_CONSTANTS, **settings)
    try:
        for address in addresses:
            await cluster.start(address)
        await cluster.settled()
        yield cluster
    finally:
        await cluster.close()


def in_kafka_cluster(*addresses: str, **settings: object) -> VirtualTest:
    return virtual_in(lambda: kafka_cluster(*addresses, **settings), "cluster")


class Ended(Exception):
    """The broker has ended the connection."""


class KafkaClient:
    """One connection. Calls may be made side by side; answers come in the order of the calls."""

    def __init__(self, cluster: KafkaCluster, address: str, host: str = "10.0.0.1") -> None:
        self.address = address
        broker = cluster.brokers[address]
        parts = Parts(
            broker.door,
            cluster.brokers_of(address),
            broker.context.sources,
            run_inline,
            lambda: BATCH_MEMORY_MAX,
            lambda: broker.settings,
            members=cluster.members[broker],
            share_room=cluster.share_rooms[broker],
            turns=cluster.turns,
        )
        self.connections = parts.connections
        self.connection = Connection(parts, f"kafka:{host}:1", self._take, self._cut)
        self._task = asyncio.create_task(self.connection.run())
        self._task.add_done_callback(lambda _: self._cut())
        self._requests = FrameBuffer()
        self._answers = FrameBuffer()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.order: list[int] = []
        self.takes = asyncio.Event()
        """Answers leave the broker while it is set."""
        self.takes.set()
        self.answer_bytes = 0

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def _take(self, pieces: Sequence[Buffer]) -> None:
        await self.takes.wait()
        data = b"".join(pieces)
        self.answer_bytes = len(data)
        for frame in self._answers.feed(data):
            number = int.from_bytes(frame[:4], "big")
            self.order.append(number)
            self._waiting.pop(number).set_result(frame)

    def _cut(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Ended())

    def send_bytes(self, data: bytes) -> None:
        for frame in self._requests.feed(data):
            self.connection.received(frame)

    def send(self, api: Api, version: int, request: Any) -> int:
        number = next(self._numbers)
        self.send_bytes(request_frame(api, version, number, "test", written(request, version)))
        return number

    async def call(self, api: Api, version: int, request: Any) -> Any:
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        self.send_bytes(request_frame(api, version, number, "test", written(request, version)))
        if self.is_over:
            self._cut()
        _, reader = read_response(api, version, await waiting)
        return read_whole(api.response, reader, version)

    async def metadata(self, *topics: str, version: int = 12, create: bool = False) -> Any:
        everything: list[m.MetadataRequestTopic] | None = [] if version == 0 else None
        wanted = [m.MetadataRequestTopic(name=name) for name in topics] if topics else everything
        return await self.call(METADATA, version, m.MetadataRequest(topics=wanted, allow_auto_topic_creation=create))

    async def produce(self, topic: str, partition: int, records: bytes | None, acks: int = -1, version: int = 9) -> Any:
        answer = await self.call(PRODUCE, version, produce_request(topic, partition, records, acks))
        return answer.responses[0].partition_responses[0]

    async def fetch(self, topic: str, partition: int, offset: int, version: int = 12, **more: Any) -> Any:
        answer = await self.call(FETCH, version, fetch_request({(topic, partition): offset}, **more))
        return answer.responses[0].partitions[0]

    async def list_offset(
        self, topic: str, partition: int, timestamp: int, version: int = 7, *, isolation: int = 0
    ) -> Any:
        [found] = await self.list_offsets(topic, [partition], timestamp, version, isolation=isolation)
        return found

    async def list_offsets(
        self, topic: str, partitions: Sequence[int], timestamp: int, version: int = 7, *, isolation: int = 0
    ) -> list[Any]:
        asked = [lo.ListOffsetsPartition(partition_index=one, timestamp=timestamp) for one in partitions]
        request = lo.ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation,
            topics=[lo.ListOffsetsTopic(name=topic, partitions=asked)],
        )
        answer = await self.call(LIST_OFFSETS, version, request)
        return list(answer.topics[0].partitions)

    async def producer_id(self, version: int = 4, transactional_id: str | None = None) -> Any:
        return await self.call(INIT_PRODUCER_ID, version, i.InitProducerIdRequest(transactional_id=transactional_id))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


def produce_request(topic: str, partition: int, records: bytes | None, acks: int = -1) -> p.ProduceRequest:
    data = [p.PartitionProduceData(index=partition, records=records)]
    return p.ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[p.TopicProduceData(topic, partition_data=data)])


def fetch_request(
    offsets: dict[tuple[str, int], int],
    *,
    max_wait_ms: int = 0,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 1_000_000,
    min_bytes: int = 1,
    session_id: int = 0,
) -> f.FetchRequest:
    by_topic: dict[str, list[f.FetchPartition]] = {}
    for (topic, partition), offset in offsets.items():
        by_topic.setdefault(topic, []).append(
            f.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
        )
    return f.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session_id,
        topics=[f.FetchTopic(topic=name, partitions=partitions) for name, partitions in by_topic.items()],
    )


def batch_of(
    *values: bytes | None,
    key: bytes | None = None,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    codec: int = 0,
    timestamp_ms: int = 1_700_000_000_000,
    transactional: bool = False,
) -> bytes:
    """A record batch as a client sends it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=int(transactional),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=2**30,
    )
    for row, value in enumerate(values):
        builder.append(row, timestamp=timestamp_ms + row, key=key, value=value, headers=[])
    return bytes(builder.build())


def records_of(part: Any) -> list[tuple[int, bytes | None]]:
    """Offset and value of each record in an answer."""
    from aiokafka.record import MemoryRecords

    found, batches = [], MemoryRecords(bytes(part.records or b""))
    while batches.has_next():
        found += [(record.offset, record.value) for record in batches.next_batch()]
    return found
