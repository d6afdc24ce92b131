"""Real broker processes for tests: start them on a root, kill, pause, resume, stop them; nothing
outlives the test.

with BrokerProcesses(tmp_path, root_url) as brokers:
    first = brokers.start()
    brokers.kill(first)
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.constants_main import LEDGERMQ_WITH_CONSTANTS

START_S_MAX = 90.0
"""A start is a second of processor time; on a machine that does twenty other things it was seen to
take thirty.
"""
STOP_S_MAX = 60.0
_READY = re.compile(r"listens on (\S+), root")

# Small waits: a test should not wait for what an operator would not notice.
QUICK = (
    "--heartbeat-interval-ms",
    "200",
    "--holding-ms",
    "1500",
    "--constant-damaged-retry-s=2",
    "--no-background-compaction",
)


@dataclass(eq=False)
class BrokerProcess:
    process: subprocess.Popen[bytes]
    log: Path
    address: str = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    def text(self) -> str:
        """All that it has printed."""
        return self.log.read_text(errors="replace")


class BrokerProcesses:
    """`folder` takes the logs.

    Processes started here are children of the test; `close` ends all of them, paused ones too.
    """

    def __init__(self, folder: Path, root_url: str, options: Sequence[str] = QUICK) -> None:
        self.root_url = root_url
        self._folder = folder
        self._options = tuple(options)
        self.running: list[BrokerProcess] = []
        self._started = 0

    @property
    def addresses(self) -> str:
        """As a target for clients."""
        return ",".join(broker.address for broker in self.running)

    def start(self, *options: str, port: int = 0) -> BrokerProcess:
        """A broker that answers. Raises RuntimeError, with its log, when it does not come up."""
        return self.wait_ready(self.spawn(*options, port=port))

    def start_all(self, count: int, *options: str) -> list[BrokerProcess]:
        """Several at once: a process spends most of its start on imports."""
        return [self.wait_ready(broker) for broker in [self.spawn(*options) for _ in range(count)]]

    def wait_ready(self, broker: BrokerProcess) -> BrokerProcess:
        until = time.monotonic() + START_S_MAX
        while time.monotonic() < until and broker.process.poll() is None:
            if found := _READY.search(broker.text()):
                broker.address = found[1]
                return broker
            time.sleep(0.02)
        self.kill(broker)
        raise RuntimeError(f"the broker did not start (exit code {broker.process.returncode}):\n{broker.text()}")

    def spawn(self, *options: str, port: int = 0) -> BrokerProcess:
        """A broker process, whether it comes up or not."""
        self._started += 1
        log = self._folder / f"broker-{self._started}.log"
        command = [
            *LEDGERMQ_WITH_CONSTANTS,
            "broker",
            self.root_url,
            "--port",
            str(port),
            *self._options,
            *options,
        ]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        broker = BrokerProcess(process, log)
        self.running.append(broker)
        return broker

    def at(self, address: str) -> BrokerProcess:
        return next(broker for broker in self.running if broker.address == address)

    def kill(self, broker: BrokerProcess) -> None:
        """As a crash: SIGKILL."""
        broker.process.kill()
        broker.process.wait()
        self.running.remove(broker)

    def terminate(self, broker: BrokerProcess) -> None:
        """SIGTERM, without waiting."""
        broker.process.terminate()

    def stop(self, broker: BrokerProcess) -> int:
        """SIGTERM and wait; its exit code."""
        self.terminate(broker)
        return self.wait(broker)

    def wait(self, broker: BrokerProcess) -> int:
        """Until it has ended by itself; its exit code."""
        code = broker.process.wait(STOP_S_MAX)
        self.running.remove(broker)
        return code

    def pause(self, broker: BrokerProcess) -> None:
        """SIGSTOP: the process stands still, its connections stay open."""
        os.kill(broker.pid, signal.SIGSTOP)

    def resume(self, broker: BrokerProcess) -> None:
        os.kill(broker.pid, signal.SIGCONT)

    def close(self) -> None:
        for broker in self.running:
            broker.process.kill()
        for broker in self.running:
            broker.process.wait()
        self.running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for broker in self.running:
                print(f"--- {broker.log} (pid {broker.pid})\n{broker.text()}")
        self.close()
