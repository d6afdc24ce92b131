"""`ledgermq fsck`: the verdict as text, as JSON and as exit code."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterDefaults, open_cluster, read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.garbage.topics.removed import remove as remove_topics
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_tools.ledger import fsck
from tests.stores.backends import file_store
from tests.worlds.filled_root import fill_root
from tests.worlds.root_commands import RootCommand
from tests.worlds.roots import Root

run = RootCommand(fsck)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    asyncio.run(fill_root(tmp_path / "root"))
    return tmp_path / "root"


def put(root: Path, key: str, data: bytes = b"foreign") -> None:
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_clean_root(root: Path) -> None:
    code, found = run.json(root)
    assert code == 0
    assert (found["verdict"], found["records"], found["parquet_files"]) == ("clean", 6, 0)
    assert found["segments"] == len(list((root / "ledgers").glob("*/segments/*")))
    assert "problems" not in found or found["problems"] == []
    code, text, _ = run(root)
    assert code == 0
    assert "clean" in text


def test_left_overs_have_their_own_exit_code(root: Path) -> None:
    put(root, "parquet/_SUCCESS")
    code, found = run.json(root)
    assert (code, found["verdict"]) == (9, "untidy")
    assert [(p["severity"], p["code"], p["object_key"]) for p in found["problems"]] == [
        ("untidy", "FOREIGN_OBJECT", "parquet/_SUCCESS")
    ]


@pytest.fixture
def deleted(tmp_path: Path) -> Path:
    """A topic was deleted, and has left every bundle; another one stays.

    As brokers do it, on the clock of the machine.
    """

    async def fill() -> None:
        sources = Sources()
        async with file_store(tmp_path / "root") as store:
            await open_cluster(store, sources, ClusterDefaults(bundles=2))  # what waits, waits an hour
            filled = await Root.open(store, sources)
            for name in ("kept", "gone"):
                await filled.create_topic(name)
                for _ in range(2):
                    await filled.produce(name, (0, [b"a", b"b"]))
                    assert not (await filled.compact()).failures
            await filled.remove_topic("gone")
            removals = await remove_topics(
                Compaction(store, filled.cluster, sources, LocalEngine(sources)), await filled.catalog()
            )
            assert [topic.name for topic in removals.free] == ["gone"]

    asyncio.run(fill())
    return tmp_path / "root"


def test_files_that_a_deleted_topic_leaves_for_a_while_are_a_note(deleted: Path) -> None:
    code, found = run.json(deleted)
    assert (code, found["verdict"]) == (0, "clean")
    waiting = [problem for problem in found["problems"] if problem["code"] == "UNREFERENCED"]
    assert waiting, "pages that list its files"
    for problem in waiting:
        assert problem["severity"] == "note"
        waits = r"it waits for garbage collection and may be removed from \d{4}-\d\d-\d\d \d\d:\d\d UTC on"
        assert re.search(waits, problem["text"])


async def test_objects_that_should_be_gone_are_untidy(deleted: Path) -> None:
    """Its grace, and as long again for the next pass, after the newest checkpoint of its bundle."""
    async with file_store(deleted) as store:
        cluster, now_ms = await read_cluster(store), await store.store_time_ms()
        for hours, worst in ((1.9, Severity.NOTE), (2.1, Severity.UNTIDY)):
            assert (await check_root(store, cluster, now_ms=now_ms + round(hours * 3_600_000))).worst is worst


def test_damage_comes_first_and_names_its_object(root: Path) -> None:
    put(root, "parquet/_SUCCESS")
    flip(root / keys.segment(1, 2), -60)
    code, found = run.json(root)
    assert (code, found["verdict"]) == (6, "damaged")
    first = found["problems"][0]
    assert (first["severity"], first["object_key"]) == ("damage", keys.segment(1, 2))
    code, text, _ = run(root)
    assert code == 6
    assert keys.segment(1, 2) in text.replace("\n", "")


def test_quick_reads_no_batches(root: Path) -> None:
    flip(root / keys.segment(1, 2), 1200)
    assert run.json(root, "--quick")[0] == 0
    assert run.json(root)[0] == 6


def test_notes_are_shown_on_demand(root: Path) -> None:
    (root / keys.segment(1, 4)).unlink()
    code, text, _ = run(root)
    assert (code, "AFTER_GAP" in text) == (0, False)
    code, text, _ = run(root, "--notes")
    assert (code, "AFTER_GAP" in text) == (0, True)


def test_a_damaged_cluster_file_is_damage(root: Path) -> None:
    put(root, keys.CLUSTER, b"{")
    code, found = run.json(root)
    assert (code, found["problems"][0]["object_key"]) == (6, keys.CLUSTER)


def test_a_root_without_a_cluster_is_not_found(tmp_path: Path) -> None:
    code, _, err = run(tmp_path)
    assert code == 4
    assert "no cluster" in err


def test_nothing_is_written(root: Path) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in root.rglob("*")}

    before = state()
    assert run(root)[0] == 0
    assert state() == before


def test_names_that_are_no_text_move_no_cursor_and_stop_no_report(root: Path) -> None:
    for name in ("\udcff", "new\nline", "\x1b[2J"):
        put(root, f"ledgers/0001/segments/{name}")
    code, found = run.json(root)
    assert code == 9
    assert {p["object_key"].rpartition("/")[2] for p in found["problems"]} == {"\udcff", "new\nline", "\x1b[2J"}
    code, text, _ = run(root)
    assert code == 9
    for shown in ("\\udcff", "new\\nline", "\\x1b[2J"):
        assert shown in text
    assert "\x1b" not in text
