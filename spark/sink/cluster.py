"""How driver and executors reach a cluster: its brokers, and its store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import ledgermq
from ledger.object_store.contract import ObjectStore
from ledger.object_store.open import open_store
from ledgermq.client.client import Client
from ledgermq.sources import Sources
from spark.shared_root import shared_root
from spark.sink.options import SinkOptions


@asynccontextmanager
async def opened(options: SinkOptions, sources: Sources) -> AsyncIterator[tuple[Client, ObjectStore]]:
    """Raises InvalidConfig, Unavailable, the store's errors."""
    async with ledgermq.connect(options.servers, sources=sources) as client:
        root = options.root or (await client.describe_cluster()).root
        async with await open_store(shared_root(root), sources=sources) as store:
            yield client, store
