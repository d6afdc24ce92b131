"""Clients of one cluster in two ways: in this process, and over gRPC."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

import ledgermq
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.settings.processes import load_settings
from tests.worlds.consumed import read_messages

Connect = Callable[..., AbstractAsyncContextManager[ledgermq.Client]]
_names = (f"sdk-{number}" for number in itertools.count())


async def connect_two_ways(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Connect]:
    """Opens clients of one cluster: by direct calls on a store in memory, or over gRPC on a folder."""
    if request.param == "in_process":
        target = f"memory://{next(_names)}"
        async with ledgermq.connect(target):  # keeps the cluster
            yield lambda **settings: ledgermq.connect(target, **settings)
        return
    settings = load_settings(None, port=0, auto_create_topics=False, background_compaction=False)
    async with await Node.start((tmp_path / "root").as_uri(), settings, Sources()) as node:
        yield lambda **settings: ledgermq.connect(node.address, **settings)


@asynccontextmanager
async def a_topic(connect: Connect, partitions: int = 2, **settings: object) -> AsyncIterator[ledgermq.Client]:
    async with connect() as client:
        await client.create_topic("t", partitions, {name.replace("_", "."): value for name, value in settings.items()})
        yield client


async def values_of(client: ledgermq.Client, topic: str = "t", **settings: object) -> list[bytes | None]:
    return [message.value for message in await read_messages(client, topic, **settings)]
