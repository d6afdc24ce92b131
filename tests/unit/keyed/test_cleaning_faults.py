"""Cleaning dies at any store operation, before or after its effect, or meets rivals and a store
that fails: each key stays there once.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

import pytest

from ledgermq.errors import DataDamaged, LedgerMQError
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.keyed.version import newest_version
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.topics.topic import Topic
from tests.stores.dying import Crash, DyingStore
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import run_virtual, virtual, virtual_sources
from tests.worlds.keyed_topics import Written, judge_plain, put_pairs, read_plain_version
from tests.worlds.roots import Root

AGE_S = 21


@dataclass
class Filled:
    root: Root
    topic: Topic
    written: Written
    store: MemoryStore

    async def compact(self, store: ObjectStore | None = None, sources: Sources | None = None) -> None:
        found = sources or self.root.sources
        engine = LocalEngine(found, run_inline)
        while await compact_bundle(
            Compaction(store or self.store, self.root.cluster, found, engine),
            1,
            await self.root.catalog(),
            everything=True,
        ):
            pass

    async def clean(self, store: ObjectStore | None = None, sources: Sources | None = None) -> int:
        found = sources or self.root.sources
        catalog, engine = await self.root.catalog(), LocalEngine(found, run_inline)
        return len(
            await clean_bundle(
                Compaction(store or self.store, self.root.cluster, found, engine), 1, catalog, everything=True
            )
        )

    def fork(self) -> Filled:
        """The same, in a store of its own: to fill one takes longer than what is tested."""
        store = MemoryStore("fork", self.store._sources)
        store._objects, store._keys, store._fences = (
            dict(self.store._objects),
            list(self.store._keys),
            set(self.store._fences),
        )
        return replace(self, store=store)

    async def newest(self) -> tuple[int, int]:
        published = await newest_version(self.store, PartitionId(self.topic.id, 0))
        assert published is not None
        return published.version.number, published.version.end

    async def names(self) -> list[str]:
        return [info.key async for info in self.store.list(keys.KEYED)]


async def filled(rounds: int = 3) -> Filled:
    """A version of several small files, and a log behind it that replaces some of their records;
    old enough for everything to go.
    """
    sources = virtual_sources(7)
    store = MemoryStore("keyed", sources)
    root = await Root.open(store, sources)
    topic = await root.create_topic("t", cleanup_policy="compact", parquet_target_bytes="6000", delete_retention_ms="0")
    made = Filled(root, topic, Written(), store)
    draw = random.Random(5)
    for done in range(rounds):
        for _ in range(3):
            pairs = [
                (b"k%d" % draw.randrange(20), None if draw.random() < 0.2 else draw.randbytes(300)) for _ in range(10)
            ]
            await put_pairs(root, topic, made.written, pairs)
        await made.compact()
        await asyncio.sleep(AGE_S)
        if done < rounds - 1:
            await made.clean()
            await asyncio.sleep(AGE_S)
    assert await made.names()
    return made


class _Counting(DyingStore):
    """Never dies; knows which calls change something."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, 10**9, False)
        self.changes: list[int] = []

    def after(self) -> None:
        self.changes.append(self.calls)


@pytest.mark.slow
def test_a_cleaner_that_dies_anywhere_leaves_each_key_there_once() -> None:
    """At every change, before and after it, and at every third call that only reads."""

    async def main() -> int:
        whole = await filled(2)
        counting = _Counting(whole.fork().store)
        assert await whole.clean(counting) == 2, "the dirty part, then tombstones that are old at once"
        deaths = [(at, after) for at in counting.changes for after in (False, True)]
        deaths += [(at, False) for at in range(1, counting.calls + 1, 3) if at not in counting.changes]
        for dies_at, after_effect in deaths:
            made = whole.fork()
            with pytest.raises(Crash):
                await made.clean(DyingStore(made.store, dies_at, after_effect))
            await judge_plain(made.store, made.topic, made.written)
            await made.clean()
            assert await judge_plain(made.store, made.topic, made.written) == len(made.written.rows)
            await asyncio.sleep(AGE_S)
            await made.clean()
            assert (await made.newest())[1] == len(made.written.rows)
            assert await _is_tidy(made), dies_at
        return len(counting.changes)

    assert run_virtual(main) >= 14


async def _is_tidy(made: Filled) -> bool:
    """One version, and the files that it names."""
    published = await newest_version(made.store, PartitionId(made.topic.id, 0))
    assert published is not None
    return set(await made.names()) == {published.version.key, *(file.key for file in published.version.files)}


@pytest.mark.parametrize("seed", range(3))
@virtual
async def test_rivals_on_a_store_that_fails(seed: int) -> None:
    made = await filled(2)

    async def rival(number: int) -> None:
        sources = virtual_sources(100 * seed + number)
        store = FaultyStore(
            made.store, sources, Faults(before=0.05, after=0.05, late=0.05, throttle=0.02, delay_s_max=3.0)
        )
        for _ in range(3):
            try:
                await made.clean(store, sources)
            except DataDamaged:
                raise
            except LedgerMQError:
                pass  # the store failed for too long
        await store.settled()

    async def look() -> None:
        while True:
            await judge_plain(made.store, made.topic, made.written)
            await asyncio.sleep(2.0)

    looking = asyncio.create_task(look())
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(rival(number))
    assert not looking.done(), looking.exception()
    looking.cancel()
    await made.clean()
    assert await judge_plain(made.store, made.topic, made.written) == len(made.written.rows)
    await asyncio.sleep(AGE_S)
    await made.clean()
    assert await _is_tidy(made)


@virtual
async def test_a_round_that_slept_through_others_changes_nothing() -> None:
    """Its number may be free again: what it puts there is not the highest, and goes."""
    made = await filled(2)
    sleeper = virtual_sources(50)
    slow = _Sleeper(made.store)
    late = asyncio.create_task(made.clean(slow, sleeper))
    await slow.asleep.wait()
    for _ in range(3):
        await made.clean()
        await put_pairs(made.root, made.topic, made.written, [(b"k1", b"new"), (b"k2", None)])
        await made.compact()
        await asyncio.sleep(2 * AGE_S)
    newest = await made.newest()
    slow.wake.set()
    await late
    assert await judge_plain(made.store, made.topic, made.written) == len(made.written.rows)
    assert (await made.newest())[0] >= newest[0]
    await asyncio.sleep(AGE_S)
    await made.clean()
    await asyncio.sleep(AGE_S)
    await made.clean()
    assert await _is_tidy(made)


class _Sleeper(DyingStore):
    """Stands still before it publishes."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, 10**9, False)
        self.asleep, self.wake = asyncio.Event(), asyncio.Event()

    async def put_if_absent(self, key: str, buffers: object) -> None:
        name = keys.parse_keyed(key)
        if name is not None and not name.is_file and not self.wake.is_set():
            self.asleep.set()
            await self.wake.wait()
        await self.inner.put_if_absent(key, buffers)  # type: ignore[arg-type]


@virtual
async def test_a_damaged_file_stops_its_partition_and_is_named() -> None:
    made = await filled()
    published = await newest_version(made.store, PartitionId(made.topic.id, 0))
    assert published is not None
    key = published.version.files[0].key
    data = bytearray(await made.store.get(key))
    data[len(data) // 2] ^= 1
    await made.store.delete([key])
    await made.store.put_if_absent(key, [bytes(data)])
    with pytest.raises(DataDamaged) as caught:
        await made.clean()
    assert caught.value.object_key == key
    found = await read_plain_version(MemoryStore("other", virtual_sources(1)), made.topic)
    assert found is None


@virtual
async def test_a_file_that_a_version_names_and_that_is_gone_is_damage() -> None:
    made = await filled()
    published = await newest_version(made.store, PartitionId(made.topic.id, 0))
    assert published is not None
    key = published.version.files[0].key
    await made.store.delete([key])
    with pytest.raises(DataDamaged, match="still the newest version") as caught:
        await made.clean()
    assert caught.value.object_key == key
