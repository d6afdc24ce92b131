"""Rival brokers append to one ledger on real stores, over a network that cuts connections: nothing
acknowledged is lost or doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from ledgermq.errors import NotOwner, RetriableError
from ledgermq.sources import Sources
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.root.open import open_store
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from tests.servers.cutting_proxy import cutting_proxy
from tests.stores.backends import seeded_sources
from tests.worlds.ledgers import TOPIC_ID, append, batch, ledger_of, own, read_values
from tests.worlds.reading import following, rows_of

BROKERS = 3
TERMS = 4
BATCHES_A_TERM = 12

Open = Callable[[Sources], Awaitable[ObjectStore]]


@pytest.fixture(params=["file", *(pytest.param(name, marks=pytest.mark.real) for name in ("minio", "azure", "gcs"))])
async def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:
        url = tmp_path.as_uri()
        if request.param != "file":
            url = request.getfixturevalue(f"{request.param}_root")
            endpoint = parse_qs(urlsplit(url).query)["endpoint"][0]
            proxy = await stack.enter_async_context(cutting_proxy(endpoint, seed=7, pieces_max=40))
            url = url.replace(endpoint, proxy.endpoint)

        async def open_one(sources: Sources) -> ObjectStore:
            return await stack.enter_async_context(await open_store(url, sources=sources))

        yield open_one


async def follow(store: ObjectStore, seen: dict[int, bytes]) -> None:
    """Until the last record."""
    ledger = FollowedLedger(ledger_of(store, 1))
    while b"last" not in seen.values():
        try:
            await ledger.open()
            async for _, batches in following(ledger, {PartitionId(TOPIC_ID, 0): len(seen)}, poll_s=0.02):
                seen |= rows_of(batches, len(seen))
                if b"last" in seen.values():
                    return
        except RetriableError:
            await asyncio.sleep(0.05)


async def test_rival_brokers_lose_and_double_nothing(open_one: Open) -> None:
    acknowledged: dict[int, bytes] = {}
    attempted: set[bytes] = set()

    async def term(store: ObjectStore, sources: Sources, name: str) -> None:
        writer = await own(store, sources, name)
        futures: list[tuple[bytes, asyncio.Future[int]]] = []
        for i in range(BATCHES_A_TERM):
            value = b"%s-%d-%d" % (name.encode(), writer.epoch, i)
            attempted.add(value)
            futures.append((value, append(writer, batch(value))[0]))
            await asyncio.sleep(0.001)
        for value, future in futures:
            try:
                offset = await future
            except NotOwner:
                continue
            assert offset not in acknowledged, "one offset was given to two records"
            acknowledged[offset] = value

    async def broker(number: int) -> None:
        sources = seeded_sources(number)
        store = await open_one(sources)
        for i in range(TERMS):
            try:
                await term(store, sources, f"b{number}-{i}")
            except RetriableError:
                await asyncio.sleep(sources.random.uniform(0, 0.05))

    seen: dict[int, bytes] = {}
    reading = asyncio.create_task(follow(await open_one(seeded_sources(98)), seen))
    await asyncio.gather(*(broker(number) for number in range(BROKERS)))
    sources = seeded_sources(99)
    store = await open_one(sources)
    last = await own(store, sources, "last")
    acknowledged[await append(last, batch(b"last"))[0]] = b"last"
    stored = await read_values(store)
    await asyncio.wait_for(reading, 120)
    assert seen == stored, "a reader without a broker, beside them all along"
    assert sorted(stored) == list(range(len(stored)))
    assert len(set(stored.values())) == len(stored)
    assert acknowledged.items() <= stored.items()
    assert set(stored.values()) <= attempted | {b"last"}
    assert len(acknowledged) > BATCHES_A_TERM, "hardly anything got through: this run proved little"
