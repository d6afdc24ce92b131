"""Which cut a restore takes, and the files that say what a root was restored from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ledgermq.errors import DataDamaged, FormatNotSupported, ResourceExhausted, UnknownCut
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import (
    FORMER_IDS_MAX,
    RESTORED_VERSION,
    ClusterSettings,
    RestoreNote,
    encode_cluster,
    encode_note,
    open_cluster,
    read_cluster,
    read_note,
    restored_from,
)
from ledgermq_ledger.cuts.reading.restore import find_cut
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.topics.catalog import Catalog
from tests.unit.cuts.test_restore import empty
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.cuts import take_cut
from tests.worlds.restoring import restore_into
from tests.worlds.roots import cluster_with
from tests.worlds.set_tables import a_root

GOLDEN = Path(__file__).parents[2] / "golden"


def catalog_of(*records: fmt.CutRecord) -> Catalog:
    catalog = Catalog()
    for record in records:
        catalog.apply(record.id, b"cut/" + record.name.encode(), record.SerializeToString())
    return catalog


def test_a_cut_is_found_by_its_name_its_id_or_a_time() -> None:
    def taken(number: int, name: str, hour: int) -> fmt.CutRecord:
        return fmt.CutRecord(id=number, name=name, state=fmt.TAKEN, taken_ms=(1_796_083_200 + hour * 3600) * 1000)

    dropped = fmt.CutRecord(id=9, name="gone", state=fmt.DROPPED, taken_ms=1_796_083_200_000)
    catalog = catalog_of(taken(5, "early", 1), taken(6, "late", 5), taken(7, "5", 9), dropped)
    for wanted, name in {
        "late": "late",
        "6": "late",
        "5": "5",
        "2026-12-01T02:00": "early",
        "2026-12-01T01:00:00Z": "early",
        "2026-12-01T06:00+02:00": "early",
        "2026-12-01T07:00+02:00": "late",
        "2026-12-02": "5",
    }.items():
        assert find_cut(catalog, wanted).name == name, wanted
    for wanted, text in {
        "2026-12-01T00:59": "no cut is kept that was taken at or before 2026-12-01T00:59",
        "8": "no cut with the name or id 8",
        "9": "no cut with the name or id 9",
        "gone": "'gone' was dropped",
        "eod": "cut 'eod' does not exist",
    }.items():
        with pytest.raises(UnknownCut, match=text):
            find_cut(catalog, wanted)


@virtual
async def test_both_files_are_checked_and_a_later_version_is_refused() -> None:
    root, target = await a_root(has_table=False), empty()
    await take_cut(root)
    await restore_into(root.store, "c", target)
    note, own = await target.get(keys.RESTORE), await target.get(keys.CLUSTER)
    for key, data in ((keys.RESTORE, note), (keys.CLUSTER, own)):
        for bit in range(0, 8 * len(data), 5):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            await target.put(key, bytes(changed))
            with pytest.raises(DataDamaged, match=f"^{key}: ") as refused:
                await open_cluster(target, virtual_sources(8))
            assert refused.value.object_key == key
        await target.put(key, data)
    await target.put(keys.RESTORE, cluster_with(note, format_version=2))
    with pytest.raises(FormatNotSupported, match="format version 2"):
        await restore_into(root.store, "c", target)
    await target.put(keys.RESTORE, note)
    for ids in ([], "ab", [1], ["a"] * (FORMER_IDS_MAX + 1)):
        await target.put(keys.CLUSTER, cluster_with(own, former_ids=ids))
        with pytest.raises(DataDamaged, match="former_ids has to list"):
            await read_cluster(target)
    await target.put(keys.CLUSTER, cluster_with(own, format_version=4))
    with pytest.raises(FormatNotSupported, match="versions 1 to 3"):
        await read_cluster(target)


def test_restores_in_a_row_are_bounded() -> None:
    cluster = ClusterSettings(cluster_id="a" * 32)
    for number in range(FORMER_IDS_MAX):
        cluster = restored_from(cluster, f"{number:032x}", 1)
    assert cluster.wrote("a" * 32)
    with pytest.raises(ResourceExhausted, match="ledgermq backup"):
        restored_from(cluster, "b" * 32, 1)


RESTORED = ClusterSettings(
    3, 1000, 5000, 20000, "cd" * 16, RESTORED_VERSION, created_ms=2, former_ids=("ef" * 16, "ab" * 16)
)
NOTE = RestoreNote("ab" * 16, (4711, "70" * 16), "eod", encode_cluster(RESTORED).decode())
SOURCE = replace(RESTORED, cluster_id="ab" * 16, former_ids=("ef" * 16,))
OF_A_BACKUP = replace(NOTE, cluster_json=encode_cluster(SOURCE).decode(), topics="orders|pay.*")


async def test_the_golden_files_are_read_for_ever() -> None:
    target = empty()
    for key, name in ((keys.CLUSTER, "cluster-v3.json"), (keys.RESTORE, "restore-v1.json")):
        await target.put(key, (GOLDEN / name).read_bytes())
    assert await read_note(target) == NOTE
    assert await open_cluster(target, virtual_sources(8)) == NOTE.cluster == RESTORED
    await target.put(keys.RESTORE, (GOLDEN / "restore-topics-v1.json").read_bytes())
    found = await read_note(target)
    assert found == OF_A_BACKUP
    assert found.is_backup
    assert not NOTE.is_backup


def write_missing() -> None:
    notes = {"restore-v1.json": encode_note(NOTE), "restore-topics-v1.json": encode_note(OF_A_BACKUP)}
    for name, data in {"cluster-v3.json": encode_cluster(RESTORED), **notes}.items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(data)


if __name__ == "__main__":
    write_missing()
