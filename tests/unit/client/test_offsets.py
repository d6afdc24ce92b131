"""Asking several brokers for offsets; in virtual time."""

from __future__ import annotations

import asyncio

from ledgermq.client.client import Client
from ledgermq.client.settings.values import ClientSettings
from ledgermq_broker.ports.in_process import InProcessConnector
from tests.broker.cluster import Cluster, in_cluster
from tests.virtual_time import virtual_sources

PARTITIONS = 12


@in_cluster("a:1", "b:1", "c:1", bundles=7)
async def test_a_broker_that_stands_still_does_not_keep_others_from_being_asked(cluster: Cluster) -> None:
    await cluster.settled()
    asked_at: dict[str, float] = {}
    for address, broker in cluster.brokers.items():
        real = broker.service.list_offsets

        async def list_offsets(request: object, address: str = address, real: object = real) -> object:
            asked_at.setdefault(address, asyncio.get_running_loop().time())
            return await real(request)  # type: ignore[operator]

        broker.service.list_offsets = list_offsets  # type: ignore[assignment, method-assign]
    settings = ClientSettings(timeout_s=60, attempt_timeout_s=5)
    client = Client(InProcessConnector(cluster.network), list(cluster.brokers), settings, virtual_sources())
    async with client, asyncio.timeout(120):
        await client.create_topic("t", PARTITIONS)
        asked_at.clear()
        for view in cluster.views.values():
            view.pause()
        asking = asyncio.create_task(client.list_offsets("t"))
        await asyncio.sleep(1.0)
        assert asked_at.keys() == cluster.brokers.keys(), "all of them, though none answers"
        for view in cluster.views.values():
            view.resume()
        assert await asking == dict.fromkeys(range(PARTITIONS), 0)
