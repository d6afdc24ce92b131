"""Connect driver and executors to a cluster: its brokers, and its store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import ledgermq
from ledgermq.client.client import Client
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.root.open import open_store
from ledgermq_spark.shared_root import shared_root
from ledgermq_spark.sink.options import SinkOptions


@dataclass(frozen=True, slots=True)
class Place:
    """Target of a write: brokers, the store behind them, and the options."""

    client: Client
    store: ObjectStore
    sources: Sources
    options: SinkOptions


@asynccontextmanager
async def opened(options: SinkOptions) -> AsyncIterator[Place]:
    """Open the target. Raises InvalidConfig, Unavailable, the store's errors."""
    sources = Sources()
    async with ledgermq.connect(options.servers, sources=sources, **options.client_settings()) as client:
        root = options.root or (await client.describe_cluster()).root
        async with await open_store(shared_root(root), sources=sources) as store:
            yield Place(client, store, sources, options)
