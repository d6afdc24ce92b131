"""The command line as a user types it, beside one broker process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.warm_cli import WarmCommands

LEDGERMQ = Path(sys.executable).parent / "ledgermq"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@dataclass(frozen=True)
class Shell:
    """Runs `ledgermq …` with the broker as its target."""

    address: str
    root: Path
    command: Path

    def __call__(self, *arguments: object, stdin: str | bytes = b"") -> Done:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        environment = {**os.environ, "LEDGERMQ_TARGET": self.address, "COLUMNS": "200"}
        done = subprocess.run(
            [self.command, *map(str, arguments)],
            input=data,
            env=environment,
            capture_output=True,
            timeout=120,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(errors="backslashreplace"), done.stderr.decode())

    def completed(self, folder: Path, typed: str) -> list[str]:
        """Return what bash completes. `folder`: for a program that waits longer than a shell does, because a busy
        machine needs more than a second to ask the cluster for names.
        """
        patient = folder / "ledgermq"
        imports = "import ledgermq.cli.arguments.completion as c, ledgermq.cli.main as m"
        changed = f"{imports}; c.COMPLETION_TIMEOUT_S = 100; m.main()"
        patient.write_text(changed)
        words = {"_LEDGERMQ_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        environment = {**os.environ, "LEDGERMQ_TARGET": self.address, **words}
        return subprocess.run(
            [sys.executable, patient], env=environment, capture_output=True, text=True, timeout=120, check=False
        ).stdout.split()

    def json(self, *arguments: object, stdin: str = "") -> Any:
        return self(*arguments, "--output", "json", stdin=stdin).json()


def shell_beside_a_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Start a broker process, and yield a shell for it; a fixture of each module that uses it."""
    root = tmp_path_factory.mktemp("cli") / "root"
    command = [LEDGERMQ, "broker", root, "--port", "0", "--auto-create-topics", "--default-partitions", "1"]
    commands = WarmCommands(tmp_path_factory.mktemp("warm"))
    with (
        commands as warm,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as broker,
    ):
        assert broker.stdout is not None
        line = broker.stdout.readline()  # broker listens on HOST:PORT, root …
        assert line.startswith("broker listens on "), line
        yield Shell(line.split()[3].rstrip(","), root, warm)
        broker.terminate()
        assert broker.wait(120) == 0
