"""A cluster of brokers in this process and in virtual time, which in-process tests start, pause,
stop and query.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any, TypeVar

import pyarrow as pa
from crc32c import crc32c

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import NotOwner, RetriableError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.batches.records import SCHEMA, decode_batch, encode_batch
from ledgermq.protocol.frames import FetchFrame, Frame, ProduceFrame
from ledgermq.protocol.naming.tokens import bearer
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.bundle.shared.context import BundleMetrics
from ledgermq_broker.filter_functions.judging import FilterFunctions
from ledgermq_broker.ports.in_process import InProcessConnector
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_tools.testing.cluster import VirtualCluster
from tests.virtual_time import VirtualTest, virtual_in, virtual_sources
from tests.waiting import until

FAST = {
    "heartbeat_interval_ms": 500,
    "holding_ms": 3000,
    "bundles": 3,
    "background_compaction": False,
    "topic_delete_grace_ms": 0,
}
FAST_CONSTANTS = BrokerConstants(damaged_retry_s=5)
TIMESTAMP_US = 1_700_000_000_000_000

T = TypeVar("T")


class PausableStore(StoreWrapper):
    """A broker's view of the store; while paused every call stands still before it reaches the
    store, as in a stopped process.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._running = asyncio.Event()
        self._running.set()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        await self._running.wait()
        return await step()

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._running.wait()
        async for info in self.inner.list(prefix, start_after):
            yield info


class Cluster(VirtualCluster):
    """`brokers` by address, each with its own pausable view of `store`."""

    def __init__(self, store: ObjectStore, constants: BrokerConstants = FAST_CONSTANTS, **settings: object) -> None:
        super().__init__(store, load_settings(None, **(FAST | settings)), constants)
        self.views: dict[str, PausableStore] = {}
        self.metrics: dict[str, BundleMetrics] = {}
        """Observers of the broker at an address."""
        self.counts: dict[str, list[object]] = {}
        self.functions: dict[str, FilterFunctions] = {}

    def view_of_store(self, address: str) -> ObjectStore:
        view = self.views[address] = PausableStore(self.store)
        return view

    def observers(self, address: str) -> dict[str, object]:
        return {
            "metrics": self.metrics.get(address),
            "counts": self.counts.get(address, []),
            "functions": self.functions.get(address),
        }

    async def close(self) -> None:
        for view in self.views.values():
            view.resume()
        await super().close()

    def line(self, address: str, token: str = "", credential: str = "", client_id: str = "") -> Connection:
        """`token`, or another `credential`: what the caller proves itself by, where the cluster has
        `security="rules"`.
        """
        proof = bearer(token) if token else credential
        return InProcessConnector(self.network, lambda _: proof, client_id).connect(address)

    def client(self, token: str = "", client_id: str = "", **settings: Any) -> ledgermq.Client:
        """A client of the brokers that run now. `token`: as in `line`."""
        chosen = ClientSettings(**{"timeout_s": 30, "attempt_timeout_s": 5, **settings})
        connector = InProcessConnector(self.network, lambda _: bearer(token) if token else "", client_id)
        return ledgermq.Client(connector, list(self.brokers), chosen, virtual_sources(next(self.client_seeds)))

    def now_ms(self) -> int:
        return next(iter(self.brokers.values())).context.sources.now_ms()

    async def create(self, name: str, partitions: int = 2, token: str = "", **settings: str) -> pb.TopicInfo:
        request = pb.CreateTopicRequest(
            name=name, partitions=partitions, settings={k.replace("_", "."): v for k, v in settings.items()}
        )
        return (await self.line(next(iter(self.brokers)), token).create_topic(request)).topic

    def serving(self, topic: str, partition: int) -> list[str]:
        """Addresses of the brokers that believe to own a partition."""
        return [
            address
            for address, broker in self.brokers.items()
            if (found := broker.metadata.catalog.topics_by_name.get(topic))
            and found.bundles[partition] in broker.ownership.terms.opened
        ]

    async def owner_of(self, topic: str, partition: int) -> str:
        await until(lambda: len(self.serving(topic, partition)) == 1)
        return self.serving(topic, partition)[0]

    async def produce(
        self, topic: str, partition: int, *values: bytes, session: pb.ProducerSession | None = None
    ) -> tuple[int, int]:
        """As a client does: ask who owns the partition, follow NOT_OWNER, try again.

        (base offset, number of retries)
        """
        retries = 0
        frame = frame_of(topic, partition, *values, session=session)
        address = next(iter(self.network.addresses()))
        async with asyncio.timeout(60):
            while True:
                try:
                    result = (await self.line(address).produce_once(frame)).results[0]
                    if not result.HasField("error"):
                        return result.base_offset, retries
                    raise error_from_proto(result.error)
                except NotOwner as error:
                    address = error.owner or address
                    wait_s = (error.retry_after_ms or 0) / 1000
                except RetriableError:
                    addresses = self.network.addresses()
                    address = addresses[retries % len(addresses)]
                    wait_s = 0.05
                retries += 1
                await asyncio.sleep(wait_s)

    async def read_all(self, topic: str, partition: int) -> list[bytes]:
        return await read_all(self.line(await self.owner_of(topic, partition)), topic, partition)


@asynccontextmanager
async def cluster_of(
    *addresses: str,
    store: ObjectStore | None = None,
    constants: BrokerConstants = FAST_CONSTANTS,
    kind: type[Cluster] = Cluster,
    **settings: object,
) -> AsyncIterator[Cluster]:
    cluster = kind(store or MemoryStore("", virtual_sources(1000)), constants, **settings)
    try:
        for address in addresses:
            await cluster.start(address)
        if addresses:
            await cluster.settled()
        yield cluster
    finally:
        await cluster.close()


def in_cluster(*addresses: str, **settings: object) -> VirtualTest:
    """Run the decorated test in virtual time; its argument `cluster` has brokers at `addresses`."""
    return virtual_in(partial(cluster_of, *addresses, **settings), "cluster")


def encoded(values: Sequence[bytes | None], key: bytes | None = None) -> bytes:
    keys, *others = _without_values(len(values), key)
    arrays = [keys, pa.array(values, SCHEMA.field("value").type), *others]
    return encode_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))


@lru_cache
def _without_values(rows: int, key: bytes | None) -> list[pa.Array]:
    """Return the columns but the values: they are the same in thousands of batches of a simulation."""
    cells = [key, None, TIMESTAMP_US, 0, None]
    fields = [field for field in SCHEMA if field.name != "value"]
    return [pa.array([cell] * rows, field.type) for cell, field in zip(cells, fields, strict=True)]


def batch_header(
    topic: str, partition: int, data: bytes, rows: int, session: pb.ProducerSession | None = None
) -> pb.ProduceBatch:
    header = pb.ProduceBatch(
        topic=topic, partition=partition, length=len(data), crc=crc32c(data), record_count=rows, schema=1
    )
    header.timestamp_min_us = header.timestamp_max_us = TIMESTAMP_US
    if session is not None:
        header.producer.CopyFrom(session)
    return header


def frame_of(topic: str, partition: int, *values: bytes, session: pb.ProducerSession | None = None) -> ProduceFrame:
    data = encoded(values)
    return Frame(pb.ProduceHeader(batches=[batch_header(topic, partition, data, len(values), session)]), [data])


def values_of(frame: FetchFrame) -> list[bytes]:
    """The values of all batches of a fetch answer."""
    payload = memoryview(b"".join(frame.payload))
    values: list[bytes] = []
    at = 0
    for partition in frame.header.partitions:
        for batch in partition.batches:
            values += decode_batch(payload[at : at + batch.length]).column("value").to_pylist()
            at += batch.length
    return values


def fetch_of(topic: str, partition: int, offset: int = 0, **more: int) -> pb.FetchRequest:
    return pb.FetchRequest(partitions=[pb.FetchPartition(topic=topic, partition=partition, offset=offset)], **more)


async def read_all(line: Connection, topic: str, partition: int) -> list[bytes]:
    """Everything from offset 0 to the end of a partition."""
    values: list[bytes] = []
    offset = 0
    while True:
        frame = await line.fetch_once(fetch_of(topic, partition, offset))
        part = frame.header.partitions[0]
        if part.HasField("error"):
            raise error_from_proto(part.error)
        values += values_of(frame)
        if part.batches:
            offset = part.batches[-1].base_offset + part.batches[-1].record_count
        if offset >= part.high_watermark:
            return values
