"""The Spark sink among real processes: drivers, Python workers and brokers are killed while a query
writes; stores are real servers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ledgermq
from ledgermq.sources import Sources
from ledgermq_ledger.root.open import open_store
from tests.e2e.processes import BrokerProcess, BrokerProcesses
from tests.waiting import wait_until
from tests.worlds.consumed import read_messages

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(3600)]

RUN_S_MAX = 1200.0
"""Long, for a machine that does a hundred other things at once; nothing waits for it to pass."""
FILES, LINES = 6, 400
QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""A JVM that lives for a minute does not pay for the best code."""


class Query:
    """The process of `tests.spark.sink_process`, with its children in a group of its own."""

    def __init__(self, folder: Path, servers: str, topic: str, *options: str) -> None:
        self.folder = folder
        self._command = [sys.executable, "-m", "tests.spark.sink_process", str(folder), servers, topic, *options]
        self._runs = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._runs += 1
        with (self.folder / f"query-{self._runs}.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | QUICK_JAVA, start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Driver, JVM and Python workers at once, as when the machine dies."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_worker(self) -> bool:
        """One of the processes in which tasks run. False: there is none now."""
        assert self._process is not None
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal() and _is_worker(folder, self._process.pid):
                os.kill(int(folder.name), signal.SIGKILL)
                return True
        return False

    def wait(self) -> None:
        assert self._process is not None
        self._process.wait(RUN_S_MAX)
        assert self.succeeded, self.log()

    @property
    def succeeded(self) -> bool:
        return self._process is not None and self._process.poll() == 0

    def log(self) -> str:
        """The end of what the last run has printed."""
        return (self.folder / f"query-{self._runs}.log").read_text()[-5000:]

    def close(self) -> None:
        if self.running:
            self.kill()


def _is_worker(folder: Path, group: int) -> bool:
    """Forked by pyspark.daemon, whose parent is the JVM."""
    try:
        pid = int(folder.name)
        parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        is_daemon = [b"pyspark.daemon" in Path(f"/proc/{each}/cmdline").read_bytes() for each in (pid, parent)]
        return all(is_daemon) and os.getpgid(pid) in (group, os.getpgid(parent)) and os.getsid(pid) == group
    except (OSError, ValueError):
        return False


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.e2e.processes.START_S_MAX", RUN_S_MAX)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerProcesses]:
    with BrokerProcesses(tmp_path, f"file://{tmp_path}/root") as processes:
        processes.start_all(2)
        yield processes


def create(servers: str, topic: str, partitions: int = 3) -> None:
    async def run() -> None:
        async with ledgermq.connect(servers) as client:
            await client.create_topic(topic, partitions)

    asyncio.run(run())


def stored(servers: str, topic: str) -> Counter[str]:
    async def run() -> Counter[str]:
        async with ledgermq.connect(servers) as client:
            return Counter((message.value or b"").decode() for message in await read_messages(client, topic))

    return asyncio.run(run())


def write_files(folder: Path) -> Counter[str]:
    (folder / "in").mkdir()
    everything: Counter[str] = Counter()
    for file in range(FILES):
        lines = [f"{file % 3}{i % 7}/{file}/{i}" for i in range(LINES)]
        (folder / "in" / f"{file}.txt").write_text("\n".join(lines) + "\n")
        everything.update(lines)
    return everything


def sink_files(root: Path, kind: str) -> int:
    return len(list(root.glob(f"sinks/*/{kind}/*")))


def test_a_query_that_is_killed_at_each_step_writes_everything_once(tmp_path: Path, brokers: BrokerProcesses) -> None:
    """Killed when rows are staged, when an epoch is decided, when one is done, and when Spark has
    noted it; a broker dies too.
    """
    create(brokers.addresses, "t")
    everything = write_files(tmp_path)
    root, servers = tmp_path / "root", brokers.addresses
    query = Query(tmp_path, servers, "t")
    steps: list[Callable[[], bool]] = [
        lambda: sink_files(root, "staged") > 0,
        lambda: sink_files(root, "decided") > sink_files(root, "done"),
        lambda: sink_files(root, "done") > len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))),
        lambda: sink_files(root, "staged") > 1,
    ]
    try:
        for number, step in enumerate(steps):
            query.start()
            wait_until(lambda step=step: step() or not query.running, RUN_S_MAX, every_s=0.002)  # type: ignore[misc]
            query.close()
            if number == 1:
                killed = brokers.running[0]
                brokers.kill(killed)
                brokers.start(port=int(killed.address.rpartition(":")[2]))
        query.start()
        query.wait()
    finally:
        query.close()
    assert stored(servers, "t") == everything
    assert sink_files(root, "decided") == sink_files(root, "done") == FILES
    assert sink_files(root, "staged") == 0


def test_workers_and_brokers_that_are_killed_cost_nothing(tmp_path: Path, brokers: BrokerProcesses) -> None:
    """Tasks are tried again by Spark.

    A worker may also be the one that commits: then the query ends, and is started again.
    """
    create(brokers.addresses, "t")
    everything = write_files(tmp_path)
    root, servers = tmp_path / "root", brokers.addresses
    query = Query(tmp_path, servers, "t")
    killed = 0
    try:
        for _ in range(6):
            query.start()
            while query.running:
                writes = sink_files(root, "staged") + sink_files(root, "decided") > 0
                if writes and killed < 4 and query.kill_worker():
                    killed += 1
                    if killed == 2:
                        _restart(brokers, brokers.running[0])
                time.sleep(0.3)
            if query.succeeded:
                break
        assert query.succeeded, query.log()
    finally:
        query.close()
    assert killed == 4
    assert stored(servers, "t") == everything


def _restart(brokers: BrokerProcesses, broker: BrokerProcess) -> None:
    brokers.kill(broker)
    brokers.start(port=int(broker.address.rpartition(":")[2]))


@pytest.mark.parametrize("place", ["minio_root", "hdfs_root"])
def test_from_one_topic_to_another_on_real_stores(tmp_path: Path, request: pytest.FixtureRequest, place: str) -> None:
    """With the source: the query is killed once between its micro-batches; what is read once is
    written once.
    """
    root: str = request.getfixturevalue(place)
    with BrokerProcesses(tmp_path, root) as brokers:
        brokers.start()
        create(brokers.addresses, "from", 2)
        create(brokers.addresses, "to", 3)
        everything = asyncio.run(_produce(brokers.addresses, "from", 6000))
        query = Query(tmp_path, brokers.addresses, "to", f"root={root}", "from=from")
        try:
            query.start()
            wait_until(
                lambda: sum(stored(brokers.addresses, "to").values()) > 0 or not query.running, RUN_S_MAX, every_s=0.5
            )
            query.close()
            query.start()
            query.wait()
        finally:
            query.close()
        assert stored(brokers.addresses, "to") == everything
        assert asyncio.run(_left(root)) == 0


async def _produce(servers: str, topic: str, count: int) -> Counter[str]:
    values = [f"{i}".ljust(100, ".") for i in range(count)]
    async with ledgermq.connect(servers) as client, client.producer() as producer:
        for value in values:
            producer.send(topic, value, key=value[-1])
    return Counter(values)


async def _left(root: str) -> int:
    """Staged rows that are in the store."""
    async with await open_store(root, sources=Sources()) as store:
        return len([info async for info in store.list("sinks/") if "/staged/" in info.key])
