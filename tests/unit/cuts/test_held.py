"""Files that are handed over to cuts, and what a check and a backup of a root say of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledgermq.errors import DataDamaged, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.held import hand_over
from ledgermq_ledger.fsck.cuts_check import check_cuts
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.object_store.contract import Buffer, StoreUncertain
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_tools.ledger import backup
from tests.virtual_time import virtual
from tests.worlds.cuts import take_cut
from tests.worlds.root_commands import RootCommand
from tests.worlds.roots import Root, parquet_keys
from tests.worlds.set_tables import a_root, make_round


class Uncertain(StoreWrapper):
    """Puts below `held/` have no certain outcome; `lands`: they happen."""

    lands = True

    async def put_if_absent(self, key: str, buffers: list[Buffer]) -> None:  # type: ignore[override]
        if self.lands or not key.startswith(names.HELD):
            await self.inner.put_if_absent(key, buffers)
        if key.startswith(names.HELD):
            raise StoreUncertain("no answer")


async def a_file(root: Root) -> str:
    await make_round(root)
    return (await parquet_keys(root.store, keys.PARQUET))[0]


@virtual
async def test_what_is_there_decides_whether_a_file_was_handed_over() -> None:
    root = await a_root(has_table=False)
    key = await a_file(root)
    store = Uncertain(root.store)
    store.lands = False
    with pytest.raises(Unavailable, match="stays, retry later"):
        await hand_over(store, key)
    store.lands = True
    await hand_over(store, key)
    await hand_over(root.store, key)
    assert await root.store.get(names.held(key)) == await root.store.get(key)
    await root.store.delete([key])
    await hand_over(root.store, key)  # another process was faster


@virtual
async def test_another_object_in_its_place_is_damage() -> None:
    root = await a_root(has_table=False)
    key = await a_file(root)
    await root.store.put(names.held(key), b"other")
    with pytest.raises(DataDamaged, match="another object has the name"):
        await hand_over(root.store, key)
    assert await root.store.get(key)


@virtual
async def test_a_check_names_what_a_cut_misses() -> None:
    root = await a_root(has_table=False)
    key = await a_file(root)
    await take_cut(root)
    problems = Problems()
    await check_cuts(root.store, root.cluster, problems)
    assert not problems.all
    await root.store.delete([key])
    await check_cuts(root.store, root.cluster, problems)
    assert [(each.object_key, each.code) for each in problems.all] == [(key, "CUT_OBJECT_MISSING")]


def test_the_command_copies_a_cut_and_refuses_one_that_is_not_there(tmp_path: Path) -> None:
    async def fill() -> None:
        sources = Sources()
        async with FileStore(tmp_path / "root", sources) as store:
            root = await Root.open(store, sources)
            await root.create_topic("t")
            await root.produce("t", (0, [b"1"]))
            await take_cut(root, "eod")

    asyncio.run(fill())
    run = RootCommand(backup)
    code, _, error = run(tmp_path / "root", "eod", tmp_path / "copy")
    assert code == 0, error
    assert (tmp_path / "copy" / keys.CLUSTER).exists()
    code, _, error = run(tmp_path / "root", "other", tmp_path / "copy2")
    assert code == 4
    assert "ledgermq cut list" in error
