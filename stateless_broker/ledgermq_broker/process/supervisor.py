"""Run `ledgermq broker --processes N`: one broker process per core, under a parent that serves
nothing itself.

SIGTERM, SIGINT   forwarded: all drain and end; a second one ends them at once
SIGHUP            passed on: each reads the settings again

A process that ends by itself is restarted after a growing pause (`siblings`). A process that cannot
start, before it was ever ready, ends the command: its error about settings or root applies to all.
When the parent dies, its children end too, because they watch their standard input. Each line of a
process's output carries its number.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

from ledgermq.runtime.wait import wait_for
from ledgermq_broker.logs import configure_logs, get_logger
from ledgermq_broker.process.run import END_ANYWAY_AFTER_S
from ledgermq_broker.process.siblings import ends_in_a_row, exit_code, pause_s
from ledgermq_broker.settings.brokers import BrokerSettings

KILL_AFTER_S = 2.0
"""Grace beyond the time after which a broker ends itself."""
NO_PROCESS_CODE = 1
PIECE_BYTES, LINE_BYTES_MAX = 65536, 1024 * 1024

log = get_logger(__name__)


def run_brokers(commands: Sequence[Sequence[str]], settings: BrokerSettings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code: 0 when all have drained, otherwise the
    worst code of the processes.
    """
    configure_logs(settings.log_format, settings.log_level)
    return asyncio.run(Supervisor(commands, settings).run())


class Sibling:
    """One of the processes, through all its restarts."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self.process: Process | None = None
        self.is_ready = False
        self.was_ready = False
        self._command = command
        self._reload_when_ready = False

    async def run(self, *, as_json: bool) -> int:
        """Run the process once; return its exit code, negative for a signal.

        It has its own session, so that Ctrl-C in a terminal reaches only the parent.
        """
        self.is_ready = self._reload_when_ready = False
        self.process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._relay(self.process.stdout, sys.stdout.buffer, as_json=as_json, ready=True))
            group.create_task(self._relay(self.process.stderr, sys.stderr.buffer, as_json=as_json, ready=False))
            code = await self.process.wait()
        self.process = None
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs.

        A process that is still starting would die of a SIGHUP: it gets the signal when it is ready.
        """
        if number == signal.SIGHUP and not self.is_ready:
            self._reload_when_ready = True
        elif self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def _relay(self, stream: asyncio.StreamReader, out: BinaryIO, *, as_json: bool, ready: bool) -> None:
        rest = b""
        while data := await stream.read(PIECE_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            with suppress(OSError):  # the reader of the output has gone: that ends no broker
                out.writelines(labelled(line, self.number, as_json=as_json) for line in lines)
                out.flush()
            if ready and lines and not self.is_ready:  # a broker's one line on stdout reports that it listens
                self.is_ready = self.was_ready = True
                if self._reload_when_ready:
                    self.send(signal.SIGHUP)


def labelled(line: bytes, number: int, *, as_json: bool) -> bytes:
    """Return a line of output with the number of its process."""
    if as_json and line.startswith(b'{"'):
        return b'{"process_number": %d, %s\n' % (number, line[1:])
    return b"[%d] %s\n" % (number, line)


class Supervisor:
    def __init__(self, commands: Sequence[Sequence[str]], settings: BrokerSettings) -> None:
        self._siblings = [Sibling(number, command) for number, command in enumerate(commands)]
        self._as_json = settings.log_format == "json"
        self._end_s = settings.shutdown_ms / 1000 + END_ANYWAY_AFTER_S + KILL_AFTER_S
        self._stopping = asyncio.Event()
        self._codes: list[int] = []

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._send, signal.SIGHUP)
        async with asyncio.TaskGroup() as group:
            for sibling in self._siblings:
                group.create_task(self._keep(sibling), name=f"process {sibling.number}")
        return exit_code(self._codes)

    def _stop(self, number: signal.Signals) -> None:
        log.info("stopping", signal=number.name)
        self._end_all()

    def _end_all(self) -> None:
        """End all processes. A second call sends the second signal, which ends a broker at once."""
        if not self._stopping.is_set():
            self._stopping.set()
            asyncio.get_running_loop().call_later(self._end_s, self._kill_all)
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        for sibling in self._siblings:
            sibling.send(number)

    def _kill_all(self) -> None:
        log.error("not every broker process has ended in time")
        self._send(signal.SIGKILL)

    async def _keep(self, sibling: Sibling) -> None:
        """Restart the process whenever it ends, until the command ends."""
        ends = 0
        while not self._stopping.is_set():
            begun_s = asyncio.get_running_loop().time()
            try:
                code = await sibling.run(as_json=self._as_json)
            except OSError as error:
                log.error("no process could be made", process_number=sibling.number, error=str(error))
                code = NO_PROCESS_CODE
            if self._stopping.is_set():
                self._codes.append(0 if code == -signal.SIGTERM and not sibling.is_ready else code)
                return
            if code > 0 and not sibling.was_ready:
                log.error("a broker process cannot start", process_number=sibling.number, code=code)
                self._codes.append(code)
                self._end_all()
                return
            ends = ends_in_a_row(ends, asyncio.get_running_loop().time() - begun_s)
            wait_s = pause_s(ends)
            log.warning("a broker process ended", process_number=sibling.number, code=code, restart_in_s=wait_s)
            await wait_for(self._stopping, wait_s)
