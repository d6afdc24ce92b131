"""What `ledgermq worker` says of modules that it cannot run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ledgermq.cli.main import build

HANDLER = """
@client.handler("orders", group="billing")
async def bill(message): ...
"""
CLIENT = "import ledgermq\nclient = ledgermq.connect('localhost:1')\n"


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """Forget modules, and places of modules, afterwards."""
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("app"):
            del sys.modules[name]


def run(folder: Path, *arguments: str) -> Result:
    words = ["worker", *arguments, "--app-dir", str(folder)]
    return CliRunner(env={"COLUMNS": "400"}).invoke(build(), words, prog_name="ledgermq")


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("", "app", "give a module and the client in it, as in app:client"),
        ("", "app:", "give a module and the client in it"),
        ("", ":client", "give a module and the client in it"),
        ("", "app/main.py:client", "give a module and the client in it"),
        ("", "app:the client", "give a module and the client in it"),
        ("", "nosuch:client", "there is no module 'nosuch' in {folder}"),
        ("", "nosuch.part:client", "there is no module 'nosuch' in {folder}"),
        ("", "app.py:client", "there is no module 'app.py'"),
        ("import nosuch", "app:client", "No module named 'nosuch' ({folder}/app.py, line 1"),
        ("\n\n1 / 0", "app:client", "ZeroDivisionError: division by zero ({folder}/app.py, line 3"),
        ("def broken(", "app:client", "module 'app' cannot be imported: SyntaxError"),
        (CLIENT + HANDLER, "app:clinet", "module 'app' has no 'clinet'; did you mean app:client?"),
        (CLIENT + HANDLER, "app:client.inner", "module 'app' has no 'client.inner'"),
        ("client = 3", "app:client", "app:client is no client, but an object of type int"),
        ("import ledgermq\nclient = ledgermq.connect", "app:client", "app:client is no client, but an object of type"),
        (CLIENT, "app:client", "app:client has no handler: declare one with @client.handler(topic, group=…)"),
    ],
)
def test_a_module_that_cannot_be_run_is_told(tmp_path: Path, text: str, name: str, expected: str) -> None:
    (tmp_path / "app.py").write_text(text)
    result = run(tmp_path, name)
    assert result.exit_code == 2
    assert expected.format(folder=tmp_path) in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_debug_shows_where_an_import_failed(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("def inner():\n    raise ValueError('no setting')\n\ninner()\n")
    result = run(tmp_path, "app:client", "--debug")
    assert result.exit_code == 2
    assert "line 2, in inner" in result.stderr


def test_a_missing_name_is_wrong_usage(tmp_path: Path) -> None:
    assert run(tmp_path).exit_code == 2
