"""The checks of a store find each kind of store that breaks a rule, and no other fault in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from ledgermq.errors import StoreUnusable, Unauthorized, Unavailable
from ledgermq_ledger.object_store.conformance.checks import CHECKS, check_store
from ledgermq_ledger.object_store.contract import Buffer, FencedPuts, ObjectInfo, ObjectMissing
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import virtual, virtual_sources


class Sound(MemoryStore):
    pass


class LosesTheRace(MemoryStore):
    """Looks, then writes: puts one after another are refused, those at the same time all win."""

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        is_there = key in self._objects
        await asyncio.sleep(0.01)
        if is_there:
            await super().put_if_absent(key, buffers)
        await self.put(key, b"".join(buffers))


class IgnoresTheCondition(MemoryStore):
    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await self.put(key, b"".join(buffers))


class EtagOfTheSize(MemoryStore):
    async def head(self, key: str) -> ObjectInfo:
        info = await super().head(key)
        return replace(info, etag=str(info.size))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in super().list(prefix, start_after):
            yield replace(info, etag=str(info.size))


class IgnoresRanges(MemoryStore):
    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self.get(key)


class MissingIsEmpty(MemoryStore):
    async def get(self, key: str) -> bytes:
        try:
            return await super().get(key)
        except ObjectMissing:
            return b""


class ListsLate(MemoryStore):
    """A list does not show what was put last."""

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        last = f"{self._puts:x}"
        async for info in super().list(prefix, start_after):
            if info.etag != last:
                yield info


class DeletesOneOfMany(MemoryStore):
    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys[-1:])


class ClockGoesBack(MemoryStore):
    back_ms = 0

    async def store_time_ms(self) -> int:
        self.back_ms += 60_000
        return await super().store_time_ms() - self.back_ms


class CutsLongKeys(MemoryStore):
    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await super().put_if_absent(key[:255], buffers)


class CutsLargeObjects(MemoryStore):
    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        await super().put_if_absent(key, [b"".join(buffers)[: 5 << 20]])

    async def get_suffix(self, key: str, length: int) -> bytes:
        data = await super().get_suffix(key, length)
        return b"end" if len(await self.get(key)) == 5 << 20 else data


class FencesNeverClose(MemoryStore):
    async def close_fence(self, fence: str) -> None:
        pass


class FencedPutsOverwrite(MemoryStore):
    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        puts = await super().fenced_puts(fence, keys, url_life_ms)
        store = self

        class Overwriting(FencedPuts):
            async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
                if key in store._objects:
                    await store.put(key, b"".join(buffers))
                else:
                    await puts.put_if_absent(key, buffers)

        return Overwriting()


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (Sound, set()),
        (LosesTheRace, {"race"}),
        (IgnoresTheCondition, {"create", "race"}),
        (EtagOfTheSize, {"replace"}),
        (IgnoresRanges, {"ranges", "large"}),
        (MissingIsEmpty, {"missing"}),
        (ListsLate, {"listing", "clock", "delete", "names"}),
        (DeletesOneOfMany, {"delete", "clean-up"}),
        (ClockGoesBack, {"clock"}),
        (CutsLongKeys, {"names", "clean-up"}),
        (CutsLargeObjects, {"large"}),
        (FencesNeverClose, {"expiry"}),
        (FencedPutsOverwrite, {"fences"}),
    ],
)
@virtual
async def test_each_broken_store_is_found(kind: type[MemoryStore], broken: set[str]) -> None:
    store = kind("toy", virtual_sources())
    results = await check_store(store, store, virtual_sources())
    assert [result.check for result in results] == [*CHECKS, "clean-up"]
    assert {result.check for result in results if not result.kept} == broken
    assert all(result.found for result in results)


@virtual
async def test_it_writes_below_its_prefix_alone_and_leaves_what_was_there() -> None:
    store = MemoryStore("used", virtual_sources())
    await store.put("cluster.json", b"{}")
    written: list[str] = []

    class Watched(FaultyStore):
        async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
            written.append(key)
            await super().put_if_absent(key, buffers)

    watched = Watched(store, virtual_sources())
    assert all(result.kept for result in await check_store(watched, watched, virtual_sources()))
    assert len({key.split("/")[1] for key in written}) == 1
    assert all(key.startswith("parquet/_check-") for key in written)
    assert store._keys == ["cluster.json"]


@pytest.mark.parametrize("seed", range(10))
@virtual
async def test_faults_of_a_good_store_break_no_rule(seed: int) -> None:
    """Answers that get lost are settled, as ledgers do it."""
    store = MemoryStore("good", virtual_sources())
    puts = frozenset({"put_if_absent"})
    faulty = FaultyStore(store, virtual_sources(seed), Faults(before=0.04, after=0.04, throttle=0.04), puts)
    results = await check_store(faulty, faulty, virtual_sources(seed))
    assert [result for result in results if not result.kept] == []
    assert store._keys == []


class Refuses(MemoryStore):
    def __init__(self, error: Exception) -> None:
        super().__init__("refuses", virtual_sources())
        self.error = error

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        raise self.error


@pytest.mark.parametrize("error", [Unauthorized("wrong key"), Unavailable("no answer")])
@virtual
async def test_a_store_that_does_not_let_us_in_was_not_checked(error: Exception) -> None:
    store = Refuses(error)
    with pytest.raises(type(error)):
        await check_store(store, store, virtual_sources())


@virtual
async def test_a_store_that_cannot_be_written_has_a_table_all_the_same() -> None:
    store = Refuses(StoreUnusable("read-only"))
    results = await check_store(store, store, virtual_sources())
    assert (results[0].check, results[0].kept, results[0].found) == ("create", False, "read-only")
