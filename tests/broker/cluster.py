"""A cluster of brokers in this process, on one store: what the in-process tests start, stop and ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pyarrow as pa
from crc32c import crc32c

from ledger.object_store.contract import ObjectStore
from ledger.object_store.memory import MemoryStore
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import FetchFrame, Frame, ProduceFrame
from ledgermq.protocol.records import SCHEMA, decode_batch, encode_batch
from ledgermq.sources import Sources
from stateless_broker.broker import Broker
from stateless_broker.in_process import InProcessConnector, Network
from stateless_broker.settings import BrokerSettings, load_settings

FAST = {
    "heartbeat_interval_ms": 40,
    "holding_ms": 200,
    "ownership_wait_ms": 3000,
    "trouble_retry_ms": 200,
    "bundles": 3,
    "background_compaction": False,
}


class Cluster:
    """`brokers` by address. `store_of(address)` may give a broker its own view of the store (faults, pauses)."""

    def __init__(self, store: ObjectStore | None = None, **settings: object) -> None:
        self.store = store or MemoryStore()
        self.settings: BrokerSettings = load_settings(None, **(FAST | settings))
        self.network = Network()
        self.connector = InProcessConnector(self.network)
        self.brokers: dict[str, Broker] = {}

    async def start(self, address: str, store: ObjectStore | None = None) -> Broker:
        broker = await Broker.start(store or self.store, Sources(), self.settings, address, self.connector)
        self.network.listen(address, broker.service)
        self.brokers[address] = broker
        return broker

    async def stop(self, address: str, *, graceful: bool = True) -> None:
        if not graceful:
            self.network.stop_listening(address)
        await self.brokers.pop(address).stop(graceful)
        self.network.stop_listening(address)

    async def close(self) -> None:
        for address in list(self.brokers):
            await self.stop(address, graceful=False)

    def line(self, address: str) -> Connection:
        return self.connector.connect(address)

    async def owner_of(self, topic: str, partition: int) -> str:
        """The address that really serves a partition now; asks until somebody does."""
        async with asyncio.timeout(10):
            while True:
                for address, broker in self.brokers.items():
                    found = broker.metadata.catalog.topics_by_name.get(topic)
                    if found is not None and found.bundles[partition] in broker.ownership.terms.opened:
                        return address
                await asyncio.sleep(0.01)

    async def until(self, condition: object) -> None:
        """Until the callable `condition` is true."""
        assert callable(condition)
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def cluster_of(*addresses: str, store: ObjectStore | None = None, **settings: object) -> AsyncIterator[Cluster]:
    cluster = Cluster(store, **settings)
    try:
        for address in addresses:
            await cluster.start(address)
        yield cluster
    finally:
        await cluster.close()


def encoded(values: Sequence[bytes | None], key: bytes | None = None) -> bytes:
    rows = len(values)
    columns = [[key] * rows, list(values), [None] * rows, [1_700_000_000_000_000] * rows, [0] * rows, [None] * rows]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return encode_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))


def batch_header(topic: str, partition: int, data: bytes, rows: int, session: pb.ProducerSession | None = None) -> pb.ProduceBatch:
    header = pb.ProduceBatch(topic=topic, partition=partition, length=len(data), crc=crc32c(data), record_count=rows, schema=1)
    header.timestamp_min_us = header.timestamp_max_us = 1_700_000_000_000_000
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


async def read_all(line: Connection, topic: str, partition: int) -> list[bytes]:
    """Everything from offset 0 to the end of a partition."""
    values: list[bytes] = []
    offset = 0
    while True:
        request = pb.FetchRequest(partitions=[pb.FetchPartition(topic=topic, partition=partition, offset=offset)])
        frame = await line.fetch_once(request)
        part = frame.header.partitions[0]
        assert not part.HasField("error"), part.error
        values += values_of(frame)
        if part.batches:
            offset = part.batches[-1].base_offset + part.batches[-1].record_count
        if offset >= part.high_watermark:
            return values
