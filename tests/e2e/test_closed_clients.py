"""A closed client, and what it made, say at once that they are closed: no call waits for a time-out, and nothing
takes the error for one that passes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import ledgermq
from ledgermq.errors import Closed, InvalidConfig

_names = (f"closed-{number}" for number in itertools.count())
AT_ONCE_S = 10.0
"""Less than any time-out of the client, and time enough for a slow machine."""

CALLS: dict[str, Callable[[ledgermq.Client], Awaitable[Any]]] = {
    "list_topics": lambda client: client.list_topics(),
    "groups": lambda client: client.groups.list(),
    "create_topic": lambda client: client.create_topic("t", 1),
    "transaction": lambda client: client.transactions.list(),
    "request": lambda client: client.request("t", b"x"),
}
MAKERS: dict[str, Callable[[ledgermq.Client], object]] = {
    "producer": lambda client: client.producer(),
    "consumer": lambda client: client.consumer("t"),
    "member": lambda client: client.consumer("t", group="g"),
    "queue": lambda client: client.queue("t", group="g"),
    "table": lambda client: client.table("t"),
    "transactions": lambda client: client.transactions("id"),
}


async def closed_client() -> ledgermq.Client:
    async with ledgermq.connect(f"memory://{next(_names)}") as client:
        await client.create_topic("t", 1)
    return client


@pytest.mark.parametrize("name", CALLS)
async def test_a_call(name: str) -> None:
    client = await closed_client()
    async with asyncio.timeout(AT_ONCE_S):
        with pytest.raises(Closed):
            await CALLS[name](client)


@pytest.mark.parametrize("name", MAKERS)
async def test_nothing_more_is_made(name: str) -> None:
    client = await closed_client()
    with pytest.raises(Closed):
        MAKERS[name](client)


async def test_what_was_made_before_is_closed_with_it() -> None:
    async with ledgermq.connect(f"memory://{next(_names)}") as client:
        await client.create_topic("t", 1)
        producer, consumer = client.producer(), client.consumer("t")
        member, queue = client.consumer("t", group="g"), client.queue("t", group="q")
        await producer.send("t", b"x")
        await consumer.fetch()
        await member.fetch()
        await queue.fetch()
    async with asyncio.timeout(AT_ONCE_S):
        with pytest.raises(Closed):
            await producer.send("t", b"y")
        for reader in (consumer, member, queue):
            with pytest.raises(Closed):
                await reader.fetch()
        await client.close()


async def test_handlers_of_a_client_that_is_closed_end() -> None:
    async with ledgermq.connect(f"memory://{next(_names)}") as client:
        await client.create_topic("t", 1)

        @client.handler("t", group="g", start="earliest")
        async def handle(message: ledgermq.GroupMessage) -> None:
            await client.close()

        async with client.producer() as producer:
            await producer.send("t", b"x")
        async with asyncio.timeout(AT_ONCE_S):
            with pytest.raises(Closed):
                await client.run_handlers()


async def test_a_client_is_a_plain_object_too(tmp_path: Path) -> None:
    """As classes with `start` and `stop`, and notebooks, keep one."""
    root = tmp_path.as_uri()
    plain = ledgermq.connect(root)
    await asyncio.gather(plain.create_topic("t", 1), plain.list_topics())
    awaited = await ledgermq.connect(root)
    assert [topic.name for topic in await awaited.list_topics()] == ["t"]
    for client in (plain, awaited):
        await client.close()
        with pytest.raises(Closed):
            await client.list_topics()
    with pytest.raises(InvalidConfig):
        ledgermq.connect("no address")
    never_used = ledgermq.connect(root)
    await never_used.close()
