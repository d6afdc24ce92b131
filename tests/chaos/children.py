"""Child processes of a run, each with a log: start them, signal them, wait for them within a
limit; none outlives the run.

On Linux the kernel kills them when the run itself is killed (`setpriv --pdeathsig`). They are in
separate sessions, so that only the run receives Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ledgermq_broker.process.run import END_ANYWAY_CODE
from tests.constants_main import LEDGERMQ_WITH_CONSTANTS
from tests.judges.violation import Violation

PROJECT = Path(__file__).resolve().parents[2]
POLL_S = 0.05
LEDGERMQ = LEDGERMQ_WITH_CONSTANTS


def with_mutant(name: str) -> tuple[str, ...]:
    """The command line of a `ledgermq` that has a bug."""
    return (sys.executable, "-m", "tests.chaos.broken", name)


class Child:
    def __init__(self, name: str, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.log = log
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None: it runs."""
        return self._process.poll()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """SIGKILL is heard by a paused process too, the others when it goes on."""
        if self.code is None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended(30)

    async def ended(self, seconds_max: float) -> int:
        """Its exit code. Raises TimeoutError."""
        async with asyncio.timeout(seconds_max):
            while (code := self.code) is None:
                await asyncio.sleep(POLL_S)
        return code

    def kill_now(self) -> None:
        self._process.kill()
        self._process.wait(30)


class Place:
    """Where one process after another lives; `wanted`: whether one should run now."""

    is_up_says = ""
    """In the log of a process that is up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.child: Child | None = None
        self.wanted = False

    @property
    def is_up(self) -> bool:
        return self.child is not None and self.child.code is None and self.was_up

    @property
    def was_up(self) -> bool:
        return self.child is not None and self.is_up_says in self.child.text()

    @property
    def ended_by_itself(self) -> bool:
        return self.wanted and self.child is not None and self.child.code is not None

    @property
    def ended_with(self) -> str:
        return "not started" if self.child is None else f"exit code {self.child.code}"

    @property
    def last_line(self) -> str:
        text = self.child.text() if self.child is not None else ""
        return f"{self.name}: " + (text.strip().splitlines() or [""])[-1][:300]

    def signal(self, number: signal.Signals) -> None:
        if self.child is not None:
            self.child.signal(number)

    async def pause(self, seconds: float) -> None:
        await paused(self.child, seconds)

    async def kill(self) -> None:
        self.wanted = False
        if self.child is not None:
            await self.child.kill()

    async def stop(self, seconds_max: float, may_end_anyway: Callable[[], bool] = lambda: False) -> list[Violation]:
        """SIGTERM: ends with 0, within its time; a broker that waits for its store may give up
        then, as it says it does.
        """
        self.wanted = False
        child = self.child
        if child is None or child.code is not None:
            return []
        was_up = self.was_up
        child.signal(signal.SIGTERM)
        try:
            code = await child.ended(seconds_max)
        except TimeoutError:
            await child.kill()
            return [Violation("stuck", f"{child.log.name}: did not end within {seconds_max:.0f} s of SIGTERM")]
        if code == 0 or not was_up or (code == END_ANYWAY_CODE and may_end_anyway()):
            return []
        return [Violation("graceful stop", f"{child.log.name}: exit code {code} after SIGTERM")]


async def paused(child: Child | None, seconds: float) -> None:
    """SIGSTOP, then SIGCONT, whatever comes between."""
    if child is None:
        return
    child.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        child.signal(signal.SIGCONT)


class Children:
    """`folder` takes the logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._all: list[Child] = []
        self._guard = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()

    def spawn(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
        """Names need not be unique: each start has its own log."""
        self._all = [child for child in self._all if child.code is None]
        number = sum(1 for _ in self.folder.glob(f"{name}.*.log")) + 1
        log = self.folder / f"{name}.{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self._guard, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=PROJECT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._all.append(Child(name, log, process))
        return self._all[-1]

    def close(self) -> None:
        for child in self._all:
            if child.code is None:
                child.kill_now()
