"""Nothing of a keyed topic is cleaned under a legal hold, nor by settings that were replaced, not
even by a process that slept since it read them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ledgermq_ledger.garbage.sweep import tidy_keyed
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from tests.stores.one_put import OnePut
from tests.worlds.keyed_root import Keyed
from tests.worlds.keyed_topics import Pair
from tests.worlds.ledgers import ledger_of
from tests.worlds.roots import parquet_keys

PAIRS: list[Pair] = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]


async def cleaned(**settings: str) -> Keyed:
    """A version that holds everything, and nothing else does."""
    keyed = await Keyed.open(**settings)
    await keyed.put(*PAIRS)
    await keyed.compact()
    assert await keyed.clean() == 1
    keyed.wait(0.02)
    await keyed.clean()
    assert not await parquet_keys(keyed.root.store)
    return keyed


async def test_a_hold_keeps_the_keys_that_were_to_be_forgotten() -> None:
    keyed = await cleaned()
    await keyed.alter(legal_hold="true")
    keyed.wait(2)
    assert await keyed.clean() == 0
    assert await keyed.offsets() == [0, 1, 2]
    await keyed.alter(legal_hold="false")
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [2]


async def test_a_hold_keeps_what_later_records_replace() -> None:
    keyed = await cleaned(cleanup_policy="compact")
    await keyed.alter(legal_hold="true")
    await keyed.put(*PAIRS)
    await keyed.compact()
    assert await keyed.clean() == 0
    assert await keyed.offsets() == [0, 1, 2]
    await keyed.alter(legal_hold="false")
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [3, 4, 5]


@pytest.mark.parametrize(
    "settings", [{"retention_ms": "-1"}, {"legal_hold": "true"}, {"cleanup_policy": "delete", "retention_ms": "-1"}]
)
async def test_who_knows_settings_of_before_cleans_nothing(settings: dict[str, str]) -> None:
    keyed = await cleaned()
    old = await keyed.root.catalog()
    await keyed.alter(**settings)
    keyed.wait(2)
    assert await keyed.clean(old) == 0
    keyed.wait(2)
    assert await keyed.clean() == 0
    assert await keyed.offsets() == [0, 1, 2]


class AlteredMeanwhile(OnePut):
    """A hold comes just before an object below this folder is put."""

    def __init__(self, keyed: Keyed, folder: str) -> None:
        super().__init__(keyed.root.store)
        self._keyed = keyed
        self._folder = folder

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if self._folder in key:
            await self._keyed.alter(legal_hold="true")
        await self.inner.put_if_absent(key, buffers)


async def test_a_hold_that_comes_while_files_are_written_is_seen_before_the_version_is_put() -> None:
    keyed = await cleaned()
    old = await keyed.root.catalog()
    keyed.wait(2)
    assert await keyed.clean(old, AlteredMeanwhile(keyed, "/files/")) == 0
    assert await keyed.offsets() == [0, 1, 2]


async def test_under_a_hold_the_version_stays_that_a_sleeper_has_replaced() -> None:
    """It had looked, and the hold was answered before it put: the newest version lacks keys, the
    one before holds them.
    """
    keyed = await cleaned()
    old = await keyed.root.catalog()
    keyed.wait(2)
    before = await keyed.objects()
    assert await keyed.clean(old, AlteredMeanwhile(keyed, "/versions/")) == 1
    keyed.wait(2)
    assert await keyed.clean(old) == 0
    assert await keyed.clean() == 0
    assert set(before) <= set(await keyed.objects())


class HeldMeanwhile(StoreWrapper):
    """A hold comes when a version is read."""

    def __init__(self, keyed: Keyed) -> None:
        super().__init__(keyed.root.store)
        self._keyed = keyed

    async def get(self, key: str) -> bytes:
        if "/versions/" in key:
            await self._keyed.alter(legal_hold="true")
        return await self.inner.get(key)


async def test_a_hold_is_looked_at_just_before_versions_go() -> None:
    keyed = await cleaned()
    keyed.wait(2)
    assert await keyed.clean() == 1
    keyed.wait(0.02)
    before, root = await keyed.objects(), keyed.root
    assert (
        await tidy_keyed(
            ledger_of(HeldMeanwhile(keyed), keyed.topic.bundles[0], cluster=root.cluster, sources=root.sources),
            keyed.topic,
            0,
        )
        == []
    )
    assert await keyed.objects() == before
    await keyed.alter(legal_hold="false")
    await keyed.clean()
    assert len(await keyed.objects()) == 2
