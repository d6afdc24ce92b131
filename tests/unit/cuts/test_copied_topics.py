"""Copies of a cut with some of its topics: the others are deleted there, and nothing of the source changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledgermq.errors import InvalidConfig, InvalidRequest, UnknownTopic
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import open_cluster, read_cluster, read_note
from ledgermq_ledger.garbage.topics import removed
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.topics.removal import note_of
from ledgermq_tools.ledger import backup
from ledgermq_tools.ledger.restore import command as restore
from tests.unit.cuts.test_backup import Died, DyingStore
from tests.unit.cuts.test_restore import check_clean, empty, objects_of
from tests.unit.cuts.test_restored_pairs import Copy, commit, committed
from tests.virtual_time import virtual, virtual_sources
from tests.worlds import iceberg_tables
from tests.worlds.cuts import end_attempt, take_cut
from tests.worlds.reading import opened_ledger, read_to_end
from tests.worlds.restoring import back_up_into, restore_into, root_of
from tests.worlds.root_commands import RootCommand
from tests.worlds.roots import Root, read_parquet_rows
from tests.worlds.set_tables import KEEP_MS, a_root, make_round

BOTH = pytest.mark.parametrize("copy_into", [restore_into, back_up_into])


async def a_root_with_three() -> Root:
    """`t` and `other` with Parquet files and records in segments, `keyed` with a version, and a group."""
    root = await a_root(has_table=False)
    await root.create_topic(keys.OFFSETS_TOPIC, bundle=2)
    await root.create_topic("other", 2, bundle=2)
    await root.produce("other", (0, [b"1", b"2"]), (1, [b"3"]))
    await make_round(root)
    await root.produce("other", (0, [b"tail"]))
    await root.produce("t", (0, [b"tail"]))
    await commit(root, 1)
    await take_cut(root)
    return root


async def values(root: Root, topic: str, bundle: int) -> list[bytes]:
    ledger = await opened_ledger(root.store, bundle)
    place = PartitionId(root.topics[topic].id, 0)
    return list((await read_to_end(ledger.reader, place, ledger.reader.log_start(place))).values())


@BOTH
@virtual
async def test_a_copy_has_the_topics_that_a_pattern_matches_and_goes_on(copy_into: Copy) -> None:
    root, target = await a_root_with_three(), empty()
    before = await objects_of(root.store)
    done = await copy_into(root.store, "c", target, topics="oth.*")
    assert await objects_of(root.store) == before
    assert not [key for key in await objects_of(target) if "topic=t/" in key], "nor are its files copied"
    new = root_of(done, target, root)
    assert [topic.name for topic in (await new.catalog()).living_topics() if not topic.internal] == ["other"]
    await check_clean(target)
    assert await values(new, "other", 2) == [b"1", b"2", b"tail"]
    assert {place[0] for place in await read_parquet_rows(target)} == {"other"}
    await end_attempt(new, "c")
    await new.produce("other", (0, [b"more"]))
    for _ in range(3):
        assert not (await new.compact()).failures
        await asyncio.sleep(3700)
    await check_clean(target)
    assert "t" not in (await new.catalog()).topics_by_name or (await new.catalog()).topics_by_name["t"].removed
    assert (await values(new, "other", 2))[-1] == b"more"


@BOTH
@virtual
async def test_offsets_of_the_topics_that_stay_come_along(copy_into: Copy) -> None:
    root, target = await a_root_with_three(), empty()
    done = await copy_into(root.store, "c", target, topics="t")
    assert await committed(root_of(done, target, root)) == 1


@virtual
async def test_a_pattern_is_judged_before_anything_is_put() -> None:
    root, target = await a_root_with_three(), empty()
    for pattern, error, text in (
        ("o", UnknownTopic, "no topic that 'o' matches"),
        ("", UnknownTopic, "no topic that '' matches"),
        ("__.*", UnknownTopic, "matches whole names"),
        ("(", InvalidRequest, "is not a valid RE2 expression"),
        ("a" * 100_000, InvalidRequest, "characters"),
    ):
        with pytest.raises(error, match=text):
            await restore_into(root.store, "c", target, topics=pattern)
    assert not await objects_of(target)


@pytest.mark.parametrize("has_effect", [False, True])
@virtual
async def test_a_copy_of_some_topics_that_dies_is_continued_with_the_same_pattern_only(has_effect: bool) -> None:
    root = await a_root_with_three()
    operation, is_whole = 0, False
    while not is_whole:
        target = empty(f"copy {operation}")
        try:
            await restore_into(root.store, "c", DyingStore(target, operation, has_effect=has_effect), topics="other")
            is_whole = True
        except* Died:
            left = (await objects_of(target)).keys()
            if left and keys.CLUSTER not in left:
                with pytest.raises(InvalidConfig, match="not complete: repeat `ledgermq restore … --topics other`, or"):
                    await open_cluster(target, virtual_sources(8))
                for pattern in (None, "t|other"):
                    with pytest.raises(InvalidRequest, match="with the topics 'other' there; give an empty root"):
                        await restore_into(root.store, "c", target, seed=33, topics=pattern)
            await restore_into(root.store, "c", target, seed=32, topics="other")
        note = await read_note(target)
        assert note is not None
        assert note.cluster == await open_cluster(target, virtual_sources(8))
        operation += 7  # each operation of the walk takes a part of a second
    assert operation > 60
    await check_clean(target)


@virtual
async def test_a_keyed_topic_that_is_left_out_leaves_nothing() -> None:
    from tests.worlds.keyed_root import Keyed

    keyed, target = await Keyed.open(), empty()
    await keyed.put((b"a", b"1"), (b"b", b"1"))
    await keyed.compact()
    await keyed.clean()
    await keyed.root.create_topic("plain")
    await keyed.root.produce("plain", (0, [b"x"]))
    await take_cut(keyed.root)
    done = await restore_into(keyed.root.store, "c", target, topics="plain")
    await check_clean(target)
    assert not [key for key in await objects_of(target) if key.startswith(keys.KEYED)]
    assert await values(root_of(done, target, keyed.root), "plain", 1) == [b"x"]


@virtual
async def test_the_table_of_a_topic_that_a_backup_leaves_out_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy has the id of the cluster whose table it is."""
    catalog = iceberg_tables.configure(monkeypatch, tmp_path / "lake")
    root, target = await a_root(has_table=False), empty()
    await root.create_topic("other", bundle=2)
    await iceberg_tables.set_iceberg(root, 1, KEEP_MS)
    await root.produce("other", (0, [b"1"]))
    await make_round(root)
    await iceberg_tables.catch_up(root, iceberg_tables.registrar(root))
    at = (*iceberg_tables.NAMESPACE.split("."), "t")
    before = catalog.load_table(at).metadata
    assert before.snapshots
    await take_cut(root)
    new = root_of(await back_up_into(root.store, "c", target, topics="other"), target, root)
    await end_attempt(new, "c")
    compaction = Compaction(target, new.cluster, new.sources, LocalEngine(new.sources, run_inline))
    for _ in range(3):
        done = await removed.remove(compaction, await new.catalog())
        await asyncio.sleep(3700)
    assert [topic.name for topic in done.free] == ["t"]
    assert not done.failures
    assert catalog.load_table(at).metadata == before


@virtual
async def test_each_bundle_of_a_copy_names_what_is_left_out() -> None:
    """So no reader by its checkpoint asks for files that were not copied (I20)."""
    root, target = await a_root_with_three(), empty()
    done = await restore_into(root.store, "c", target, topics="other")
    note = note_of(await root_of(done, target, root).newest(), root.topics["t"].id)
    assert note is not None


def test_the_commands_take_a_pattern(tmp_path: Path) -> None:
    async def fill() -> None:
        sources = Sources()
        async with FileStore(tmp_path / "root", sources) as store:
            root = await Root.open(store, sources)
            for name in ("orders", "payments", "logs"):
                await root.create_topic(name)
                await root.produce(name, (0, [b"1"]))
            await take_cut(root, "eod")

    async def names_in(folder: Path) -> list[str]:
        async with FileStore(folder, Sources()) as store:
            root = Root(store, Sources(), await read_cluster(store))  # type: ignore[arg-type]
            return sorted(topic.name for topic in (await root.catalog()).living_topics() if not topic.internal)

    asyncio.run(fill())
    code, _, error = RootCommand(backup)(tmp_path / "root", "eod", tmp_path / "copy", "--topics", "orders|pay.*")
    assert code == 0, error
    code, _, error = RootCommand(restore)(f"{tmp_path / 'root'}@eod", tmp_path / "new", "--topics", "logs")
    assert code == 0, error
    assert asyncio.run(names_in(tmp_path / "copy")) == ["orders", "payments"]
    assert asyncio.run(names_in(tmp_path / "new")) == ["logs"]
    code, _, error = RootCommand(restore)(f"{tmp_path / 'root'}@eod", tmp_path / "third", "--topics", "nothing")
    assert code
    assert "no topic that 'nothing' matches" in " ".join(error.split())
