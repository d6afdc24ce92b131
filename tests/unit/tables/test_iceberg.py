"""The registrar of an Iceberg table over a root: rounds, log starts, generations, the gate; several at once; each
answer of the catalog is lost, or says the opposite.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import TimestamptzType

from ledgermq.errors import DataDamaged, InvalidConfig, Unavailable
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.iceberg.snapshots import chain_of
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.tables.check import find_faults
from ledgermq_ledger.tables.describe import describe_table
from ledgermq_ledger.tables.drop import empty_table
from ledgermq_ledger.tables.formats.contract import Committed
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.iceberg_tables import (
    NAMESPACE,
    catch_up,
    configure,
    log_of,
    registrar,
    runs,
    set_iceberg,
    table,
)
from tests.worlds.roots import Root
from tests.worlds.set_tables import AGED_S, KEEP_MS, first_offsets, make_round, raise_start, tidy

IDENTIFIER = (*NAMESPACE.split("."), "t")


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqlCatalog:
    return configure(monkeypatch, tmp_path / "lake")


async def a_root(keep_ms: int = KEEP_MS) -> Root:
    sources = virtual_sources(1)
    root = await Root.open(MemoryStore("test", sources), sources, bundles=3)
    await root.create_topic("t", partitions=2)
    await set_iceberg(root, 1, keep_ms)
    return root


@virtual
async def test_the_table_follows_the_log(catalog: SqlCatalog) -> None:
    root = await a_root()
    await make_round(root)
    assert await catch_up(root, registrar(root)) == 1
    await make_round(root)
    await raise_start(root, 2)
    assert await catch_up(root, registrar(root)) == 2, "rows, and a removal"
    assert await runs(root) == {0: [(2, 4)], 1: [(0, 2), (2, 4)]}
    stored = await table(root)
    operations = [snapshot.summary.operation.value for snapshot in chain_of(stored.metadata) if snapshot.summary]
    assert sorted(operations) == ["append", "append", "delete"]
    assert await catch_up(root, registrar(root)) == 0, "nothing to say: no snapshot"
    assert stored.properties["gc.enabled"] == "false"


@virtual
async def test_the_next_snapshot_waits(catalog: SqlCatalog) -> None:
    root = await a_root(keep_ms=100_000_000)
    await make_round(root)
    assert (await registrar(root).turn()).committed is Committed.WON
    await make_round(root)
    turn = await registrar(root).turn()
    assert turn.committed is None
    assert 0 < turn.pause_ms <= 100_000
    await asyncio.sleep(turn.pause_ms / 1000)
    assert (await registrar(root).turn()).committed is Committed.WON


@virtual
async def test_files_stay_while_a_snapshot_may_be_open(catalog: SqlCatalog) -> None:
    root = await a_root()
    await make_round(root)
    await make_round(root)
    await catch_up(root, registrar(root))
    await raise_start(root, 2)
    await catch_up(root, registrar(root))
    await asyncio.sleep(AGED_S)
    await registrar(root).raise_gates()
    await tidy(root)
    assert await first_offsets(root) == [0, 2], "the snapshot before the removal may be open"
    await asyncio.sleep(61)
    await registrar(root).raise_gates()  # dates the newest one, which has no next one that would
    await asyncio.sleep(KEEP_MS / 1000 + 2)
    await tidy(root)
    assert await first_offsets(root) == [0, 2], "no version was read that says more"
    assert await registrar(root).raise_gates() == 1
    await tidy(root)
    await asyncio.sleep(AGED_S)
    await tidy(root)
    assert await first_offsets(root) == [2]
    faults = [each async for each in find_faults(root.store, root.cluster, root.topics["t"])]
    assert faults == []


@virtual
async def test_a_snapshot_is_as_old_as_the_next_one(catalog: SqlCatalog) -> None:
    root = await a_root()
    await make_round(root)
    await make_round(root)
    await catch_up(root, registrar(root))
    await asyncio.sleep(10 * KEEP_MS / 1000)
    await raise_start(root, 2)
    await catch_up(root, registrar(root))
    await asyncio.sleep(AGED_S)
    assert await registrar(root).raise_gates() == 0, "the one of long ago was replaced a moment ago"
    await tidy(root)
    assert await first_offsets(root) == [0, 2]


@virtual
async def test_what_a_snapshot_names_and_is_gone_is_found(catalog: SqlCatalog) -> None:
    root = await a_root()
    await make_round(root)
    await catch_up(root, registrar(root))
    [key] = [info.key async for info in root.store.list("parquet/topic=t/partition=0/")]
    await root.store.delete([key])
    [fault] = [each async for each in find_faults(root.store, root.cluster, root.topics["t"])]
    assert fault.key == key
    assert fault.is_lost


@virtual
async def test_old_snapshots_go_with_their_manifests(catalog: SqlCatalog, tmp_path: Path) -> None:
    root = await a_root(keep_ms=60_000)
    for _ in range(12):
        await make_round(root)
        await catch_up(root, registrar(root, every=5))
        await asyncio.sleep(20)
    stored = await table(root)
    chain = chain_of(stored.metadata)
    assert 3 <= len(chain) < 10
    assert len(stored.metadata.snapshots) == len(chain)
    lists = list((tmp_path / "lake" / "warehouse").rglob("snap-*.avro"))
    assert len(lists) == len(chain)
    assert (await runs(root))[0][-1][1] == 24
    named = {m.manifest_path for snapshot in chain for m in snapshot.manifests(stored.io)}
    there = {f"file://{path}" for path in (tmp_path / "lake" / "warehouse").rglob("*-m*.avro")}
    assert named == there


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("error", [CommitFailedException("409"), ConnectionError("no answer")])
@virtual
async def test_an_answer_that_is_lost_or_wrong(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, error: Exception, lands: bool
) -> None:
    root = await a_root()
    await make_round(root)
    await catch_up(root, registrar(root))
    await make_round(root)
    await asyncio.sleep(20)
    real = SqlCatalog.commit_table

    def commit_table(self: SqlCatalog, *args: Any) -> Any:
        if lands:
            real(self, *args)
        raise error

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    outcome = (await registrar(root).turn()).committed
    monkeypatch.setattr(SqlCatalog, "commit_table", real)
    refused = Committed.LOST if isinstance(error, CommitFailedException) else Committed.UNKNOWN
    assert outcome is (Committed.WON if lands else refused)
    await catch_up(root, registrar(root))
    assert await runs(root) == {0: [(0, 2), (2, 4)], 1: [(0, 2), (2, 4)]}


@virtual
async def test_two_registrars_name_no_file_twice(catalog: SqlCatalog) -> None:
    root = await a_root()
    await make_round(root)
    await catch_up(root, registrar(root))
    await make_round(root)
    await asyncio.sleep(20)
    late, now_ms = log_of(root), await root.store.store_time_ms()
    base = await late.read()
    draft, _ = await registrar(root)._draft(base, now_ms)
    assert await catch_up(root, registrar(root)) == 1
    assert await late.commit(base, draft, now_ms) is Committed.LOST
    assert await runs(root) == {0: [(0, 2), (2, 4)], 1: [(0, 2), (2, 4)]}


@virtual
async def test_a_file_with_other_ids_is_refused(catalog: SqlCatalog) -> None:
    root = await a_root()
    await make_round(root)
    await catch_up(root, registrar(root))
    with catalog.load_table(IDENTIFIER).update_schema() as change:
        change.delete_column("appended")
    with catalog.load_table(IDENTIFIER).update_schema() as change:
        change.add_column("appended", TimestamptzType())
    await make_round(root)
    await asyncio.sleep(20)
    turn = await registrar(root).turn()
    assert turn.committed is None
    assert "appended has id 13 in a file and 14 in the table" in turn.stopped[0]
    for start in (1, 2):
        await raise_start(root, start)
        turn = await registrar(root).turn()
        assert turn.committed is Committed.WON, "what cannot be added keeps nothing from going"
        await asyncio.sleep(20)
    assert "appended has id 13" in (await registrar(root).turn()).stopped[0]


@virtual
async def test_a_rebuild_replaces_and_keeps(catalog: SqlCatalog) -> None:
    root = await a_root()
    await make_round(root)
    await make_round(root)
    await catch_up(root, registrar(root))
    await raise_start(root, 2)
    await set_iceberg(root, 7, KEEP_MS)
    assert await catch_up(root, registrar(root)) == 1
    assert await runs(root) == {0: [(2, 4)], 1: [(0, 2), (2, 4)]}
    facts = await describe_table(root.store, root.cluster.cluster_id, root.topics["t"])
    assert facts.is_current
    assert [(each.start, each.end, each.files, each.rows) for each in facts.partitions] == [
        (2, 4, 1, 2),
        (0, 4, 2, 4),
    ]
    assert facts.folder.endswith(".metadata.json")


@virtual
async def test_a_dropped_table_is_empty(catalog: SqlCatalog) -> None:
    root = await a_root()
    await make_round(root)
    await catch_up(root, registrar(root))
    await set_iceberg(root, 0)
    for _ in range(2):
        await empty_table(root.store, root.cluster, root.topics["t"], root.sources, run_inline)
    stored = catalog.load_table(IDENTIFIER)
    assert [m for m in stored.current_snapshot().manifests(stored.io) if m.has_added_files()] == []  # type: ignore[union-attr]
    assert len(chain_of(stored.metadata)) == 2, "the second call had nothing to do"


@virtual
async def test_a_table_of_others_is_left_alone(catalog: SqlCatalog) -> None:
    root = await a_root()
    await make_round(root)
    await catch_up(root, registrar(root))
    catalog.rename_table(IDENTIFIER, (*IDENTIFIER[:-1], "mine"))
    catalog.create_table(IDENTIFIER, catalog.load_table((*IDENTIFIER[:-1], "mine")).schema())
    with pytest.raises(DataDamaged, match="another program made it"):
        await registrar(root).turn()
    assert catalog.load_table(IDENTIFIER).current_snapshot() is None


@virtual
async def test_files_of_others_stop_the_table_until_it_is_rolled_back(catalog: SqlCatalog) -> None:
    root = await a_root()
    await make_round(root)
    await catch_up(root, registrar(root))
    stored = catalog.load_table(IDENTIFIER)
    ours = stored.current_snapshot()
    assert ours is not None
    stored.append(pa.table({"value": [b"mine"]}))
    await make_round(root)
    await asyncio.sleep(20)
    with pytest.raises(DataDamaged, match="which is no file of topic t"):
        await registrar(root).turn()
    stored.manage_snapshots().set_current_snapshot(ours.snapshot_id).commit()
    await catch_up(root, registrar(root))
    assert await runs(root) == {0: [(0, 2), (2, 4)], 1: [(0, 2), (2, 4)]}


@virtual
async def test_what_others_removed_comes_back_by_a_rebuild(catalog: SqlCatalog) -> None:
    root = await a_root()
    await make_round(root)
    await catch_up(root, registrar(root))
    catalog.load_table(IDENTIFIER).delete()
    await make_round(root)
    await asyncio.sleep(20)
    turn = await registrar(root).turn()
    assert turn.committed is None
    assert "another program has changed which files" in turn.stopped[0]
    assert turn.stopped.keys() == {0, 1}
    await set_iceberg(root, 7, KEEP_MS)
    await catch_up(root, registrar(root))
    assert (await registrar(root).turn()).stopped == {}
    assert await describe(root) == [(0, 4, 2), (0, 4, 2)]


async def describe(root: Root) -> list[tuple[int, int, int]]:
    facts = await describe_table(root.store, root.cluster.cluster_id, root.topics["t"])
    return [(each.start, each.end, each.files) for each in facts.partitions]


@virtual
async def test_a_catalog_that_is_not_there(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = await a_root()
    await make_round(root)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/nowhere/catalog.db")
    with pytest.raises(Unavailable, match="cannot be reached"):
        await registrar(root).turn()
    monkeypatch.delenv("PYICEBERG_CATALOG__LAKE__URI")
    with pytest.raises(InvalidConfig, match="is not configured in this broker"):
        await registrar(root).turn()
