"""What a command imports before it does its work: modules are counted, because seconds depend on the machine."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import ledgermq
from ledgermq.cli.main import COMMANDS, build, command_of, for_run, typed_words

HEAVY = {
    "pyarrow",
    "numpy",
    "grpc",
    "pandas",
    "lark",
    "cryptography",
    "structlog",
    "pydantic_settings",
}
MODULES_MAX = 560
"""Of a run that completes options; it was 1,405."""
SHOW = "import atexit, json, sys; atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr));"


def modules_of(code: str, **environment: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SHOW + code],
        env={"PATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def of_run(*arguments: str, **environment: str) -> set[str]:
    return modules_of(
        f"sys.argv = {['ledgermq', *arguments]!r}; from ledgermq.cli.main import main; main()", **environment
    )


def test_the_version_needs_neither_client_nor_rich() -> None:
    found = of_run("--version")
    assert not found & (HEAVY | {"rich", "asyncio", "pydantic", "ledgermq.client"})
    assert len(found) < 230


@pytest.mark.parametrize(
    "line",
    [
        "ledgermq ",
        "ledgermq to",
        "ledgermq topic ",
        "ledgermq topic create --",
        "ledgermq consume --",
        "ledgermq cluster re",
        "ledgermq acl ",
        "ledgermq token ",
        "ledgermq transaction ",
        "ledgermq queue describe --",
    ],
)
def test_completion_needs_no_client(line: str) -> None:
    found = of_run(_LEDGERMQ_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)
    assert not found & HEAVY
    assert len(found) < MODULES_MAX


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_imports_pandas_by_the_way(command: str) -> None:
    if COMMANDS[command].module in {"broker", "gateway", "ledger"}:
        pytest.skip("all of these at once, below")
    found = of_run(command, "--help")
    assert "pandas" not in found
    assert not found & {"ledgermq_ledger", "ledgermq_broker", "structlog", "cryptography"}, "only servers need them"


def test_commands_of_servers_import_no_pandas() -> None:
    assert "pandas" not in modules_of("from ledgermq.cli.main import build; build()")


def test_the_package_imports_what_a_program_uses_first() -> None:
    assert not modules_of("import ledgermq; ledgermq.__version__") & HEAVY
    found = modules_of("import ledgermq; ledgermq.Client, ledgermq.connect")
    assert "pyarrow" in found
    assert not found & {"pandas", "lark", "rich", "typer"}


def test_the_lazy_names_are_those_that_type_checkers_read() -> None:
    tree = ast.parse(Path(ledgermq.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    read = {
        (alias.name, (node.module or "").removeprefix("ledgermq.").removeprefix("ledgermq"))
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert read - {("errors", ""), ("sync", "")} == set(ledgermq._MODULE_OF.items())
    assert {name for name, _ in read} | {"__version__"} == set(ledgermq.__all__)
    for name in ledgermq.__all__:
        assert getattr(ledgermq, name) is not None
    assert set(ledgermq.__all__) <= set(dir(ledgermq))
    with pytest.raises(AttributeError, match=r"it is ledgermq\.errors\.UnknownTopic"):
        _ = ledgermq.UnknownTopic  # type: ignore[attr-defined]


def names_of(app: typer.Typer) -> set[str | None]:
    return {each.name for each in (*app.registered_commands, *app.registered_groups)}


def test_the_table_has_every_command_where_it_is() -> None:
    assert names_of(build()) == set(COMMANDS)
    for name, place in COMMANDS.items():
        assert names_of(build([name])) == {each for each, other in COMMANDS.items() if other.module == place.module}


def test_a_run_builds_what_its_command_needs() -> None:
    assert command_of(["--token-file", "topic", "queue", "list"]) == "queue"
    assert command_of(["--version"]) is None
    assert names_of(for_run(["queue", "list"], {})) == {"queue"}
    assert names_of(for_run(["quue"], {})) == set(COMMANDS), "to find the nearest"
    assert names_of(for_run([], {})) == set(COMMANDS)
    bash = {"_LEDGERMQ_COMPLETE": "complete_bash", "COMP_WORDS": "ledgermq topic cr", "COMP_CWORD": "1"}
    assert typed_words(bash) == []
    assert names_of(for_run([], bash)) == set(COMMANDS)
    assert names_of(for_run([], {**bash, "COMP_CWORD": "2"})) == {"topic"}
