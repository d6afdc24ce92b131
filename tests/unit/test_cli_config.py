"""`ledgermq config`: what counts and why, and what is wrong with a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ledgermq.cli.main import build
from ledgermq.cli.output.exit_codes import ExitCode


def config(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(build(), ["config", *arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "all.toml"
    path.write_text("flush_spacing_ms = 25\nport = 1\ncompaction_interval_ms = 500\n")
    return path


def test_show_says_what_counts_and_where_it_comes_from(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERMQ_PORT", "2222")
    shown = config("show", "--config", str(file), "--output", "json")
    assert shown.exit_code == 0, shown.stderr
    rows = {row["setting"]: row for row in json.loads(shown.stdout)["settings"]}
    assert (rows["port"]["value"], rows["port"]["from"], rows["port"]["live"]) == (2222, "environment", False)
    assert (rows["flush_spacing_ms"]["value"], rows["flush_spacing_ms"]["from"], rows["flush_spacing_ms"]["unit"]) == (
        25,
        "file",
        "ms",
    )
    assert (rows["host"]["value"], rows["host"]["from"]) == ("127.0.0.1", "default")
    assert "compaction_interval_ms" not in rows
    shown = config("show", "--config", str(file), "--process", "compactor", "--output", "json")
    assert {"compaction_interval_ms", "log_level"} <= {row["setting"] for row in json.loads(shown.stdout)["settings"]}


def test_validate_accepts_what_brokers_accept(file: Path) -> None:
    done = config("validate", str(file))
    assert (done.exit_code, "valid, 3 settings in the file" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flush_spacing = 5", "did you mean 'flush_spacing_ms'"),
        ("compaction_interval_ms = 1", "setting compaction_interval_ms"),
        ("url_life_ms = 10000\nport = 1", "setting 'url_life_ms' was removed: cluster.json"),
        ("port = [", "all.toml"),
    ],
)
def test_validate_names_what_is_wrong(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    done = config("validate", str(file))
    assert done.exit_code == ExitCode.USAGE
    assert message in done.stderr
