"""A process that dies at any store operation, before or after its effect: the next process ends
with the same result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.internal_topic import read_internal
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.topics.topic import topic_key
from tests.stores.backends import seeded_sources
from tests.stores.dying import NOT_COUNTED, Crash, DyingStore
from tests.virtual_time import run_virtual, virtual, virtual_sources
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import Root, read_everything, read_parquet_rows

T = TypeVar("T")


async def _filled(sources: Sources) -> Root:
    root = await Root.open(MemoryStore("test", sources), sources)
    await root.create_topic("t", partitions=3, parquet_target_bytes="1500")
    await root.produce("t", (0, [b"a", b"b"]), (2, [b"c" * 600]))
    assert not (await root.compact()).failures
    for i in range(3):
        await root.produce("t", (0, [b"d%d" % i] * 5), (1, [b"e" * 900]), (2, [b"f"]))
    await root.create_topic("later")
    return root


async def _check(root: Root) -> None:
    """Readers miss nothing; then another process, without faults, ends where a run without the
    crash ends.
    """
    assert await read_everything(root) == root.produced
    await read_parquet_rows(root.store)
    report = await root.compact(sources=seeded_sources(99))
    assert not report.failures
    rows = await read_parquet_rows(root.store)
    assert {part: list(found.values()) for part, found in rows.items()} == root.produced
    left = [info.key async for info in root.store.list("ledgers/")]
    segments = [key for key in left if "/segments/" in key]
    assert segments == [keys.segment(0, 1), keys.segment(1, 1)], "claims only"
    assert not [key for key in left if "/compactions/" in key]
    assert len([key for key in left if "/checkpoints/" in key]) == 2
    assert list(await root.store.list_fences()) == []
    history = await read_history(ledger_of(root.store, 0))
    assert [r.key for r in await read_internal(root.store, history, 0, 0)] == [
        topic_key(name) for name in ("__metadata", "t", "later")
    ]


async def _run_until_crash(root: Root, dies_at: int, after_effect: bool) -> bool:
    """True: it died."""
    dying = DyingStore(root.store, dies_at, after_effect)
    try:
        await root.compact(dying, seeded_sources(1000 + dies_at))
    except Crash:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("after_effect", [False, True])
def test_any_process_finishes_what_a_crashed_one_began(after_effect: bool) -> None:
    async def run(dies_at: int) -> bool:
        root = await _filled(virtual_sources(dies_at))
        died = await _run_until_crash(root, dies_at, after_effect)
        await _check(root)
        return died

    dies_at = 1
    while run_virtual(partial(run, dies_at)):
        dies_at += 1
    assert dies_at > 100, "the run has far more operations than that"


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_many_crashes_one_after_another(seed: int) -> None:
    sources = virtual_sources(seed)
    root = await _filled(sources)
    for _ in range(6):
        await _run_until_crash(root, sources.random.randrange(1, 120), sources.random.random() < 0.5)
        await root.produce("t", (1, [b"g"]))
        assert await read_everything(root) == root.produced
    await _check(root)


class _SlowStore(StoreWrapper):
    """Every operation takes a random time before its effect."""

    def __init__(self, inner: ObjectStore, sources: Sources) -> None:
        super().__init__(inner)
        self._random = sources.random

    async def run(self, operation: str, what: str, bytes_known: int, step: Callable[[], Awaitable[T]]) -> T:
        if operation not in NOT_COUNTED:
            await asyncio.sleep(self._random.expovariate(1.0) if self._random.random() < 0.9 else 30.0)
        return await step()


@pytest.mark.parametrize("seed", range(30))
@virtual
async def test_rivals_end_with_one_result(seed: int) -> None:
    """Three processes at once, which a seed lets sleep between operations; one of them may die."""
    sources = virtual_sources(seed)
    root = await _filled(sources)
    stores = [_SlowStore(root.store, virtual_sources(seed * 10 + i)) for i in range(3)]
    reports = await asyncio.gather(
        *(root.compact(slow, virtual_sources(seed * 10 + i)) for i, slow in enumerate(stores))
    )
    assert not [report.failures for report in reports if report.failures]
    await _check(root)
