"""Files that hold secrets or records are for the user alone who made them, whatever the umask is."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ledgermq import sync
from ledgermq.cli.main import build
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.client.connection.credentials import credential_of
from ledgermq.client.producing.spilling.spill_file import SpillFile
from ledgermq_broker.access.audit.log import open_audit_file


@pytest.fixture(autouse=True)
def wide_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: mode_of(path) for path in folder.iterdir() if not path.name.endswith("-reserve")}


def ledgermq(*words: str) -> Result:
    return CliRunner(env={"LEDGERMQ_TARGET": None, "COLUMNS": "200"}).invoke(build(), words)


def test_an_audit_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    open_audit_file(path)
    open_audit_file(None)
    assert mode_of(path) == 0o600


async def test_the_file_of_a_spill_is_private(tmp_path: Path) -> None:
    file = SpillFile(tmp_path / "own.spill")
    await file.open()
    await file.set_cluster("c")
    modes = modes_in(tmp_path)
    await file.close()
    assert "own.spill" in modes
    assert set(modes.values()) == {0o600}, modes


def test_a_saved_token_is_private_and_not_printed(tmp_path: Path) -> None:
    root, path = (tmp_path / "root").as_uri(), tmp_path / "shop.token"
    with sync.connect(root) as client:
        client.list_topics()  # makes the cluster
    made = ledgermq("token", "create", "shop", "--target", root, "--save", str(path))
    assert made.exit_code == ExitCode.OK, made.output
    assert mode_of(path) == 0o600
    [text] = path.read_text().splitlines()
    assert text.startswith("lmq_")
    assert text not in made.output
    assert str(path) in made.stderr
    again = ledgermq("token", "create", "shop", "--target", root, "--save", str(path))
    assert again.exit_code == ExitCode.USAGE, again.output
    assert "File exists" in again.stderr
    assert path.read_text() == f"{text}\n"
    assert len(json.loads(ledgermq("token", "list", "--target", root, "-o", "json").stdout)) == 1


def test_a_token_that_is_not_made_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.token"
    failed = ledgermq("token", "create", "a b", "--target", (tmp_path / "root").as_uri(), "--save", str(path))
    assert failed.exit_code != ExitCode.OK
    assert not path.exists()


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o644, True)])
def test_a_token_file_that_others_may_read_is_noticed(
    tmp_path: Path, mode: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "own.token"
    path.write_text("secret-of-mine")
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert credential_of("", str(path), {}) is not None
    assert ("chmod 600" in caplog.text) == warned
    assert "secret-of-mine" not in caplog.text
