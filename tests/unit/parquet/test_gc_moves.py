"""Garbage collection where a partition has moved between bundles: files go that the one bundle in charge does not list,
and no others. In virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.garbage.sweep import collect_garbage, find_garbage, remove_garbage
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.files.columns import FooterNote, empty_file
from ledgermq_ledger.rounds.runner import compact_root
from tests.virtual_time import virtual
from tests.worlds.damage import damage_checkpoint
from tests.worlds.roots import Root, parquet_keys, read_parquet_rows

OLD, NEW, THIRD = 1, 2, 3
AGED_S = 21


async def opened_root() -> tuple[Root, str]:
    """A root with two files of partition t/0, and one that nothing refers to, all made by the old bundle."""
    loop = asyncio.get_running_loop()
    sources = Sources(lambda: 10**15 + int(loop.time() * 1e6))
    root = await Root.open(MemoryStore("gc", sources), sources, bundles=4)
    topic = await root.create_topic("t", 2, OLD)
    for text in (b"a", b"b"):
        await root.produce("t", (0, [text]))
        assert not (await root.compact()).failures
    note = FooterNote(root.cluster.cluster_id, OLD, topic.id, 0, 0, 98, 1, "00", failed="f")
    left = keys.ParquetName("t", 0, 0, 98, topic.id, 1).key
    await root.store.put_if_absent(left, [bytes(empty_file(note))])
    return root, left


async def collect(root: Root, store: ObjectStore | None = None) -> list[str]:
    await asyncio.sleep(AGED_S)
    return (await collect_garbage(store or root.store, root.cluster)).keys


async def check_files(root: Root) -> None:
    rows = await read_parquet_rows(root.store)
    assert list(rows["t", 0].values()) == root.produced["t", 0]


async def move(root: Root, bundle: int) -> None:
    await root.move("t", 0, bundle)
    await root.produce("t", (0, [b"in %d" % bundle]))
    assert not (await root.compact()).failures


async def freeze(root: Root, bundle: int) -> None:
    """Bring the seal into the bundle's checkpoint."""
    engine = LocalEngine(root.sources, run_inline)
    assert not (await compact_root(root.store, root.sources, engine, bundles=[bundle])).failures


@pytest.mark.parametrize("bundles", [(), (NEW,), (NEW, OLD), (NEW, THIRD), (NEW, OLD, NEW)], ids=str)
@virtual
async def test_what_the_bundle_in_charge_does_not_list_goes(bundles: tuple[int, ...]) -> None:
    root, garbage = await opened_root()
    for bundle in bundles:
        await move(root, bundle)
    before = await parquet_keys(root.store)
    await collect(root)
    assert await parquet_keys(root.store) == [key for key in before if key != garbage]
    await check_files(root)


@virtual
async def test_nothing_goes_while_the_partition_is_between_two_bundles() -> None:
    root, garbage = await opened_root()
    await root.decide_move("t", 0, NEW)
    await root.seal("t", 0)
    await freeze(root, OLD)
    await collect(root)
    assert garbage in await parquet_keys(root.store)
    await root.open_moved("t", 0)
    await collect(root)
    assert garbage in await parquet_keys(root.store)
    await root.hand_over("t", 0)
    await collect(root)  # if the rounds of the hand-over have left it
    assert garbage not in await parquet_keys(root.store)
    await root.end_move("t", 0)
    await check_files(root)


@virtual
async def test_what_moves_away_again_between_finding_and_removing_stays_until_it_is_there() -> None:
    root, garbage = await opened_root()
    await move(root, NEW)
    await asyncio.sleep(AGED_S)
    found = await find_garbage(root.store, root.cluster)
    assert [each.key for each in found.files[OLD]] == [garbage]
    await root.decide_move("t", 0, THIRD)
    await root.seal("t", 0)
    await freeze(root, NEW)
    await remove_garbage(root.store, root.cluster, found)
    assert garbage in await parquet_keys(root.store)


class Late(StoreWrapper):
    """Looks at a bundle only when the others were looked at and something else has happened."""

    def __init__(self, inner: ObjectStore, bundle: int, steps: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._first = keys.segments(bundle)
        self._steps: Callable[[], Awaitable[None]] | None = steps

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        if prefix == self._first and self._steps is not None:
            steps, self._steps = self._steps, None
            await asyncio.sleep(1)
            await steps()
        async for info in super().list(prefix, start_after):
            yield info


@pytest.mark.parametrize("bundles", [(NEW,), (NEW, THIRD)], ids=str)
@virtual
async def test_a_list_that_moves_while_the_lists_are_read_is_found(bundles: tuple[int, ...]) -> None:
    """It is not in the one that was read first yet, and not in the one that was read last any longer."""
    root, garbage = await opened_root()

    async def steps() -> None:
        for bundle in bundles:
            await move(root, bundle)

    found = await find_garbage(Late(root.store, OLD, steps), root.cluster)
    assert [each.key for each in found.files[OLD]] == [garbage]
    await asyncio.sleep(AGED_S)
    await remove_garbage(root.store, root.cluster, found)
    assert garbage not in await parquet_keys(root.store)
    await check_files(root)


@virtual
async def test_a_legal_hold_that_only_the_new_bundle_knows_counts() -> None:
    root, garbage = await opened_root()
    await root.move("t", 1, THIRD)  # so that the old bundle has no partition of the topic
    await move(root, NEW)
    for held in ("true", "false"):
        await root.alter_topic("t", legal_hold=held)
        await root.produce("t", (0, [b"x"]))
        assert not (await root.compact()).failures
        assert [fact.held for fact in (await root.newest(NEW)).topic_facts] == [held == "true"]
        await collect(root)
        assert (garbage in await parquet_keys(root.store)) == (held == "true")


@virtual
async def test_a_bundle_in_charge_that_cannot_be_read_keeps_all() -> None:
    root, garbage = await opened_root()
    await move(root, NEW)
    await damage_checkpoint(root.store, NEW)
    await collect(root)
    assert garbage in await parquet_keys(root.store)
