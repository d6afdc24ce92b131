"""The Spark sink on a cluster in virtual time: what a task and a driver have, and rows for them."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import pyarrow as pa

from ledgermq.client.client import Client
from ledgermq.client.settings.values import ClientSettings
from ledgermq_broker.ports.in_process import InProcessConnector
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.wrappers.resilient import ResilientStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_spark.sink.cluster import Place
from ledgermq_spark.sink.options import SinkOptions
from tests.broker.cluster import Cluster
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import virtual_sources

NO_FAULTS = Faults()
T = TypeVar("T")
Step = Callable[[], Awaitable[None]]


class BetweenReads(StoreWrapper):
    """A driver's view of the store: with each staged object that it gets, the next of `steps` runs
    first.
    """

    def __init__(self, inner: ObjectStore, *steps: Step) -> None:
        super().__init__(inner)
        self._steps = deque(steps)

    async def get(self, key: str) -> bytes:
        if key.startswith(keys.sink_staged("q")) and self._steps:
            await self._steps.popleft()()
        return await self.inner.get(key)


@asynccontextmanager
async def place_of(cluster: Cluster, faults: Faults = NO_FAULTS) -> AsyncIterator[Place]:
    """Of a process of its own; `faults`: of its view of the store. Batches are small."""
    sources = virtual_sources(next(cluster.client_seeds))
    store: ObjectStore = ResilientStore(FaultyStore(cluster.store, sources, faults), sources)
    options = SinkOptions("a:1", batch_bytes_max=200, buffer_bytes_max=2000, delivery_timeout_s=20)
    async with Client(
        InProcessConnector(cluster.network), ["a:1", "b:1"], ClientSettings(timeout_s=20), sources
    ) as client:
        yield Place(client, store, sources, options)


async def rows_of(rows: Sequence[str], rows_per_batch: int = 7) -> AsyncIterator[pa.RecordBatch]:
    """Each row: topic, key, value, with spaces between."""
    for at in range(0, len(rows), rows_per_batch):
        parts = [row.split() for row in rows[at : at + rows_per_batch]]
        arrays = [pa.array(column) for column in zip(*parts, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["topic", "key", "value"])
