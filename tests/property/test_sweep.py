"""Sweeps of random roots: writers, rounds, crashes and rival sweeps go on between any two of its
steps, and nothing that counts is lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.found import Kind
from ledgermq_ledger.garbage.sweep import find_removable, sweep
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from tests.property.test_parquet_rounds import Step, World, WorldClock, steps
from tests.stores.backends import seeded_sources
from tests.stores.one_put import OnePut
from tests.virtual_time import virtual

STRANGERS = ("archive/half.parquet", "notes.txt", "brokers/readme", "ledgers/0001/segments/copy-of-7")


class BusyStore(OnePut):
    """Before call n of the sweep others make the steps that are drawn for n."""

    def __init__(self, inner: ObjectStore, world: World, meanwhile: dict[int, list[Step]]) -> None:
        super().__init__(inner)
        self._world = world
        self._meanwhile = meanwhile
        self._calls = 0

    async def _others(self) -> None:
        self._calls += 1
        for what, detail in self._meanwhile.get(self._calls, ()):
            if what == "sweep":
                await swept(self._world, self.inner, 0)
            else:
                await self._world.step(what, detail)

    async def get(self, key: str) -> bytes:
        await self._others()
        return await self.inner.get(key)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._others()
        async for info in self.inner.list(prefix, start_after):
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        await self._others()
        await self.inner.delete(keys)

    async def put_if_absent(self, key: str, buffers: object) -> None:
        await self._others()
        await self.inner.put_if_absent(key, buffers)  # type: ignore[arg-type]

    async def head(self, key: str) -> ObjectInfo:
        await self._others()
        return await self.inner.head(key)


async def swept(world: World, store: ObjectStore, grace_ms: int) -> None:
    done = await sweep(
        Compaction(store, world.root.cluster, world.root.sources, LocalEngine(world.root.sources, run_inline, 1)),
        grace_ms=grace_ms,
    )
    assert not done.failures


_meanwhile = st.dictionaries(
    st.integers(1, 60),
    st.lists(st.one_of(steps(), st.tuples(st.just("sweep"), st.none())), min_size=1, max_size=3),
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(
    before=st.lists(steps(), max_size=15),
    meanwhile=_meanwhile,
    seed=st.integers(0, 2**32),
    grace_s=st.sampled_from([0, 0, 20, 3600]),
    hidden=st.booleans(),
)
@virtual
async def test_nothing_that_counts_goes(
    before: list[Step], meanwhile: dict[int, list[Step]], seed: int, grace_s: int, hidden: bool
) -> None:
    clock = WorldClock()
    sources = Sources(clock, seeded_sources(seed).random)
    world = await World.open(clock, sources, hidden=hidden)
    root = world.root
    for what, detail in before:
        await world.step(what, detail)
    for key in STRANGERS:
        await root.store.put_if_absent(key, [b"not ours"])
    claims = [
        info.key async for info in root.store.list(keys.segments(1)) if keys.is_numbered(info.key, keys.segments(1))
    ][:1]
    await swept(world, BusyStore(root.store, world, meanwhile), grace_s * 1000)
    await world.check()
    there = {info.key async for info in root.store.list("")}
    assert there >= {*STRANGERS, *claims}
    checked = await check_root(root.store, root.cluster, run_blocking=run_inline)
    assert [problem for problem in checked.problems if problem.severity is Severity.DAMAGE] == []
    clock.now_us += 10**10
    await world.step("round", True)
    await swept(world, root.store, 0)
    await world.check()
    left = await find_removable(root.store, root.cluster, await root.catalog(), 0)
    assert [each for each in left.removable if each.kind is not Kind.PARQUET] == [], (
        "of Parquet files some may have to wait"
    )
