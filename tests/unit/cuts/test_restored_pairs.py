"""Restored roots beside group offsets, keyed topics, tables of both formats, files that no list names, and moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from ledgermq.errors import DataDamaged, Unavailable
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cuts.reading import appending
from ledgermq_ledger.cuts.reading.restore import Restored
from ledgermq_ledger.delta import versions
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.garbage.sweep import sweep
from ledgermq_ledger.keyed.note import KeyedNote
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.internal_topic import read_internal
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.files.stored_file import read_footer
from ledgermq_ledger.tables.check import find_faults
from ledgermq_ledger.tables.drop import empty_table
from ledgermq_offsets.classic import records as classic
from ledgermq_offsets.classic.group import ClassicGroup
from ledgermq_offsets.state.groups import OffsetsState
from ledgermq_offsets.state.records import (
    OffsetEntry,
    OffsetValue,
    PendingEntry,
    PendingKey,
    PendingOffset,
    PendingValue,
    encode,
)
from ledgermq_tools.ledger.restore.group_offsets import end_with_their_partitions
from tests.unit.cuts.test_restore import check_clean, empty, objects_of
from tests.virtual_time import virtual, virtual_sources
from tests.worlds import iceberg_tables
from tests.worlds.cuts import end_attempt, take_cut
from tests.worlds.keyed_root import Keyed
from tests.worlds.ledgers import ledger_of, take_over
from tests.worlds.restoring import back_up_into, restore_into, root_of
from tests.worlds.roots import Root, parquet_keys, read_rows
from tests.worlds.set_tables import AGED_S, KEEP_MS, a_root, make_round, registrar, tidy

OFFSETS = keys.OFFSETS_TOPIC
Copy = Callable[[ObjectStore, str, ObjectStore], Awaitable[Restored]]


# Offsets of groups


async def commit(root: Root, offset: int, partition: int = 0, group: str = "g") -> None:
    place = PartitionId(root.topics["t"].id, partition)
    record = encode(OffsetEntry(group, place, OffsetValue(offset, "m", 1, 3, 4, "t")))
    await root.put_internal(root.topics[OFFSETS], record.key, record.value)


async def stage(root: Root, offset: int) -> None:
    place = PartitionId(root.topics["t"].id, 0)
    value = PendingValue("id", 0, 1, {place: PendingOffset(offset, "", 3, 4, "t")})
    record = encode(PendingEntry("g", PendingKey(bytes(16), 1, 1), value))
    await root.put_internal(root.topics[OFFSETS], record.key, record.value)


async def groups_of(root: Root) -> OffsetsState:
    topic = root.topics[OFFSETS]
    history = await read_history(ledger_of(root.store, topic.bundles[0], cluster=root.cluster))
    records = await read_internal(root.store, history, topic.id, 0)
    return classic.stored_offsets((record.key, record.value) for record in records)


async def committed(root: Root, partition: int = 0, group: str = "g") -> int | None:
    value = (await groups_of(root)).groups[group].offset_of(PartitionId(root.topics["t"].id, partition))
    return None if value is None else value.offset


async def join_classic(root: Root) -> None:
    record = classic.encode(ClassicGroup("k"))
    await root.put_internal(root.topics[OFFSETS], record.key, record.value)


async def a_root_with_groups() -> Root:
    root = await a_root(has_table=False)
    await root.create_topic(OFFSETS, bundle=2)
    await make_round(root)
    return root


@pytest.mark.parametrize("copy_into", [restore_into, back_up_into])
@virtual
async def test_a_group_that_is_ahead_of_the_cut_goes_on_at_its_end(copy_into: Copy) -> None:
    """As when the records that it had read came between the places of the two bundles."""
    root, target = await a_root_with_groups(), empty()
    await commit(root, 9)
    await commit(root, 1, partition=1)
    await commit(root, 2, group="h")
    await stage(root, 7)
    await join_classic(root)
    await take_cut(root)
    done = await copy_into(root.store, "c", target)
    assert done.set_back == 2
    new = root_of(done, target, root)
    assert await committed(new) == 2
    assert (await committed(new, 1), await committed(new, 0, "h")) == (1, 2)
    state = await groups_of(new)
    [pending] = state.groups["g"].pending.values()
    assert [each.offset for each in pending.offsets.values()] == [2]
    stored = state.groups["g"].offset_of(PartitionId(root.topics["t"].id, 0))
    assert stored is not None
    assert (stored.metadata, stored.epoch, stored.counter) == ("m", 3, 4)
    await check_clean(target)
    assert await committed(root) == 9, "the source stays as it is"


@virtual
async def test_offsets_that_are_not_ahead_cost_no_put() -> None:
    root = await a_root_with_groups()
    await commit(root, 2)
    before = await objects_of(root.store)
    assert await end_with_their_partitions(root.store, root.cluster, root.sources) == 0
    assert await objects_of(root.store) == before


@virtual
async def test_what_comes_before_the_claim_counts_and_a_rival_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    root = await a_root_with_groups()
    await commit(root, 9)
    inner = appending.claim

    async def late(ledger, broker):  # type: ignore[no-untyped-def]
        root.writers.clear()
        await root.produce("t", (0, [b"c"] * 10))
        return await inner(ledger, broker)

    monkeypatch.setattr(appending, "claim", late)
    assert await end_with_their_partitions(root.store, root.cluster, root.sources) == 0
    assert await committed(root) == 9, "a broker has written up to it meanwhile"
    root.writers.clear()
    await commit(root, 99)

    async def taken(ledger, broker):  # type: ignore[no-untyped-def]
        claimed = await inner(ledger, broker)
        await take_over(ledger, "rival")
        return claimed

    monkeypatch.setattr(appending, "claim", taken)
    with pytest.raises(Unavailable, match="such as a second restore, has claimed bundle 2; repeat the call"):
        await end_with_their_partitions(root.store, root.cluster, root.sources)
    monkeypatch.undo()
    assert await end_with_their_partitions(root.store, root.cluster, root.sources) == 1
    root.writers.clear()
    assert await committed(root) == 12


# Files


@virtual
async def test_a_keyed_topic_is_cleaned_on_under_the_new_id() -> None:
    keyed, target = await Keyed.open(), MemoryStore("new", virtual_sources(5))
    for value in (b"1", b"2"):
        await keyed.put((b"a", value), (b"b", value))
        await keyed.compact()
        await keyed.clean()
    await take_cut(keyed.root)
    await keyed.put((b"a", b"later"))
    await keyed.compact()
    await keyed.clean()
    done = await restore_into(keyed.root.store, "c", target)
    new = Keyed(root_of(done, target, keyed.root), keyed.clock, keyed.topic, keyed.written)
    await check_clean(target)
    before = await new.version()
    assert before.cluster == keyed.root.cluster.cluster_id
    await end_attempt(new.root, "c")
    await new.root.produce("t", (0, [b"x"]))
    await new.put((b"a", b"3"))
    await new.compact()
    assert await new.clean() == 1
    version = await new.version()
    assert (version.number, version.cluster) == (before.number + 1, done.cluster.cluster_id)
    notes = [KeyedNote.decode((await read_footer(target, file.key)).metadata) for file in version.files]
    assert {note.cluster for note in notes if note is not None} <= {done.cluster.cluster_id, before.cluster}
    assert done.cluster.cluster_id in {note.cluster for note in notes if note is not None}
    await check_clean(target)


@virtual
async def test_a_file_of_before_the_restore_that_no_list_names_goes() -> None:
    """A late put of the source, copied by hand. One of a third cluster stays: it is not this root's to delete."""
    root, third, target = await a_root(has_table=False), await a_root(has_table=False, seed=2), empty()
    for each in (root, third):
        await make_round(each)
    await take_cut(root)
    for each in (root, third):
        await make_round(each)
    new = root_of(await restore_into(root.store, "c", target), target, root)
    await end_attempt(new, "c")
    await new.produce("t", (0, [b"x"]), (1, [b"x"]))
    assert not (await new.compact()).failures
    [late, foreign] = [(await parquet_keys(each.store, keys.parquet_partition("t", 0)))[-1] for each in (root, third)]
    assert late == foreign
    assert late not in await objects_of(target)
    engine = LocalEngine(new.sources, run_inline)
    compaction = Compaction(target, new.cluster, new.sources, engine)
    for source, is_left in ((third, True), (root, False)):
        await target.put(late, await source.store.get(late))
        await asyncio.sleep(AGED_S)
        await sweep(compaction, grace_ms=0)
        assert (late in await objects_of(target)) is is_left
        codes = {problem.code for problem in (await check_root(target, new.cluster)).problems}
        assert ("FOREIGN_FILE" in codes) is is_left


@virtual
async def test_a_partition_that_moved_is_whole_in_the_restored_root() -> None:
    root, target = await a_root(has_table=False), empty()
    await make_round(root)
    await root.move("t", 0, 2)
    await make_round(root)
    await take_cut(root)
    await root.move("t", 0, 1)
    await make_round(root)
    for bundle in (1, 2):
        await tidy(root, bundle=bundle)
    done = await restore_into(root.store, "c", target)
    new = root_of(done, target, root)
    new.topics["t"] = (await new.catalog()).topics_by_name["t"]
    assert new.topics["t"].bundles == (2, 1)
    assert [len(rows) for rows in (await read_rows(new)).values()] == [4, 4]
    await check_clean(target)
    await end_attempt(new, "c")
    await new.move("t", 0, 1)
    await make_round(new)
    await check_clean(target)


# Tables


@virtual
async def test_a_delta_table_is_begun_again_in_the_new_root() -> None:
    root, target = await a_root(), empty()
    await make_round(root)
    while (await registrar(root).turn()).committed is not None:
        pass
    await take_cut(root)
    done = await restore_into(root.store, "c", target)
    assert not [key for key in await objects_of(target) if "_delta_log" in key]
    new = root_of(done, target, root)
    await check_clean(target)
    while (await registrar(new).turn()).committed is not None:
        pass
    assert [key for key in await objects_of(target) if "_delta_log" in key]
    assert [fault async for fault in find_faults(target, new.cluster, new.topics["t"])] == []
    await check_clean(target)


@virtual
async def test_an_iceberg_table_stays_with_the_cluster_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog: SqlCatalog = iceberg_tables.configure(monkeypatch, tmp_path / "lake")
    root, target = await a_root(has_table=False), empty()
    await iceberg_tables.set_iceberg(root, 1, KEEP_MS)
    await make_round(root)
    await iceberg_tables.catch_up(root, iceberg_tables.registrar(root))
    at = (*iceberg_tables.NAMESPACE.split("."), "t")
    before = catalog.load_table(at).metadata
    await take_cut(root)
    done = await restore_into(root.store, "c", target)
    new = root_of(done, target, root)
    await check_clean(target)
    with pytest.raises(
        DataDamaged, match=r"it is of cluster .*; set another table.namespace, after `ledgermq table drop`"
    ):
        await iceberg_tables.registrar(new).turn()
    await end_attempt(new, "c")
    await iceberg_tables.set_iceberg(new, 0)
    await empty_table(target, new.cluster, new.topics["t"], new.sources, run_inline)
    assert catalog.load_table(at).metadata == before, "not a snapshot of the living cluster's table is changed"
    assert versions.generation_of(
        await iceberg_tables.log_of(root).read(), iceberg_tables.table_of(root.cluster.cluster_id, root.topics["t"])
    )
