"""A store that counts its reads, and what another process does beside the owner."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from ledgermq.sources import Sources
from ledgermq_broker.bundle.shared.context import BundleContext, BundleLimits, BundleMetrics
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_bundle
from tests.stores.one_put import OnePut

NO_CACHE = BundleLimits(cache_bytes_max=0, background_compaction=False)


class Sums(BundleMetrics):
    """Bytes fetched, by where they came from."""

    def __init__(self) -> None:
        self.sources: Counter[str] = Counter()

    def fetched(self, bundle: int, source: str, size_bytes: int) -> None:
        self.sources[source] += size_bytes


class CountingStore(StoreWrapper):
    """`ranges`: (key, length) of each range GET. `gate`: while closed, range GETs wait."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.ranges: list[tuple[str, int]] = []
        self.running = self.running_most = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.ranges.append((key, length))
        self.running += 1
        self.running_most = max(self.running_most, self.running)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            return await self.inner.get_range(key, start, length)
        finally:
            self.running -= 1


def counting_store(sources: Sources) -> CountingStore:
    return CountingStore(MemoryStore("reads", sources))


async def compact(context: BundleContext) -> None:
    """What a Spark job, or another process, does beside the owner."""
    engine = LocalEngine(context.sources, run_inline)
    report = await compact_bundle(
        Compaction(context.store, context.cluster, context.sources, engine), 1, context.catalog(), everything=True
    )
    assert report is not None


async def segments(store: ObjectStore) -> list[int]:
    return [keys.number(info.key) async for info in store.list(keys.segments(1))]


class Lists(StoreWrapper):
    lists = 0

    async def list(self, prefix: str, start_after: str = ""):  # type: ignore[no-untyped-def]
        self.lists += 1
        await asyncio.sleep(0)  # so that callers side by side meet
        async for info in self.inner.list(prefix, start_after):
            yield info


class HeldAnswers(OnePut):
    """Puts of segments happen at once; while `gate` is closed their answers wait."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self.inner.put_if_absent(key, buffers)
        if key.startswith(keys.segments(1)):
            await self.gate.wait()
