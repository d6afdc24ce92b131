"""Which cuts of a root are whole to which objects came in any order, and what is restored from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ledgermq.cli.main import build
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.errors import InvalidConfig, InvalidRequest, LedgerMQError, UnknownCut
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings, read_cluster
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.reading.copying import copy_named
from ledgermq_ledger.cuts.reading.replica import CutInReplica, cuts_of_replica, whole_cut
from ledgermq_ledger.cuts.reading.root import open_at_cut
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_tools.ledger.restore.command import split
from tests.unit.cuts.test_backup import Died, DyingStore
from tests.unit.cuts.test_pins import a_cut_with_a_life_after_it
from tests.unit.cuts.test_restore import check_clean, empty, objects_of
from tests.virtual_time import run_virtual, virtual
from tests.worlds.cuts import drop_cut, end_cuts, take_cut
from tests.worlds.restoring import restore_into
from tests.worlds.set_tables import a_root


async def a_replica() -> tuple[ClusterSettings, dict[str, bytes]]:
    """The objects of a root with two cuts, of which the first one has files that were handed over."""
    root = await a_root(has_table=False)
    await a_cut_with_a_life_after_it(root)
    await take_cut(root, "later")
    return await read_cluster(root.store), await objects_of(root.store)


async def store_of(objects: dict[str, bytes]) -> MemoryStore:
    store = empty("replica")
    for key, data in objects.items():
        await store.put_if_absent(key, [data])
    return store


async def looked_at(store: ObjectStore) -> list[CutInReplica]:
    return [each async for each in cuts_of_replica(store)]


async def can_be_copied(store: ObjectStore, cluster: ClusterSettings, cut_id: int) -> bool:
    try:
        await copy_named(await open_at_cut(store, cluster, cut_id), empty("target"))
    except LedgerMQError:
        return False
    except ExceptionGroup:
        return False
    return True


@virtual
async def test_each_cut_is_whole_where_all_is_there_newest_first() -> None:
    _, objects = await a_replica()
    found = await looked_at(await store_of(objects))
    assert [(each.name, each.is_whole, each.missing) for each in found] == [("later", True, ()), ("c", True, ())]
    assert found[0].id > found[1].id
    assert any(key.startswith(names.HELD) for key in objects), "files that were handed over count"


@virtual
async def test_a_cut_is_whole_if_and_only_if_it_can_be_copied() -> None:
    """Each object of the root is missing once."""
    cluster, objects = await a_replica()
    lacked = set[str]()
    for key in sorted(objects.keys() - {keys.CLUSTER}):
        store = await store_of({other: data for other, data in objects.items() if other != key})
        for each in await looked_at(store):
            assert each.is_whole == await can_be_copied(store, cluster, each.id), (key, each)
            if not each.is_whole:
                assert key in each.missing or key in [names.held(one) for one in each.missing if "parquet/" in one]
                lacked.add(each.name)
    assert lacked == {"c", "later"}


@virtual
async def test_a_root_without_cuts_has_none_and_a_damaged_object_is_named() -> None:
    _, objects = await a_replica()
    bare = {key: data for key, data in objects.items() if not key.startswith(names.CUTS)}
    assert await looked_at(await store_of(bare)) == []
    newest = max(key for key in objects if key.startswith(names.CUTS))
    found = await looked_at(await store_of(objects | {newest: b"nothing"}))
    assert (found[0].is_whole, found[0].missing) == (False, (newest,))
    assert found[1].is_whole


# Restoring from it


OF_THE_COPY = (keys.CLUSTER, keys.RESTORE)


async def data_of(store: ObjectStore) -> dict[str, bytes]:
    return {key: data for key, data in (await objects_of(store)).items() if key not in OF_THE_COPY}


def first_of(objects: dict[str, bytes], prefix: str) -> str:
    return min(key for key in objects if key.startswith(prefix))


async def lacking(objects: dict[str, bytes], *folders: str) -> MemoryStore:
    """The replica to which the newest object of each folder has not come."""
    gone = {max(key for key in objects if key.startswith(folder)) for folder in folders}
    return await store_of({key: data for key, data in objects.items() if key not in gone})


@virtual
async def test_the_newest_whole_cut_is_restored_though_the_catalog_has_a_gap() -> None:
    _, objects = await a_replica()
    plain, target = empty("plain"), empty()
    await restore_into(await store_of(objects), "c", plain)
    replica = await lacking(objects, keys.checkpoints(1), keys.segments(keys.METADATA_BUNDLE))
    before = await objects_of(replica)
    assert [each.is_whole for each in await looked_at(replica)] == [False, True]
    done = await restore_into(replica, "", target, is_replica=True)
    assert (done.cut.name, done.cluster) == ("c", await read_cluster(target))
    assert await data_of(target) == await data_of(plain), "it is what a restore of the whole root makes"
    assert await objects_of(replica) == before, "a replica is only read"
    await check_clean(target)


@virtual
async def test_a_cut_is_chosen_by_name_id_or_time_and_refused_while_it_is_not_whole() -> None:
    _, objects = await a_replica()
    replica = await lacking(objects, keys.checkpoints(1))
    later, early = await looked_at(replica)
    assert [later.is_whole, early.is_whole] == [False, True]
    for wanted in ("", "c", str(early.id), "2999-01-01"):
        assert (await whole_cut(replica, wanted)).id == early.id
    with pytest.raises(UnknownCut, match=rf"'later' is not whole.* lacks .*{later.missing[0]}.*replica status --all"):
        await whole_cut(replica, "later")
    for wanted in ("1970-01-01", "999999", "nothing"):
        with pytest.raises(UnknownCut, match="is not there"):
            await whole_cut(replica, wanted)
    with pytest.raises(UnknownCut, match="a cut is not there"):
        await whole_cut(empty(), "")


@virtual
async def test_of_a_name_that_was_given_again_no_older_cut_is_taken() -> None:
    """A replica without deletions keeps the cuts that were dropped."""
    root = await a_root(has_table=False)
    older = await take_cut(root)
    await drop_cut(root)
    await end_cuts(root)
    replica = await store_of(await objects_of(root.store))
    await take_cut(root)
    both = await store_of(await objects_of(root.store) | await objects_of(replica))
    newest = max(key for key in await objects_of(both) if key.startswith(names.CUTS))
    assert newest != names.cut(older)
    assert (await whole_cut(both, "c")).id != older
    late = await store_of(
        {key: data for key, data in (await objects_of(both)).items() if keys.checkpoints(1) not in key}
    )
    with pytest.raises(UnknownCut, match="'c' is not whole"):
        await whole_cut(late, "c")


@pytest.mark.parametrize("wanted", ["", "2999-01-01"])
@virtual
async def test_what_was_broken_off_is_continued_although_a_newer_cut_has_come(wanted: str) -> None:
    _, objects = await a_replica()
    replica, target = await lacking(objects, keys.checkpoints(1)), empty()
    with pytest.raises((Died, ExceptionGroup)):
        await restore_into(replica, wanted, DyingStore(target, 8, has_effect=True), is_replica=True)
    assert keys.RESTORE in await objects_of(target)
    whole = await store_of(objects)
    assert (await restore_into(whole, wanted, target, 32, is_replica=True)).cut.name == "c"
    assert (await restore_into(whole, wanted, target, 33, is_replica=True)).copied is None, "nothing is left to do"
    with pytest.raises(InvalidRequest, match="cut 'c'"):
        await restore_into(whole, "later", target, 34, is_replica=True)
    await check_clean(target)
    newest = empty("newest")
    assert (await restore_into(whole, "", newest, is_replica=True)).cut.name == "later"


def test_the_cut_of_a_replica_may_be_left_out() -> None:
    assert split("s3://bucket/prod@eod", is_replica=False) == ("s3://bucket/prod", "eod")
    for root in ("s3://bucket/prod", "s3://user@bucket/prod", "/folder@2/root"):
        assert split(root, is_replica=True) == (root, "")
        with pytest.raises(InvalidConfig, match="names no cut: give ROOT@CUT"):
            split(root, is_replica=False)
    for nothing in ("s3://bucket/prod@", "@eod"):
        with pytest.raises(InvalidConfig):
            split(nothing, is_replica=True)


# The commands


def run(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(build(), [str(word) for word in words])
    return done.exit_code, done.stdout


def test_the_status_of_a_replica_has_exit_codes_and_restore_takes_what_it_names(tmp_path: Path) -> None:
    _, objects = run_virtual(a_replica)
    replica = tmp_path / "replica"
    for key, data in objects.items():
        path = replica / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    base = first_of(objects, keys.checkpoints(1).rsplit("/", 1)[0])
    newest = max(key for key in objects if key.startswith(keys.checkpoints(1)))
    (replica / newest).unlink()
    code, shown = run("replica", "status", replica, "--output", "json", "--all")
    found = json.loads(shown)
    assert (code, found["newest_whole"], found["findings"]) == (ExitCode.OK, "c", [])
    assert [(row["cut"], row["whole"]) for row in found["cuts"]] == [("later", False), ("c", True)]
    assert run("replica", "status", replica, "--max-age", "1s")[0] == ExitCode.UNAVAILABLE, "the cut is years old"
    assert run("restore", replica, tmp_path / "new")[0] == ExitCode.USAGE, "without --replica a cut must be named"
    assert run("restore", "--replica", replica, replica / "in")[0] == ExitCode.USAGE, "never into a replica"
    assert run("restore", "--replica", replica, tmp_path / "new")[0] == ExitCode.OK
    assert run("fsck", tmp_path / "new")[0] == ExitCode.OK
    (replica / base).unlink()
    code, shown = run("replica", "status", replica, "--output", "json")
    assert code == ExitCode.UNAVAILABLE
    assert [each["code"] for each in json.loads(shown)["findings"]] == ["NO_WHOLE_CUT"]
    assert run("restore", "--replica", replica, tmp_path / "other")[0] == ExitCode.NOT_FOUND
