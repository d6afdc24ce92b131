"""A running stream whose driver, executors and brokers are killed, while compaction moves records
and retention deletes them behind it.

At the end the sink holds the log: each record once, and every batch that ran again had the same
rows.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import ledgermq
from infra import java
from ledgermq.sources import Sources
from ledgermq_ledger.cluster import ClusterDefaults, open_cluster
from ledgermq_ledger.garbage.topics.retention import log_start_move
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.root.open import open_store
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.topics.catalog import read_catalog
from ledgermq_ledger.topics.topic import Topic
from tests.e2e.processes import BrokerProcesses
from tests.worlds.ledgers import ledger_of

pytestmark = pytest.mark.real

REPOSITORY = Path(__file__).parents[2]
SPARK, ALONE = "tests.spark.query_process", "tests.worlds.micro_batches"
PARTITIONS = 3
LIVES = 3
QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""A JVM that lives for a minute does not pay for the best code."""
NOT_STARTED = "Python worker failed to connect back"
"""Spark waits ten seconds for the reader beside the driver, which may be too short on a busy
machine.
"""
DEFAULTS = ClusterDefaults(bundles=3, url_life_ms=1_000, parquet_min_age_ms=4_000)


class Query:
    """The query's processes.

    With Spark: the driver, its JVM, and below that Python's workers, one of them the reader beside
    the driver.
    """

    def __init__(self, module: str, folder: Path, root_url: str) -> None:
        self.uses_spark = module == SPARK
        self._module = module
        self.sink = folder / "sink"
        self.sink.mkdir()
        self._checkpoint = folder / "checkpoint"
        self._log = folder / "query.log"
        self._options = [f"root={root_url}", "topic=t", "maxOffsetsPerTrigger=400", "minPartitions=4"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, trigger: str = "always") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", self._module, str(self.sink), str(self._checkpoint), trigger, *self._options]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=REPOSITORY, env=os.environ | QUICK_JAVA, start_new_session=True
            )
        return self._process

    def kill(self) -> None:
        """All of it, as a machine that is gone."""
        assert self._process is not None
        for pid, (_, session, _) in processes().items():
            if session == self._process.pid:
                with suppress(ProcessLookupError):  # it has ended since it was listed
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        if self._process is not None:
            self.kill()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill_an_executor(self) -> bool:
        """A Python worker that reads records; its parent, a daemon, is left to start others."""
        assert self._process is not None
        known = {
            pid: found
            for pid, found in processes().items()
            if found[1] == self._process.pid and "pyspark.worker" in found[2]
        }
        workers = [pid for pid, (parent, _, _) in known.items() if parent in known]
        for pid in workers[:1]:
            os.kill(pid, signal.SIGKILL)
        return bool(workers)

    def numbers(self) -> list[int]:
        return sorted(int(file.stem) for file in self.sink.glob("[0-9]*.json"))

    def rows(self, below: int = 10**6) -> dict[tuple[int, int], str]:
        """(partition, offset) → digest; asserts that each is there once."""
        found: dict[tuple[int, int], str] = {}
        for number in self.numbers():
            for partition, offset, digest in (
                json.loads((self.sink / f"{number:06d}.json").read_text()) if number < below else []
            ):
                assert (partition, offset) not in found, f"{partition}-{offset} is there twice"
                found[partition, offset] = digest
        return found

    def text(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]


def processes() -> dict[int, tuple[int, int, str]]:
    """pid → (parent, session, command)."""
    done = subprocess.run(["ps", "-eo", "pid,ppid,sid,args"], capture_output=True, text=True, check=True)
    parts = [line.split(None, 3) for line in done.stdout.splitlines()[1:]]
    return {int(pid): (int(parent), int(session), args) for pid, parent, session, args in parts}


class Log:
    """What is produced, and what others do with it."""

    def __init__(self, root_url: str, topic: Topic) -> None:
        self._root_url = root_url
        self._topic = topic
        self.sent: dict[tuple[int, int], str] = {}
        self.kept_from = 0
        self.rounds = 0

    async def produce(self, servers: str, stop: asyncio.Event) -> None:
        """Some 300 records a second, until told; every acknowledged one is remembered."""
        async with ledgermq.connect(servers) as client, client.producer() as producer:
            number = 0
            while not stop.is_set():
                values = [b"%d" % (number + each) * 20 for each in range(30)]
                futures = [producer.send("t", value, partition=at % PARTITIONS) for at, value in enumerate(values)]
                for value, future in zip(values, futures, strict=True):
                    done = await future
                    self.sent[done.partition, done.offset] = hashlib.md5(value).hexdigest()
                number += 30
                await asyncio.sleep(0.1)

    async def compact(self) -> None:
        """A round, and then what may be deleted is deleted."""
        async with await open_store(self._root_url, sources=Sources()) as store:
            report = await compact_root(store, Sources(), LocalEngine(Sources()))
            assert not report.failures, report.failures
            self.rounds += 1

    async def delete_below(self, rows: dict[tuple[int, int], str]) -> None:
        """The log start of partition 0 follows the query."""
        done = [offset for partition, offset in rows if partition == 0]
        if done and max(done) > self.kept_from:
            self.kept_from = max(done)
            async with await open_store(self._root_url, sources=Sources()) as store:
                move = log_start_move({PartitionId(self._topic.id, 0): self.kept_from})
                await advance_checkpoint(ledger_of(store, self._topic.bundles[0], sources=Sources()), move)


@asynccontextmanager
async def running(folder: Path, root_url: str) -> AsyncIterator[tuple[BrokerProcesses, Log]]:
    async with await open_store(root_url, sources=Sources()) as store:
        await open_cluster(store, Sources(), DEFAULTS)
    with BrokerProcesses(folder, root_url) as brokers:
        await asyncio.to_thread(brokers.start_all, 2)
        async with ledgermq.connect(brokers.addresses) as client:
            await client.create_topic("t", PARTITIONS)
        async with await open_store(root_url, sources=Sources()) as store:
            topic = (await read_catalog(ledger_of(store, 0))).living("t")
        log, stop = Log(root_url, topic), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(log.produce(brokers.addresses, stop))
            yield brokers, log
            stop.set()


@pytest.fixture
def file_root(tmp_path: Path) -> str:
    return (tmp_path / "root").as_uri()


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("place", ["file_root", "minio_root", "hdfs_root"])
@pytest.mark.parametrize("module", [ALONE, pytest.param(SPARK, marks=pytest.mark.nightly)])
async def test_the_sink_is_the_log(request: pytest.FixtureRequest, tmp_path: Path, place: str, module: str) -> None:
    if module == SPARK:
        request.getfixturevalue("java_home")
    query = Query(module, tmp_path, root_url := request.getfixturevalue(place))
    request.addfinalizer(query.end)
    executors = 0
    async with running(tmp_path, root_url) as (brokers, log):
        for life in range(LIVES):
            query.start()
            await batches(query, 3)
            await log.compact()
            executors += query.kill_an_executor()
            if life % 2:
                brokers.kill(brokers.running[0])
                await asyncio.to_thread(brokers.start)
            await batches(query, 2)
            await log.delete_below(query.rows(below=query.numbers()[-2]))
            await log.compact()
            await batches(query, 2)
            query.kill()
    while await asyncio.to_thread(query.start("now").wait, 300):
        assert NOT_STARTED in query.text(), query.text()
    assert not (query.sink / "DIFFERENT").exists()
    assert query.rows() == log.sent
    assert executors == (LIVES if query.uses_spark else 0)
    assert log.rounds == 2 * LIVES
    assert log.kept_from > 0


@pytest.fixture
def java_home(monkeypatch: pytest.MonkeyPatch) -> None:
    home = java.installed()
    assert home is not None
    monkeypatch.setenv("JAVA_HOME", str(home))


async def batches(query: Query, count: int) -> None:
    """Until it has run so many more."""
    wanted = len(query.numbers()) + count
    async with asyncio.timeout(400):
        while len(query.numbers()) < wanted:
            if not query.is_running():
                assert NOT_STARTED in query.text(), query.text()
                query.start()
            await asyncio.sleep(0.05)
