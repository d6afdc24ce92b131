"""Clients in Go (franz-go) and JavaScript (kafkajs), of twenty lines each, work with the Kafka port, also while brokers
are killed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import BrokerProcesses
from tests.kafka.brokers import processes, seed, seeds
from tests.kafka.test_second_protocol import epoch
from tests.kafka.test_transactions import read, reader
from tests.kafka.topics import create, ends

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAMS = Path(__file__).parent / "programs"
BUILD_SECONDS_MAX = 600
SECONDS_MAX = 300
GO_VERSION = (1, 26)
BROKERS = 3
COUNT = 300
PARTITIONS = 6

Client = Callable[[str, str, str, int], list[str]]
"""`client(seeds, topic, "write" or "read", count)` returns the command."""


def built(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"


def go_version() -> tuple[int, ...]:
    said = subprocess.run(["go", "version"], capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else (0,)


@pytest.fixture(scope="module")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    if shutil.which("go") is None or go_version() < GO_VERSION:
        pytest.skip(f"there is no Go {'.'.join(map(str, GO_VERSION))} or newer, which franz-go needs")
    binary = tmp_path_factory.mktemp("go") / "client"
    built(["go", "build", "-o", str(binary), "."], PROGRAMS / "go")
    return lambda *asked: [str(binary), *map(str, asked)]


@pytest.fixture(scope="module")
def node_client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no Node with npm")
    folder = tmp_path_factory.mktemp("node")
    for name in ("client.js", "package.json", "package-lock.json"):
        shutil.copy(PROGRAMS / "node" / name, folder)
    built(["npm", "ci", "--no-audit", "--no-fund"], folder)
    return lambda *asked: ["node", str(folder / "client.js"), *map(str, asked)]


@pytest.fixture(params=["go_client", "node_client"])
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerProcesses]:
    with processes(tmp_path, BROKERS) as found:
        yield found


class Program:
    """A running client; `lines`: what it has said so far."""

    def __init__(self, command: list[str]) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for line in said:
                self.lines.append(line.strip())

    def until(self, count: int) -> None:
        end_s = time.monotonic() + SECONDS_MAX
        while len(self.lines) < count and self._process.poll() is None:
            assert time.monotonic() < end_s, f"only {len(self.lines)} lines came: {self.lines[-5:]}"
            time.sleep(0.02)

    def close(self) -> int:
        try:
            return self._process.wait(SECONDS_MAX)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()


def test_it_goes_on_when_brokers_are_killed(client: Client, brokers: BrokerProcesses) -> None:
    known = seeds(brokers)
    topic = f"t{uuid.uuid4().hex}"
    create(known, topic, partitions=PARTITIONS)
    values = [str(number) for number in range(COUNT)]

    writer = Program(client(known, topic, "write", COUNT))
    writer.until(COUNT // 3)
    brokers.kill(brokers.running[0])
    assert writer.close() == 0, writer.lines
    assert writer.lines == values

    reader = Program(client(known, topic, "read", COUNT))
    reader.until(1)
    brokers.kill(brokers.running[0])
    assert reader.close() == 0, reader.lines
    assert set(reader.lines) == set(values)  # what came after its last commit may come again

    assert ends(seed(brokers.running[0]), topic, PARTITIONS) == COUNT  # each was stored once


def test_go_takes_an_epoch_for_each_transaction(go_client: Client, bootstrap: str) -> None:
    """franz-go speaks the second protocol of transactions (KIP-890)."""
    topic, count = f"t{uuid.uuid4().hex}", 9
    create(bootstrap, topic)
    writer = Program(go_client(bootstrap, topic, "transact", count))
    assert writer.close() == 0, writer.lines
    assert writer.lines == [str(number) for number in range(count) if number % 3 != 1]
    with reader(bootstrap, topic) as consumer:
        assert read(consumer, 6) == sorted(line.encode() for line in writer.lines)
    assert epoch(bootstrap, f"{topic}-go") == count - 1
