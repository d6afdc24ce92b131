"""A standalone Spark cluster of real processes on this machine: a master, and workers of one core
each, from the pyspark package alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from infra.ports import free_port

NO_REST = {"SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}
"""It would take a fixed port."""
START_S_MAX = 240.0
POLL_S = 0.2
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"


class SparkCluster:
    def __init__(self, url: str, folder: Path, workers: list[subprocess.Popen[bytes]]) -> None:
        self.url = url
        self.folder = folder
        self.workers = workers

    @property
    def environment(self) -> dict[str, str]:
        """For a driver: its executors have one core each."""
        return environment() | {
            "MASTER": self.url,
            "PYSPARK_SUBMIT_ARGS": "--conf spark.executor.memory=512m pyspark-shell",
        }

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        workers = {worker.pid for worker in self.workers}
        return [pid for pid, parent, command in processes() if parent in workers and EXECUTOR in command]

    def kill_executor(self) -> int:
        """SIGKILL one of them; its process id. Its Python workers end with it."""
        pid = self.executors()[0]
        os.kill(pid, signal.SIGKILL)
        return pid


def environment() -> dict[str, str]:
    home = Path(pyspark.__file__).parent
    return {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **NO_REST,
    }


def processes() -> Iterator[tuple[int, int, str]]:
    """(process id, that of its parent, command line)."""
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                stat = (place / "stat").read_text()
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it has ended
            yield int(place.name), int(stat.rpartition(")")[2].split()[1]), command


@contextmanager
def spark_cluster(folder: Path, workers: int, memory: str = "700m") -> Iterator[SparkCluster]:
    """`folder` takes logs and work folders. All processes end with the block."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        _start(
            stack,
            folder / "master.log",
            MASTER,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            str(free_port()),
        )
        _wait(folder / "master.log", "Starting Spark master at")
        started = []
        for number in range(workers):
            log, work = folder / f"worker-{number}.log", folder / f"work-{number}"
            options = ("--cores", "1", "--memory", memory, "--work-dir", str(work), "--webui-port", str(free_port()))
            started.append(_start(stack, log, WORKER, *options, url))
        for number in range(workers):
            _wait(folder / f"worker-{number}.log", "Successfully registered with master")
        yield SparkCluster(url, folder, started)


def _start(stack: ExitStack, log: Path, main: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), main, *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """With everything that it has started: executors are in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait(30)


def _wait(log: Path, text: str) -> None:
    ends_s = time.monotonic() + START_S_MAX
    while text not in log.read_text(errors="replace"):
        if time.monotonic() > ends_s:
            raise TimeoutError(f"no {text!r} in {log}:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(POLL_S)
