"""Keep what a Python worker of Spark reuses from task to task: an event loop, and the stores that
it has opened.

Spark uses a worker for task after task, one at a time, and a micro-batch has a task of a few
records every fraction of a second: opening an S3 store for each (its client, its threads, its
connections) would take longer than reading them. Each thread has its own, made by the process that
uses it, never inherited by a fork.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.root.open import open_store

STORES_MAX = 4
T = TypeVar("T")


class Worker:
    """A loop that runs only during tasks, and stores by root URL, the most recently used last."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.stores: OrderedDict[str, ObjectStore] = OrderedDict()

    async def store(self, url: str) -> ObjectStore:
        """Return the store. Raises InvalidConfig, Unauthorized."""
        if url not in self.stores:
            self.stores[url] = await open_store(url, sources=Sources())
            while len(self.stores) > STORES_MAX:
                await self.stores.popitem(last=False)[1].close()
        self.stores.move_to_end(url)
        return self.stores[url]

    async def forget(self, url: str) -> None:
        if found := self.stores.pop(url, None):
            await found.close()


class _Workers(threading.local):
    kept: Worker | None = None


_workers = _Workers()


def worker() -> Worker:
    """Return this thread's worker."""
    if _workers.kept is None or _workers.kept.process != os.getpid():
        _workers.kept = Worker()
        atexit.register(_workers.kept.loop.close)  # stores close when the process ends
    return _workers.kept


def drain(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Draw `items` in the loop of this thread's worker. Spark may stop early: then `items` is
    closed.
    """

    async def step() -> T | None:
        return await anext(items, None)

    loop = worker().loop
    try:
        while (item := loop.run_until_complete(step())) is not None:
            yield item
    finally:
        loop.run_until_complete(items.aclose())


@asynccontextmanager
async def kept_store(url: str) -> AsyncIterator[ObjectStore]:
    """Return the worker's store if its loop is running, otherwise one for this use. A task that
    fails leaves nothing for the next one.

    Raises InvalidConfig, Unauthorized.
    """
    mine = worker()
    if asyncio.get_running_loop() is not mine.loop:
        async with await open_store(url, sources=Sources()) as store:
            yield store
        return
    try:
        yield await mine.store(url)
    except Exception:
        await mine.forget(url)
        raise
