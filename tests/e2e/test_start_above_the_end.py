"""A start above the end of the log is judged by `auto_offset_reset`, whichever way a partition is read."""

from __future__ import annotations

from typing import Any

import pytest

import ledgermq
from ledgermq.errors import OffsetOutOfRange
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.queued import fill
from tests.e2e.test_client_takeover import client_of

WAYS: list[dict[str, Any]] = [{}, {"until_end": True}, {"end": {0: 200}}, {"end": "latest"}, {"end": {0: 3}}]


async def read(client: ledgermq.Client, start: int, **settings: Any) -> list[int]:
    async with client.consumer("jobs", start={0: start}, **settings) as consumer:
        return [message.offset for message in await consumer.fetch(timeout=2)]


@in_cluster("a:1")
async def test_it_is_refused(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 5)
        for way in WAYS:
            with pytest.raises(OffsetOutOfRange, match="6"):
                await read(client, 6, **way)
        with pytest.raises(OffsetOutOfRange, match="offset 99 is above the log's end 5"):
            await client.read_arrow("jobs", start={0: 99})
        assert await read(client, 5, until_end=True) == []
        assert (await client.read_arrow("jobs", start={0: 5})).num_rows == 0


@in_cluster("a:1")
async def test_or_another_position_is_taken(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 5)
        for way in WAYS[1:3]:
            assert await read(client, 99, auto_offset_reset="earliest", **way) == [0, 1, 2, 3, 4]
            assert await read(client, 99, auto_offset_reset="latest", **way) == []
        found = await client.read_arrow("jobs", start={0: 99}, auto_offset_reset="earliest")
        assert found["offset"].to_pylist() == [0, 1, 2, 3, 4]
