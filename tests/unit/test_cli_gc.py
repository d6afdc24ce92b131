"""`ledgermq gc`: what it would remove, what it removed, as a table or as JSON; bad input."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterDefaults, open_cluster
from ledgermq_ledger.parquet.compacting.round import run_round
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_tools.ledger import gc
from tests.stores.backends import file_store
from tests.worlds.filled_root import fill_root
from tests.worlds.root_commands import RootCommand
from tests.worlds.roots import Root

run = RootCommand(gc)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """One round was run, and its garbage is still there."""

    async def fill() -> None:
        sources = Sources()
        async with file_store(tmp_path / "root") as store:
            await open_cluster(store, sources, ClusterDefaults(bundles=2))  # its grace is an hour
            filled = await Root.open(store, sources)
            await filled.create_topic("t")
            await filled.produce("t", (0, [b"a", b"b"]))
            engine, catalog = LocalEngine(sources), await filled.catalog()
            await run_round(Compaction(store, filled.cluster, sources, engine), 1, catalog, everything=True)
            await store.put_if_absent("notes.txt", [b"mine"])

    asyncio.run(fill())
    return tmp_path / "root"


def segments(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in (root / "ledgers" / "0001" / "segments").iterdir())


def test_a_dry_run_removes_nothing(root: Path) -> None:
    before = segments(root)
    code, found = run.json(root, "--dry-run", "--grace", "0s")
    assert code == 0
    assert {row["kind"]: row["objects"] for row in found["kinds"]} == {"segment": 1, "plan": 1, "fence": 1}
    assert [row["key"] for row in found["found"] if row["kind"] == "segment"] == [keys.segment(1, 2)]
    assert not any(row["removed"] for row in found["found"])
    assert (found["dry_run"], found["objects"]) == (True, 3)
    assert [finding["object_key"] for finding in found["findings"]] == ["notes.txt"]
    assert segments(root) == before


def test_a_run_removes_what_the_dry_run_said(root: Path) -> None:
    code, found = run.json(root, "--grace", "0s")
    assert (code, found["objects"], found["not_removed"], found["fences_kept"]) == (0, 3, 0, 1)
    assert segments(root) == [keys.segment(1, 1)]
    assert (root / "notes.txt").read_bytes() == b"mine"
    assert run.json(root, "--grace", "0s")[1]["objects"] == 0


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_damaged_bundle_is_named_and_nothing_of_it_goes(root: Path, dry: tuple[str, ...]) -> None:
    damaged = keys.checkpoint(1, 99)
    (root / damaged).write_bytes(b"no checkpoint")
    code, found = run.json(root, *dry, "--grace", "0s")
    assert code == 6
    assert ("DATA_DAMAGED", damaged) in [(finding["code"], finding["object_key"]) for finding in found["findings"]]
    assert len(segments(root)) == 2


def test_by_default_what_is_young_stays_and_its_time_is_told(root: Path) -> None:
    code, found = run.json(root)
    assert (code, found["within_grace"]) == (0, 1)
    assert len(segments(root)) == 2
    [waiting] = found["waiting"]
    segment = root / keys.segment(1, 2)
    free_ms = segment.stat().st_ctime_ns // 1_000_000 + 3_600_000
    assert (waiting["kind"], waiting["objects"], waiting["bytes"]) == ("segment", 1, segment.stat().st_size)
    assert waiting["free_ms"] == free_ms
    assert waiting["may_go_from"] == waiting["all_from"]
    assert (
        0
        <= datetime.strptime(waiting["all_from"], "%Y-%m-%d %H:%M UTC").replace(tzinfo=UTC).timestamp() - free_ms / 1000
        <= 60
    )
    code, text, _ = run(root)
    assert waiting["all_from"][:10] in text


def test_the_table_names_kinds_and_strangers(root: Path) -> None:
    code, text, _ = run(root, "--dry-run", "--grace", "0s")
    assert code == 0
    for word in ("segment", "plan", "notes.txt", "FOREIGN_OBJECT"):
        assert word in text


def test_a_folder_without_a_cluster(tmp_path: Path) -> None:
    code, _, errors = run(tmp_path)
    assert (code, "cluster.json" in errors) == (4, True)


def test_a_root_as_brokers_leave_it(tmp_path: Path) -> None:
    asyncio.run(fill_root(tmp_path / "root"))
    assert run.json(tmp_path / "root", "--grace", "0s")[1]["objects"] == 0, (
        "one checkpoint, no rounds, a heartbeat of now"
    )
