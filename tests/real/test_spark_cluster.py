"""Compaction on a standalone Spark cluster of two workers: executors and drivers that are killed,
jobs that are rivals.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra import java
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.file.store import FileStore
from tests.servers.spark_cluster import SparkCluster, spark_cluster
from tests.waiting import wait_until
from tests.worlds.roots import Root, read_parquet_rows

pytestmark = [pytest.mark.real, pytest.mark.nightly]

REPOSITORY = Path(__file__).parents[2]
PARTITIONS, SEGMENTS = 60, 6
VALUES = [b"value %04d" % number for number in range(40)]
JOB_S_MAX = 300.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java.installed()))
        with spark_cluster(tmp_path_factory.mktemp("spark"), workers=2) as running:
            yield running


@pytest.fixture
async def root(tmp_path: Path) -> Root:
    """Sixty files are due in bundle 1, one in bundle 2."""
    store = FileStore(tmp_path / "root", Sources())
    root = await Root.open(store, Sources(), bundles=3)
    await root.create_topic("t", PARTITIONS)
    await root.create_topic("u", bundle=2)
    for _ in range(SEGMENTS):
        await root.produce("t", *((partition, VALUES) for partition in range(PARTITIONS)))
    await root.produce("u", (0, VALUES))
    return root


Jobs = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def start_job(cluster: SparkCluster, root: Root) -> Iterator[Jobs]:
    """Starts a job on the root; what still runs at the end is killed."""
    command = [sys.executable, "-m", "ledgermq_spark.job", root.store.url, "--output", "json"]
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        running = subprocess.Popen(
            command, **pipes, text=True, cwd=REPOSITORY, env=cluster.environment, start_new_session=True
        )  # type: ignore[call-overload]
        started.append(running)
        return running  # type: ignore[no-any-return]

    yield start
    for running in started:
        if running.poll() is None:
            kill(running)


def kill(running: subprocess.Popen[str]) -> None:
    """The driver and its JVM."""
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)


def finished(running: subprocess.Popen[str]) -> dict[str, object]:
    output, errors = running.communicate(timeout=JOB_S_MAX)
    assert running.returncode == 0, output + errors
    found = json.loads(output)
    assert isinstance(found, dict)
    assert found["findings"] == []
    return found


def files(root: Root, folder: str) -> int:
    place = Path(root.store.url.removeprefix("file://")) / folder
    return sum(
        1 for path in place.rglob("*") if path.is_file() and not any(part.startswith((".", "_")) for part in path.parts)
    )


def until(what: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    def reached() -> bool:
        if what():
            return True
        assert running.poll() is None, running.communicate()
        return False

    wait_until(reached, JOB_S_MAX, every_s=0.002, what=inspect.getsource(what).strip())


async def all_is_there_once(root: Root) -> None:
    rows = await read_parquet_rows(root.store)
    assert {part: list(found.values()) for part, found in rows.items()} == root.produced
    assert [info.key async for info in root.store.list(keys.compactions(1))] == []
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "ledgermq.cli.main", "fsck", root.store.url, "--output", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert json.loads(done.stdout)["verdict"] == "clean", done.stdout


@pytest.mark.timeout(600)
async def test_an_executor_is_killed_in_the_midst_of_its_task(
    cluster: SparkCluster, start_job: Jobs, root: Root
) -> None:
    running = start_job()
    until(lambda: files(root, "parquet/topic=t") >= 3, running)
    cluster.kill_executor()
    at_the_kill = files(root, "parquet/topic=t")
    told = finished(running)
    assert at_the_kill < PARTITIONS, "it was killed in the midst"
    assert told["records"] == PARTITIONS * SEGMENTS * len(VALUES) + len(VALUES)
    await all_is_there_once(root)


@pytest.mark.timeout(900)
async def test_drivers_are_killed_between_any_two_steps(start_job: Jobs, root: Root) -> None:
    """A plan stands there; some of its files; its page: each time the driver dies, and the last job
    finishes what it finds.
    """
    bundle = keys.segments(1).rsplit("/", 2)[0]
    for reached in (
        lambda: files(root, f"{bundle}/compactions") >= 1,
        lambda: files(root, "parquet/topic=t") >= 5,
        lambda: files(root, f"{bundle}/files") >= 1,
    ):
        running = start_job()
        until(reached, running)
        kill(running)
    assert files(root, f"{bundle}/checkpoints") <= 1
    finished(start_job())
    await all_is_there_once(root)


@pytest.mark.timeout(900)
async def test_two_jobs_together_are_rivals_that_make_one_set_of_files(start_job: Jobs, root: Root) -> None:
    both = [start_job(), start_job()]
    for running in both:
        finished(running)
    await all_is_there_once(root)
