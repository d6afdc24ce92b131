"""Runs one of the commands that work on a root itself, in this process, as its own little
application.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import typer
from typer.testing import CliRunner


class RootCommand:
    """Called with arguments: exit code, stdout, stderr.

    `module`: of `ledgermq_tools.ledger`, named as its command, or `command` in a room of that name.
    """

    def __init__(self, module: ModuleType) -> None:
        self._name = module.__name__.removesuffix(".command").rpartition(".")[2]
        self._app = typer.Typer()
        module.register(self._app)
        self._app.callback()(lambda: None)

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(self._app, [self._name, *map(str, arguments)])
        return result.exit_code, result.stdout, result.stderr

    def json(self, *arguments: object) -> tuple[int, Any]:
        code, out, _ = self(*arguments, "--output", "json")
        return code, json.loads(out)
