"""`ledgermq store check`: the table, the exit code, and what is left in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq_ledger.object_store import memory
from ledgermq_ledger.object_store.conformance import checks
from ledgermq_tools.store import store
from tests.unit.object_store.test_conformance import LosesTheRace
from tests.worlds.root_commands import RootCommand

run = RootCommand(store)


def broken(found: dict[str, list[dict[str, object]]]) -> set[object]:
    return {row["check"] for row in found["checks"] if not row["kept"]}


def test_a_folder_is_fit_and_holds_no_object_afterwards(tmp_path: Path) -> None:
    code, found = run.json("check", tmp_path / "root")
    assert (code, found["verdict"], broken(found)) == (0, "fit", set())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    code, text, _ = run("check", tmp_path / "root")
    assert code == 0
    assert all(name in text for name in checks.CHECKS)


def test_a_store_that_loses_the_race_has_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(memory._named, "toy", LosesTheRace("toy"))
    code, found = run.json("check", "memory://toy")
    assert (code, found["verdict"], broken(found)) == (1, "not fit", {"race"})
    [row] = [row for row in found["checks"] if not row["kept"]]
    assert "of 12 puts of one key at the same time have won, not 1" in row["found"]


def test_on_s3_what_moto_keeps_and_what_not(moto_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lets presigned URLs live for ever, and may lose races: it looks, then writes."""
    monkeypatch.setattr(checks, "EXPIRED_S", 0.0)
    code, found = run.json("check", moto_root)
    assert (code, found["verdict"]) == (1, "not fit")
    assert broken(found) - {"race"} == {"expiry"}
    assert "expired" in next(row["found"] for row in found["checks"] if row["check"] == "expiry")


def test_a_bucket_that_is_not_there_is_named(moto_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "EXPIRED_S", 0.0)
    code, found = run.json("check", moto_root.replace("//ledgermq-test/", "//no-such-bucket/"))
    assert code == 1
    assert "no such bucket" in found["checks"][0]["found"]


def test_a_root_that_is_no_store_is_a_wrong_argument() -> None:
    code, _, errors = run("check", "ftp://host/x")
    assert code == 2
    assert "use file:///folder" in errors
