"""Check timed messages through the brokers' services, without the client, in virtual time."""

from __future__ import annotations

import asyncio

from tests.broker.cluster import Cluster, in_cluster
from tests.broker.timer_calls import Sender, Watcher, constants_of, now_s, send

BUNDLES = {"bundles": 3}


@in_cluster("a:1", **BUNDLES)
async def test_messages_come_in_the_order_of_their_times_and_never_early(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    watcher = Watcher(cluster, "t", 0)
    begun_s = now_s()
    await send(cluster, "t", 0, (b"30", begun_s + 30), (b"5", begun_s + 5), (b"10", begun_s + 10))
    await send(cluster, "t", 0, (b"7", begun_s + 7), (b"late", begun_s - 1))
    assert await watcher.until(5) == [b"late", b"5", b"7", b"10", b"30"]
    for value, seen_s in watcher.seen[1:]:
        assert 0 <= seen_s - begun_s - int(value) < 1, value
    await watcher.close()
