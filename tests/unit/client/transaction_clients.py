"""A client beside a small cluster in memory that knows transactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from tests.unit.client.transaction_broker import ADDRESSES, TransactionCluster
from tests.virtual_time import virtual_in, virtual_sources


@asynccontextmanager
async def transaction_cluster() -> AsyncIterator[tuple[TransactionCluster, ledgermq.Client]]:
    cluster = TransactionCluster()
    settings = ClientSettings(timeout_s=10, attempt_timeout_s=2)
    async with ledgermq.Client(cluster, ADDRESSES, settings, virtual_sources(5)) as client:
        yield cluster, client
        cluster.faults.silent.clear()


with_transactions = virtual_in(transaction_cluster, "cluster", "client")


def now_s() -> float:
    return asyncio.get_running_loop().time()
