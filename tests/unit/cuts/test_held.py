"""Files that are handed over to cuts, and what a check and a backup of a root say of them."""

from __future__ import annotations

import asyncio
import json
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
from ledgermq_tools.ledger import backup, fsck
from ledgermq_tools.ledger.restore import command as restore
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


def test_the_command_restores_a_cut_once_and_says_which_one(tmp_path: Path) -> None:
    async def fill() -> None:
        sources = Sources()
        async with FileStore(tmp_path / "root", sources) as store:
            root = await Root.open(store, sources)
            await root.create_topic("t")
            await root.produce("t", (0, [b"1"]))
            await take_cut(root, "eod")

    asyncio.run(fill())
    run, root, new = RootCommand(restore), tmp_path / "root", tmp_path / "new"
    code, _, error = run(f"{root}@eod", new)
    assert code == 0, error
    cluster = json.loads((new / keys.CLUSTER).read_bytes())
    assert cluster["former_ids"] == [json.loads((root / keys.CLUSTER).read_bytes())["cluster_id"]]
    said = " ".join(error.split())
    assert f"is cluster {cluster['cluster_id']}, as cut eod of" in said
    code, _, error = run(f"{root}@2100-01-01", new)
    assert (code, "an earlier call has done that" in " ".join(error.split())) == (0, True)
    checked, _, error = RootCommand(fsck)(new)
    assert checked == 0, error
    for source, text in {
        f"{root}@other": "ledgermq cut list",
        f"{root}@2000-01-01": "no cut is kept that was taken at or before",
        str(root): "names no cut: give ROOT@CUT",
        f"{root}@": "names no cut: give ROOT@CUT",
        f"hdfs://user@host/{root}": "names no cut: give ROOT@CUT",
    }.items():
        code, _, error = run(source, tmp_path / "other")
        assert code, source
        assert text in " ".join(error.split()), source
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    code, _, error = run(f"{root}@eod", tmp_path / "used")
    assert code
    assert "there is notes.txt; give an empty root" in " ".join(error.split())
