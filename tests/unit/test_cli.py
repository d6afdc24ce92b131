"""The command line as a user types it: help, usage errors, bad input, a cluster that is not there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ledgermq.cli.main import build
from ledgermq.cli.output.exit_codes import ExitCode

COMMANDS = [
    ["topic"],
    ["topic", "create"],
    ["topic", "list"],
    ["topic", "describe"],
    ["topic", "alter"],
    ["topic", "delete"],
    ["topic", "delete-records"],
    ["produce"],
    ["consume"],
    ["status"],
    ["dev"],
    ["broker"],
    ["compactor"],
    ["config"],
    ["config", "show"],
    ["config", "validate"],
    ["top"],
    ["compact"],
    ["gc"],
    ["inspect"],
    ["inspect", "segment"],
    ["inspect", "ledger"],
    ["inspect", "checkpoint"],
    ["inspect", "cluster"],
]


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner(env={"LEDGERMQ_TARGET": None, "COLUMNS": "200"}).invoke(build(), arguments, input=stdin)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help(words: list[str]) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_the_help_lists_every_command_and_exit_code() -> None:
    result = run("--help")
    for (word,) in {(words[0],) for words in COMMANDS}:
        assert f" {word} " in result.output
    assert "3 unavailable" in result.output


def test_the_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.output.startswith("ledgermq 0.")


def test_completion_can_be_installed() -> None:
    assert "--install-completion" in run("--help").output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("topik",), "topic"),
        (("topic", "create"), "TOPIC"),
        (("topic", "create", "a", "--partitions", "many"), "--partitions"),
        (("topic", "create", "a", "--partitions", "-1"), "--partitions"),
        (("topic", "create", "a", "--set", "retention.ms"), "expected NAME=VALUE"),
        (("topic", "alter", "a"), "nothing to change"),
        (("topic", "list", "--output", "xml"), "--output"),
        (("produce", "a", "/no/such/file"), "/no/such/file"),
        (("produce", "a", "--format", "lines", "--key", "k"), "--key-separator"),
        (("produce", "a", "--header", "x"), "expected KEY=VALUE"),
        (("produce", "a", "--header", "\udcff=x"), "the key must be UTF-8 text"),
        (("produce", "a", "--acks", "maybe"), "--acks"),
        (("consume", "a", "--from", "somewhere"), "earliest, latest"),
        (("consume", "a", "--max", "0"), "--max"),
        (("status", "--target", "nonsense"), "nonsense"),
        (("status", "--target", "ftp://x"), "ftp"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], text: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert text in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address without a listener, for as long as the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list"),
        ("topic", "create", "a"),
        ("topic", "describe", "a"),
        ("topic", "delete", "a", "--yes"),
        ("status",),
        ("consume", "a"),
    ],
    ids=" ".join,
)
def test_a_cluster_that_is_down_is_exit_code_3(words: tuple[str, ...], nobody: str) -> None:
    result = run(*words, "--target", nobody, "--timeout", "0.5")
    assert result.exit_code == 3, result.output
    assert result.stderr.startswith(("error [UNAVAILABLE]", "error [DEADLINE_EXCEEDED]"))
    assert nobody in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_producing_to_a_cluster_that_is_down(nobody: str) -> None:
    result = run("produce", "a", "--target", nobody, "--timeout", "0.5", stdin="one\n")
    assert result.exit_code == 3, result.output
    assert "Traceback" not in result.stderr


def test_deleting_asks_first(nobody: str) -> None:
    result = run("topic", "delete", "a", "--target", nobody, stdin="n\n")
    assert result.exit_code == 1
    assert "Delete topic a" in result.stderr


def test_input_is_checked_before_the_cluster_is_asked(tmp_path: Path, nobody: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("carrier,delay\nUA,1\n")
    result = run(
        "produce", "a", str(path), "--format", "csv", "--key", "carier", "--target", nobody, "--timeout", "0.5"
    )
    assert result.exit_code == 2
    assert "did you mean 'carrier'" in result.stderr


def test_the_page_about_the_command_line_names_every_command_and_exit_code() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
    for words in COMMANDS:
        assert all(word in page for word in words)
    for code in ExitCode:
        assert f"| {code.value} |" in page
