"""`ledgermq worker` in real processes: it runs the handlers of modules, and a signal ends it cleanly."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ledgermq.sync
from tests.e2e.processes import BrokerProcesses
from tests.waiting import wait_until

LEDGERMQ = Path(sys.executable).parent / "ledgermq"
COUNT = 10
WAIT_S_MAX = 120.0
pytestmark = pytest.mark.slow

ASYNC = """
import ledgermq

client = ledgermq.connect("ADDRESS")
producer = client.producer()


@client.handler("TOPIC", group="TOPIC", commit_interval_ms=60_000)
async def copy(message):
    await producer.send("copies", message.value)
    print("copied", flush=True)


@client.queue_handler("TOPIC", group="TOPIC-queue")
async def work(message):
    print("worked", flush=True)
"""
SYNC = """
import ledgermq.sync

client = ledgermq.sync.connect("ADDRESS")


@client.handler("TOPIC", group="TOPIC-sync", commit_interval_ms=60_000)
def handle(message):
    print("handled", flush=True)
"""
FAILS = """
import ledgermq

client = ledgermq.connect("ADDRESS")


@client.handler("TOPIC", group="TOPIC-fails", retry=ledgermq.Retry.in_order(max_attempts=1, then="stop"))
async def fail(message):
    raise ValueError("a broken handler")
"""
SLOW = """
import asyncio
import ledgermq

client = ledgermq.connect("ADDRESS")


@client.handler("TOPIC", group="TOPIC-slow", commit_interval_ms=60_000)
async def wait(message):
    print("begun", flush=True)
    await asyncio.sleep(3600)
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("worker")
    with BrokerProcesses(folder, (folder / "root").as_uri()) as brokers:
        yield brokers.start().address


@pytest.fixture
def client(address: str) -> Iterator[ledgermq.sync.Client]:
    with ledgermq.sync.connect(address) as client:
        client.create_topic("copies", partitions=1, if_not_exists=True)
        yield client


class Worker:
    """A process of `ledgermq worker` on modules in a folder."""

    def __init__(self, folder: Path, address: str, topic: str, *names: str, **modules: str) -> None:
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text.replace("ADDRESS", address).replace("TOPIC", topic))
        self.out, self.notes = folder / "out.log", folder / "notes.log"
        with self.out.open("wb") as out, self.notes.open("wb") as notes:
            self.process = subprocess.Popen([LEDGERMQ, "worker", *names], cwd=folder, stdout=out, stderr=notes)

    def wait_for(self, line: str, count: int = COUNT) -> None:
        def is_done() -> bool:  # threads may print into each other's lines
            return self.out.read_text().count(line) >= count or self.process.poll() is not None

        try:
            wait_until(is_done, WAIT_S_MAX)
        except AssertionError:
            self.process.kill()
            self.process.wait()
            raise
        assert self.process.poll() is None, self.notes.read_text()

    def ended(self) -> int:
        try:
            return self.process.wait(WAIT_S_MAX)
        finally:
            self.process.kill()


def fill(client: ledgermq.sync.Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    with client.producer() as producer:
        producer.send_many(topic, [f"{number}" for number in range(COUNT)])


def committed(client: ledgermq.sync.Client, group: str) -> list[int]:
    described = client.groups.describe(group)
    assert not described.members
    return [entry.stored.offset for entry in described.committed.values()]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT], ids=lambda sent: sent.name)
def test_several_applications_commit_and_leave(
    tmp_path: Path, address: str, client: ledgermq.sync.Client, sent: signal.Signals
) -> None:
    """Of both kinds of clients, and both kinds of handlers."""
    topic = sent.name
    fill(client, topic)
    before = client.list_offsets("copies")[0]
    worker = Worker(tmp_path, address, topic, "one:client", "two:client", "one:client", one=ASYNC, two=SYNC)
    for line in ("copied", "worked", "handled"):
        worker.wait_for(line)
    worker.process.send_signal(sent)
    assert worker.ended() == 0
    assert committed(client, topic) == committed(client, f"{topic}-sync") == [COUNT]
    assert client.list_offsets("copies")[0] == before + COUNT
    described = client.queues.describe(f"{topic}-queue")
    assert (described.backlog, described.leased) == (0, 0)
    notes = worker.notes.read_text()
    assert f"one:client: copy of {topic} in group {topic}, work of {topic} in group {topic}-queue" in notes
    assert notes.count("one:client:") == 1
    assert notes.endswith("stopped\n")


def test_when_one_application_fails_the_others_leave_and_its_error_is_shown(
    tmp_path: Path, address: str, client: ledgermq.sync.Client
) -> None:
    fill(client, "failing")
    worker = Worker(tmp_path, address, "failing", "one:client", "two:client", one=FAILS, two=SYNC)
    assert worker.ended() == 1
    assert not client.groups.describe("failing-sync").members
    notes = worker.notes.read_text()
    assert "ValueError: a broken handler" in notes
    assert "in fail" in notes, "the traceback of the application's own error"


def test_the_second_signal_ends_a_handler_that_does_not_end(
    tmp_path: Path, address: str, client: ledgermq.sync.Client
) -> None:
    fill(client, "slow")
    worker = Worker(tmp_path, address, "slow", "one:client", "--drain-timeout", "600", one=SLOW)
    worker.wait_for("begun", 1)
    worker.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "a second signal ends them" in worker.notes.read_text(), WAIT_S_MAX)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.ended() == -signal.SIGTERM


def test_calls_that_take_too_long_end_the_command_with_an_error(
    tmp_path: Path, address: str, client: ledgermq.sync.Client
) -> None:
    fill(client, "late")
    worker = Worker(tmp_path, address, "late", "one:client", "--drain-timeout", "0.5", one=SLOW)
    worker.wait_for("begun", 1)
    worker.process.send_signal(signal.SIGINT)
    assert worker.ended() == 3
    assert "error [DEADLINE_EXCEEDED]" in worker.notes.read_text()
