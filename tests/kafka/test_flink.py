"""A job of Flink, in a separate environment, with Flink's connector for Kafka and its transactions: to its end, and
killed in the midst of its checkpoints and right behind them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ledgermq
from infra import java, maven
from tests.kafka.nodes import served

pytestmark = [pytest.mark.kafka, pytest.mark.languages, pytest.mark.timeout(3600)]
"""Of `languages`, so that the slow tests do not fetch some 700 MB; `make test-kafka` runs it."""

JOB = Path(__file__).resolve().parents[2] / "examples" / "relays" / "flink_job.py"
LINES = [f"line {number} ä" for number in range(1000)]
SECONDS_MAX = 1500
UV = (str(Path(sys.executable).with_name("uv")), "run", "--quiet", "--no-project", "--python")
PYTHON = str(Path(sys.executable).resolve())
"""The interpreter without the packages of this environment: Flink has others of protobuf."""
KILLS = ("begun", "complete", "complete", "begun", "complete")
"""Whether the job is killed when a checkpoint has begun, or right behind its end, before the sink has told the broker
to commit.
"""
LINE_S = 0.02


@pytest.fixture(scope="module")
def home() -> Path:
    home = java.installed()
    if home is None:
        pytest.skip(f"there is no Java {java.VERSION_MIN} or newer: `python infra/java.py` installs it")
    return home


def command(bootstrap: str, *folder: str) -> list[str]:
    (jar,) = maven.jars("flink_kafka").glob("*.jar")
    return [*UV, PYTHON, "--with", "apache-flink==2.3.0", "python", str(JOB), bootstrap, str(jar), *folder]


async def test_a_job_writes_each_line_once(tmp_path: Path, home: Path) -> None:
    with served(tmp_path) as node:
        assert node.kafka_address is not None
        async with ledgermq.connect(node.address) as client:
            for topic in ("lines", "lengths"):
                await client.create_topic(topic, 2)
            async with client.producer() as producer:
                await producer.send_many("lines", LINES)
            done = subprocess.run(  # noqa: ASYNC221  the broker is in another thread
                command(node.kafka_address),
                env=os.environ | {"JAVA_HOME": str(home)},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
                check=False,
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
            assert await lengths(client, len(LINES)) == {line: len(line) for line in LINES}


async def lengths(client: ledgermq.Client, count: int) -> dict[str, int]:
    """Return the length of each line that the job has written, once there are so many. None may come twice."""
    found: dict[str, int] = {}
    async with client.consumer("lengths") as consumer:
        while len(found) < count and (messages := await consumer.fetch(timeout=120)):
            for message in messages:
                row = json.loads(message.value or b"")
                assert row["line"] not in found
                found[row["line"]] = row["length"]
        assert not await consumer.fetch(10, timeout=2)
    return found


async def test_a_job_that_is_killed_goes_on_from_its_checkpoint(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    sent: list[str] = []
    stopped = asyncio.Event()
    with served(tmp_path) as node:
        assert node.kafka_address is not None
        async with ledgermq.connect(node.address) as client, client.producer() as producer:
            for topic in ("lines", "lengths"):
                await client.create_topic(topic, 2)

            async def write() -> None:
                while not stopped.is_set():
                    sent.append(f"line {len(sent)} ä")
                    await producer.send("lines", sent[-1])
                    await asyncio.sleep(LINE_S)

            writing = asyncio.create_task(write())
            job = command(node.kafka_address, str(folder))
            for kill in KILLS:
                with running(job, home, tmp_path / "log") as process:
                    await asyncio.to_thread(wait, process, folder, kill, seen(folder, kill))
            stopped.set()
            await writing
            with running(job, home, tmp_path / "log"):
                found = await lengths(client, len(sent))
    assert found == {line: len(line) for line in sent}


def seen(folder: Path, kill: str) -> set[Path]:
    """Return the checkpoints that have begun, or that are complete."""
    return set(folder.glob("*/chk-*" if kill == "begun" else "*/chk-*/_metadata"))


def wait(process: subprocess.Popen[bytes], folder: Path, kill: str, before: set[Path]) -> None:
    """Wait for a checkpoint that was not there before."""
    until = time.monotonic() + SECONDS_MAX
    while not seen(folder, kill) - before:
        assert process.poll() is None, "the job has ended"
        assert time.monotonic() < until, "there is no checkpoint"
        time.sleep(0.002)


@contextmanager
def running(job: list[str], home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a job, with the process of Java that it starts, and kill both. An error shows the end of what they said."""
    with log.open("ab") as output:
        environment = os.environ | {"JAVA_HOME": str(home)}
        process = subprocess.Popen(job, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    except AssertionError as error:
        error.add_note(log.read_text(errors="replace")[-4000:])
        raise
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
