"""Run three brokers as processes on one root: start them, find the owners of bundles, kill one as a
crash would, stop the rest.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

LEDGERMQ = Path(sys.executable).parent / "ledgermq"
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 30


@dataclass
class Cluster:
    """`folder`: where the brokers' logs and the list of their process ids are written."""

    url: str
    folder: Path
    brokers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def target(self) -> str:
        return ",".join(self.brokers)

    def start(self, count: int) -> None:
        """Start the processes; `wait_ready` waits until they answer."""
        for number in range(count):
            port = _free_port()
            log = (self.folder / f"broker-{number + 1}.log").open("wb")
            command = [LEDGERMQ, "broker", self.url, "--port", str(port), "--broker-id", f"broker-{number + 1}"]
            self.brokers[f"127.0.0.1:{port}"] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            log.close()
        (self.folder / "pids").write_text(" ".join(str(process.pid) for process in self.brokers.values()))

    def wait_ready(self) -> None:
        for address in self.brokers:
            self._wait_until_it_answers(address)

    def _wait_until_it_answers(self, address: str) -> None:
        until = time.monotonic() + START_SECONDS_MAX
        host, port = address.rsplit(":", 1)
        while time.monotonic() < until and self.brokers[address].poll() is None:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the broker at {address} did not start; see {self.folder}/broker-*.log")

    def kill(self, address: str) -> None:
        """Kill as a power cut would: without time to flush, to leave the cluster or to hand
        anything over.
        """
        process = self.brokers.pop(address)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Let every broker drain and release what it owns."""
        for process in self.brokers.values():
            process.terminate()
        for process in self.brokers.values():
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
        self.brokers.clear()
        (self.folder / "pids").unlink(missing_ok=True)


def stop_leftovers(folder: Path) -> None:
    """Stop brokers of an earlier run that was itself killed: they would continue to write into the
    new root.
    """
    pids = folder / "pids"
    for pid in pids.read_text().split() if pids.exists() and shutil.which("ps") else ():
        command = subprocess.run(
            ["ps", "-p", pid, "-o", "command="], capture_output=True, text=True, check=False
        ).stdout
        if f"{LEDGERMQ} broker" in command:
            os.kill(int(pid), signal.SIGKILL)
    pids.unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
