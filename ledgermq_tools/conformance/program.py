"""Run the program that is checked, by the tasks that docs/protocol.md asks of it:

COMMAND produce ADDRESS TOPIC PARTITION FIRST COUNT   store the numbers from FIRST on, as text, each as one value
COMMAND fetch ADDRESS TOPIC PARTITION OFFSET COUNT    print "OFFSET VALUE" of so many records, from OFFSET on
COMMAND member ADDRESS TOPIC GROUP                    print "PARTITION OFFSET VALUE" of what comes as a member of the
                                                      group, until the standard input ends; then commit, and leave
COMMAND queue ADDRESS TOPIC GROUP                     the same as a member of a queue group; accepts each message
COMMAND transaction ADDRESS ID OUTCOME TOPIC FIRST COUNT PARTITION…
                                                      stage the numbers from FIRST on in these partitions by turns, in
                                                      one transaction of ID, and end it: OUTCOME is commit or abort
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

LINE_BYTES_MAX = 1 << 20
SHOWN_LINES = 3


class Running:
    """A task of the program that goes on. `lines`: what it has printed so far. `problem`: why it failed; "": it did
    not, so far.
    """

    def __init__(self, process: asyncio.subprocess.Process, task: str, timeout_s: float) -> None:
        self.lines: list[str] = []
        self.problem = ""
        self._process = process
        self._task = task
        self._timeout_s = timeout_s
        self._errors: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        self._reading = [
            asyncio.create_task(_read(process.stdout, self.lines), name="output of the program"),
            asyncio.create_task(_read(process.stderr, self._errors), name="errors of the program"),
        ]

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def until(self, count: int) -> bool:
        """Wait until it has printed so many lines; return False if it has ended, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                while len(self.lines) < count and not self.ended:  # noqa: ASYNC110  lines come from another task
                    await asyncio.sleep(0.02)
        return len(self.lines) >= count

    async def end(self, *, close_input: bool = True) -> None:
        """Wait for its end, after the end of its input, and note what went wrong."""
        assert self._process.stdin is not None
        if close_input:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._process.wait()
                await asyncio.gather(*self._reading)
        except TimeoutError:
            await self.kill()
            self.problem = f"{self._task} did not end within {self._timeout_s:.0f} s"
            return
        if self._process.returncode:
            said = " / ".join(self._errors[-SHOWN_LINES:]) or "it printed no error"
            self.problem = f"{self._task} ended with status {self._process.returncode}: {said}"

    async def kill(self) -> None:
        """End it at once, if it still runs."""
        if not self.ended:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)


async def _read(stream: asyncio.StreamReader, lines: list[str]) -> None:
    async for line in stream:
        lines += [line.decode(errors="replace").rstrip("\r\n")]


class Program:
    """`command`: as the user gave it. `timeout_s`: for each task."""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self._command = list(command)
        self._timeout_s = timeout_s

    @asynccontextmanager
    async def running(self, task: str, *given: object) -> AsyncIterator[Running]:
        """Run a task beside the block. Raises OSError if the command cannot be started."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            task,
            *map(str, given),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
        )
        running = Running(process, task, self._timeout_s)
        try:
            yield running
        finally:
            await running.kill()

    async def run(self, task: str, *given: object) -> Running:
        """Run a task to its end."""
        async with self.running(task, *given) as running:
            await running.end()
            return running
