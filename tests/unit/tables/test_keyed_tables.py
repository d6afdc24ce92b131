"""The table of a keyed topic shows one version of each partition as a whole, and never goes back; the files of a
version stay while a reader of the table may have it open (design V5).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from ledgermq_ledger import keys
from ledgermq_ledger.delta.latest import Latest, draft_latest
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.delta.versions import Topic
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.sweep import sweep
from ledgermq_ledger.garbage.topics.removed import remove
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.files.columns import SCHEMA
from ledgermq_ledger.tables.check import find_faults
from ledgermq_ledger.tables.describe import describe_table
from ledgermq_ledger.tables.drop import empty_table
from ledgermq_ledger.tables.follower import TableFollower
from ledgermq_ledger.tables.formats.contract import Committed
from ledgermq_ledger.tables.formats.delta import DeltaLog
from ledgermq_ledger.tables.registrar import Registrar
from ledgermq_ledger.topics.facts import ABOVE_ALL_VERSIONS, versions_kept_from
from ledgermq_ledger.topics.topic import METADATA, topic_key
from tests.virtual_time import virtual
from tests.worlds.keyed_root import HOUR_MS, Keyed

KEEP_MS = 2 * HOUR_MS


async def a_keyed_root(**settings: str) -> Keyed:
    """With a table of generation 1."""
    keyed = await Keyed.open(bundles=3, cleanup_policy="compact", delete_retention_ms="0", **settings)
    await set_table(keyed, 1)
    return keyed


async def set_table(keyed: Keyed, generation: int) -> None:
    keyed.root.topics["t"].raw_settings.pop("table.generation", None)
    changed = {"table_generation": str(generation)} if generation else {}
    await keyed.alter(table_keep_ms=str(KEEP_MS), **changed)
    keyed.root.topics["t"] = keyed.topic = (await keyed.root.catalog()).topics_by_name["t"]


def registrar(keyed: Keyed) -> Registrar:
    return Registrar(keyed.root.store, keyed.root.cluster, keyed.topic, keyed.root.sources)


async def next_version(keyed: Keyed, *pairs: tuple[bytes, bytes | None]) -> None:
    """Records, compacted and cleaned into a version."""
    await keyed.put(*pairs)
    await keyed.compact()
    assert await keyed.clean() == 1


async def read_table(keyed: Keyed, folder: Path, version: int | None = None) -> dict[bytes, bytes | None]:
    """As delta-rs reads it; each key has to be there once."""
    await copy(keyed.root.store, keys.keyed_topic(keyed.topic.id), folder)
    rows = DeltaTable(folder, version=version).to_pyarrow_table(columns=["key", "value"]).to_pylist()
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


async def copy(store: ObjectStore, prefix: str, folder: Path) -> None:
    async for info in store.list(prefix):
        path = folder / info.key.removeprefix(prefix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(await store.get(info.key))


async def newest(keyed: Keyed) -> Table:
    return await DeltaLog(keyed.root.store, keys.keyed_topic(keyed.topic.id), keyed.root.sources).read()


async def numbers(keyed: Keyed) -> list[int]:
    """Of the versions of the partition that are there."""
    prefix = keys.keyed_versions(PartitionId(keyed.topic.id, 0))
    return [keys.number(info.key) async for info in keyed.root.store.list(prefix)]


@virtual
async def test_each_version_is_shown_as_a_whole(tmp_path: Path) -> None:
    keyed = await a_keyed_root()
    await next_version(keyed, (b"a", b"1"), (b"b", b"1"))
    await registrar(keyed).catch_up()
    await next_version(keyed, (b"a", b"2"), (b"c", b"1"))
    await registrar(keyed).catch_up()
    assert await read_table(keyed, tmp_path / "2") == {b"a": b"2", b"b": b"1", b"c": b"1"}
    assert await read_table(keyed, tmp_path / "1", 0) == {b"a": b"1", b"b": b"1"}
    turn = await registrar(keyed).turn()
    assert (turn.committed, turn.version) == (None, 1), "nothing more to say"
    facts = await describe_table(keyed.root.store, keyed.root.cluster.cluster_id, keyed.topic)
    [partition] = facts.partitions
    assert (facts.version, partition.rows, partition.end, partition.parquet_end) == (1, 3, 4, 4)
    found = (await check_root(keyed.root.store, keyed.root.cluster)).problems
    assert [problem for problem in found if problem.severity is Severity.DAMAGE] == []


@virtual
async def test_versions_that_readers_may_have_open_stay(tmp_path: Path) -> None:
    keyed = await a_keyed_root()
    for value in (b"1", b"2", b"3"):
        await next_version(keyed, (b"a", value))
        await registrar(keyed).catch_up()
    keyed.wait(1.5)  # by the hour they could go
    await keyed.clean()
    assert await numbers(keyed) == [1, 2, 3], "the gate was not raised"
    assert await registrar(keyed).raise_gates() == 1
    await keyed.clean()
    assert await numbers(keyed) == [1, 2, 3], "the first version of the table may be open"
    assert await registrar(keyed).held_bytes() > 0
    assert await read_table(keyed, tmp_path / "0", 0) == {b"a": b"1"}
    keyed.wait(1)
    assert await registrar(keyed).raise_gates() == 1
    counters = partition_of(await keyed.root.newest(keyed.bundle), keyed.topic.id, 0)
    assert (counters.table_version, counters.table_start) == (3, 0)
    await keyed.clean()
    assert await numbers(keyed) == [3], "nothing is held for ever"
    assert await registrar(keyed).held_bytes() == 0
    assert await read_table(keyed, tmp_path / "2") == {b"a": b"3"}


@virtual
async def test_a_registrar_that_is_away_for_a_day_loses_nothing(tmp_path: Path) -> None:
    keyed = await a_keyed_root()
    await next_version(keyed, (b"a", b"1"))
    await registrar(keyed).catch_up()
    for value in (b"2", b"3"):
        await next_version(keyed, (b"a", value))
        keyed.wait(12)
        await keyed.clean()
    assert await read_table(keyed, tmp_path / "old") == {b"a": b"1"}
    await registrar(keyed).catch_up()
    assert await read_table(keyed, tmp_path / "new") == {b"a": b"3"}, "version 2 was never shown"


@virtual
async def test_the_log_below_a_version_goes_as_without_a_table() -> None:
    keyed = await a_keyed_root()
    await next_version(keyed, (b"a", b"1"))
    keyed.wait(1.5)
    await keyed.clean()
    keyed.wait(1.5)
    await keyed.clean()
    assert [info async for info in keyed.root.store.list(keys.parquet_partition("t", 0))] == []


@virtual
async def test_a_version_of_before_never_comes_back() -> None:
    """A registrar that slept over a version of the table loses its number."""
    keyed = await a_keyed_root()
    await next_version(keyed, (b"a", b"1"))
    await registrar(keyed).catch_up()
    await next_version(keyed, (b"a", b"2"))
    asleep = registrar(keyed)
    table = await asleep._log.read()
    draft, _ = await asleep._draft(table, 0)
    await next_version(keyed, (b"a", b"3"))
    await registrar(keyed).catch_up()
    assert await asleep._log.commit(table, draft, 0) is Committed.LOST
    assert len((await newest(keyed)).files) == 1


@virtual
async def test_a_restored_log_stops_its_table() -> None:
    keyed = await a_keyed_root()
    for value in (b"1", b"2"):
        await next_version(keyed, (b"a", value))
        await registrar(keyed).catch_up()
    await keyed.root.store.delete([keys.keyed_version(PartitionId(keyed.topic.id, 0), 2)])
    turn = await registrar(keyed).turn()
    assert turn.committed is None
    assert "shows its version 2, and its newest one is 1" in turn.stopped[0]
    faults = [fault.text async for fault in find_faults(keyed.root.store, keyed.root.cluster, keyed.topic)]
    assert any("another root" in fault for fault in faults)


@virtual
async def test_a_dropped_table_names_nothing_and_keeps_nothing() -> None:
    keyed = await a_keyed_root()
    for value in (b"1", b"2"):
        await next_version(keyed, (b"a", value))
        await registrar(keyed).catch_up()
    await set_table(keyed, 0)
    await empty_table(keyed.root.store, keyed.root.cluster, keyed.topic, keyed.root.sources)
    assert (await newest(keyed)).files == {}
    keyed.wait(1.5)
    await keyed.clean()
    assert await numbers(keyed) == [2]
    await set_table(keyed, 9)
    await registrar(keyed).catch_up()
    assert len((await newest(keyed)).files) == 1, "set again, it begins with a rebuild"


@virtual
async def test_the_log_of_a_removed_topics_table_goes_when_its_name_is_free() -> None:
    """A version that was sent before, and lands after that, goes as well: nobody reads it."""
    keyed = await a_keyed_root()
    await next_version(keyed, (b"a", b"1"))
    await registrar(keyed).catch_up()
    root, log = keyed.root, f"{keys.keyed_topic(keyed.topic.id)}_delta_log/"
    commit = await root.store.get(f"{log}{0:020d}.json")
    await root.remove_topic("t")

    async def left() -> list[str]:
        return [info.key async for info in root.store.list(keys.KEYED)]

    keyed.wait(3)
    for _ in range(3):
        swept = await sweep(keyed.compaction(), grace_ms=0)
        assert not swept.failures
    found = await left()
    assert found, "the table of a removed topic is emptied before its name is free, and its log stays until then"
    assert all(key.startswith(log) for key in found)
    assert not (await DeltaLog(root.store, keys.keyed_topic(keyed.topic.id), root.sources).read()).files
    assert [topic.name for topic in (await remove(keyed.compaction(), await root.catalog())).free] == ["t"]
    await root.put_internal(METADATA, topic_key("t"), None)
    for late in (False, True):
        if late:
            await root.store.put_if_absent(f"{log}{7:020d}.json", [commit])
        await sweep(keyed.compaction(), grace_ms=0)
        assert await left() == []


@virtual
async def test_a_partition_that_moves_keeps_its_table_and_its_gate() -> None:
    keyed = await a_keyed_root()
    for value in (b"1", b"2"):
        await next_version(keyed, (b"a", value))
        await registrar(keyed).catch_up()
    keyed.wait(2.5)
    assert await registrar(keyed).raise_gates() == 1
    await keyed.move(2)
    await keyed.alter()
    keyed.root.topics["t"] = keyed.topic = (await keyed.root.catalog()).topics_by_name["t"]
    assert partition_of(await keyed.root.newest(2), keyed.topic.id, 0).table_version == 2
    await next_version(keyed, (b"a", b"3"))
    turn = await registrar(keyed).catch_up()
    assert (turn.stopped, turn.waits) == ({}, "")
    keyed.wait(1.5)
    await keyed.clean()
    assert await numbers(keyed) == [2, 3]


@virtual
async def test_a_follower_sees_a_version_that_no_checkpoint_tells_of() -> None:
    keyed = await a_keyed_root()
    await next_version(keyed, (b"a", b"1"))
    follower = TableFollower(keyed.root.store, keyed.root.cluster, keyed.topic, keyed.root.sources, lambda: 0.0)
    assert await follower.follow() == 1
    await keyed.put((b"a", b"2"))
    await keyed.compact()
    assert await follower.follow() == 0
    assert await keyed.clean() == 1
    assert await follower.follow() == 1
    foreign = f"{keys.keyed_topic(keyed.topic.id)}partition=0/part-0.parquet"
    await keyed.root.store.put_if_absent(foreign, [b"x"])
    follower = TableFollower(keyed.root.store, keyed.root.cluster, keyed.topic, keyed.root.sources, lambda: 0.0)
    await follower.follow()
    assert follower.state.foreign == [foreign]


def test_partitions_take_turns() -> None:
    """Else one whose versions come fast would hold back the others."""
    topic = Topic("c", "t", (7, 1), 3, SCHEMA, keyed=True)
    table, shown = Table(), list[int]()
    latest = {partition: Latest(1, 1) for partition in range(3)}
    for version in range(7):
        draft = draft_latest(table, topic, latest, 0)
        ends = [action.app_id for action in draft.actions if getattr(action, "app_id", "").endswith("/version")]
        table.take(draft.actions, "")
        table.version = version
        if version:
            shown.append(int(ends[0].split("/")[-2]))
        latest = {partition: Latest(each.number + 1, 1) for partition, each in latest.items()}
    assert sorted(set(shown)) == [0, 1, 2]


@pytest.mark.parametrize(("table", "gate", "kept"), [(0, 0, ""), (5, 8, ""), (5, 7, "may show it")])
def test_the_gate_keeps_what_a_table_may_show(table: int, gate: int, kept: str) -> None:
    draft = fmt.Checkpoint(bundle=1)
    draft.topic_facts.add(topic_id=7, table=table, table_of_versions=True)
    draft.partitions.add(topic_id=7, partition=0, table_version=gate)
    place = PartitionId(7, 0)
    why = Gate(checkpoint=draft).why_kept(keys.keyed_version(place, 7))
    assert (kept in why) if kept else not why
    assert versions_kept_from(draft, *place) == (gate if table else ABOVE_ALL_VERSIONS)
