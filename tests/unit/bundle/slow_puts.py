"""A bundle whose store takes its time for each put of a segment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from ledgermq.errors import ResourceExhausted
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext, BundleLimits
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.stores.one_put import OnePut
from tests.virtual_time import VirtualTest, virtual_in, virtual_sources
from tests.worlds.bundles import bundle_context, opened
from tests.worlds.ledgers import batch

PUT_S = 0.1


class SlowPuts(OnePut):
    """Puts of segments take `put_s`; `begun` says when each began. `broken`: what the next ones
    raise.
    """

    def __init__(self, inner: ObjectStore, put_s: float = PUT_S) -> None:
        super().__init__(inner)
        self.put_s = put_s
        self.begun: list[float] = []
        self.broken: Exception | None = None

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if "/segments/" in key:
            self.begun.append(round(asyncio.get_running_loop().time(), 6))
            await asyncio.sleep(self.put_s)
        if self.broken is not None and ("/segments/" in key or key.startswith(".probe")):
            raise self.broken
        await self.inner.put_if_absent(key, buffers)


@dataclass
class World:
    store: SlowPuts
    context: BundleContext
    owner: BundleOwner
    t0: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    def flushes(self) -> list[float]:
        """When puts began, in seconds since the bundle was opened."""
        return [round(at - self.t0, 6) for at in self.store.begun if at >= self.t0]

    def send(self, value: bytes = b"a") -> asyncio.Future[int]:
        return self.owner.produce([batch(value)], durable=True)[0]


@asynccontextmanager
async def world_of(**limits: float) -> AsyncIterator[World]:
    sources = virtual_sources()
    store = SlowPuts(MemoryStore("t", sources))
    chosen = {"background_compaction": False, "flush_spacing_s": 0.03, **limits}
    context = bundle_context(store, sources, BundleLimits(**chosen))  # type: ignore[arg-type]
    async with opened(context) as owner:
        yield World(store, context, owner)
    assert context.produce_memory.taken == 0


def in_world(**limits: float) -> VirtualTest:
    return virtual_in(partial(world_of, **limits), "world")


def overload(world: World, request: list[Batch], admitted: list[asyncio.Future[int]]) -> ResourceExhausted:
    """Produce until that is refused."""
    while True:
        try:
            admitted += world.owner.produce(request, durable=True)
        except ResourceExhausted as error:
            return error
