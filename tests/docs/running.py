"""Runs the blocks of a page in order, as a reader does: in one folder, beside one broker, with the
names of the blocks before.

A Python program is run as a script, a fragment in a namespace that holds what the page takes for
given (`client`, an `engine`, …), and bash by bash. Addresses in the text become the broker's,
`ledgermq-data` is the broker's root.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from contextlib import chdir, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.docs.pages import Block

TIMEOUT_S = 240.0
_ADDRESS = re.compile(r"\blocalhost:9650\b")


@dataclass
class Reader:
    """Who follows the page.

    `address`: of the broker; `folder`: the current one; `commands`: the folder of the program
    `ledgermq`; `python`: the interpreter that runs programs.
    """

    address: str
    folder: Path
    commands: Path
    given: dict[str, Any] = field(default_factory=dict)
    python: str = sys.executable

    async def run(self, block: Block) -> None:
        """Raises AssertionError, or what the block raises."""
        text = _ADDRESS.sub(self.address, block.text)
        if block.saved_as:
            (self.folder / block.saved_as).write_text(text)
        elif block.language == "bash":
            await asyncio.to_thread(self._program, block, ["bash", "-e", "-o", "pipefail", "-c", text])
        elif block.is_script:
            script = self.folder / "program.py"
            script.write_text(text)
            await asyncio.to_thread(self._program, block, [self.python, str(script)])
        else:
            with chdir(self.folder):  # as a script, which may name files
                await self._fragment(block, text)

    def _program(self, block: Block, command: list[str]) -> None:
        path = os.pathsep.join([str(self.commands), str(Path(self.python).parent), os.environ["PATH"]])
        environment = os.environ | {
            "PATH": path,
            "LEDGERMQ_TARGET": self.address,
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
        }
        output = self.folder.parent / "output"
        with output.open("wb") as out:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(command, cwd=self.folder, env=environment, **streams)
        try:
            if block.until:
                while block.until not in output.read_text() and process.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(0.05)
                process.send_signal(signal.SIGTERM if "SIGTERM" in block.text else signal.SIGINT)
            code = process.wait(TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
        said = output.read_text()
        assert code == 0, f"{block.place} ended with {code}:\n{said}"
        assert "Traceback" not in said, f"{block.place}:\n{said}"
        assert block.until in said, f"{block.place}:\n{said}"

    async def _fragment(self, block: Block, text: str) -> None:
        if block.until:
            name, _, times = block.until.partition(" x")
            self.given[name] = enough = Calls(int(times or 1))
        code = compile("\n" * (block.line - 1) + text, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = asyncio.ensure_future(_awaited(types.FunctionType(code, self.given)))
        if not block.until:
            return await running
        called = asyncio.ensure_future(enough.called.wait())
        await asyncio.wait({running, called}, timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        called.cancel()
        if running.done():
            await running
            raise AssertionError(f"{block.place} ended by itself, but is marked as one that runs forever")
        assert enough.called.is_set(), f"{block.place}: {block.until} was not called"
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return None


async def _awaited(function: Callable[[], Any]) -> None:
    result = function()
    if inspect.isawaitable(result):
        await result


class Calls:
    """A function for fragments, also for those that await it; set once it was called so many times."""

    def __init__(self, times: int) -> None:
        self.called = asyncio.Event()
        self._left = times

    def __call__(self, *_: object) -> asyncio.Future[None]:
        self._left -= 1
        if self._left <= 0:
            self.called.set()
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done
