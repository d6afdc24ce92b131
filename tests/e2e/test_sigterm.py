"""SIGTERM ends real programs cleanly: what they have handled is committed, what they have read is stored,
and their group is empty at once, not when a session expires.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ledgermq.sync
from tests.e2e.processes import BrokerProcesses
from tests.e2e.terminated_program import COUNT
from tests.waiting import wait_until

LEDGERMQ = Path(sys.executable).parent / "ledgermq"
ENDS_S_MAX = 60.0
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("sigterm")
    with BrokerProcesses(folder, (folder / "root").as_uri()) as brokers:
        yield brokers.start().address


@pytest.fixture
def client(address: str) -> Iterator[ledgermq.sync.Client]:
    with ledgermq.sync.connect(address) as client:
        client.create_topic("copies", partitions=1, if_not_exists=True)
        yield client


def fill(client: ledgermq.sync.Client, topic: str) -> None:
    client.create_topic(topic, partitions=1)
    with client.producer() as producer:
        for number in range(COUNT):
            producer.send(topic, f"{number}")


def program(kind: str, address: str, topic: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.e2e.terminated_program", kind, address, topic]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code of a process, and what it has printed."""
    try:
        out, _ = process.communicate(timeout=ENDS_S_MAX)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out


@pytest.mark.parametrize("kind", ["handler", "transactional", "two", "sync", "uvloop"])
def test_handlers_commit_and_leave(kind: str, address: str, client: ledgermq.sync.Client) -> None:
    fill(client, kind)
    process = program(kind, address, kind)
    assert line_of(process) == "handled\n"
    process.send_signal(signal.SIGTERM)
    code, out = ended(process)
    assert (code, out.split()[0]) == (0, "ended")
    group = client.groups.describe(kind)
    assert [entry.stored.offset for entry in group.committed.values()] == [COUNT]
    assert not group.members


def test_a_queue_handler_acknowledges_and_leaves(address: str, client: ledgermq.sync.Client) -> None:
    fill(client, "queue")
    process = program("queue", address, "queue")
    assert line_of(process) == "handled\n"
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0
    found = client.queues.describe("queue")
    assert not any(each.members for each in found.partitions)
    assert sum(each.backlog for each in found.partitions) == 0, found


def test_a_second_signal_ends_the_program_at_once(address: str, client: ledgermq.sync.Client) -> None:
    fill(client, "stubborn")
    process = program("stubborn", address, "stubborn")
    assert line_of(process) == "handled\n"
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == -signal.SIGTERM


def test_it_can_be_switched_off(address: str, client: ledgermq.sync.Client) -> None:
    fill(client, "off")
    process = program("off", address, "off")
    assert line_of(process) == "handled\n"
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == -signal.SIGTERM


def test_consume_commits_what_it_has_printed_and_leaves(address: str, client: ledgermq.sync.Client) -> None:
    fill(client, "printed")
    command = [LEDGERMQ, "consume", "printed", "--group", "printers", "--target", address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert [line_of(process) for _ in range(COUNT)] == [f"{number}\n" for number in range(COUNT)]
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 143
    group = client.groups.describe("printers")
    assert [entry.stored.offset for entry in group.committed.values()] == [COUNT]
    assert not group.members


def test_produce_stores_what_it_has_read_and_says_so(address: str, client: ledgermq.sync.Client) -> None:
    client.create_topic("typed", partitions=1)
    command = [LEDGERMQ, "produce", "typed", "--target", address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write("one\ntwo\n")
    process.stdin.flush()
    wait_until(lambda: client.list_offsets("typed")[0] == 2, ENDS_S_MAX)
    process.send_signal(signal.SIGTERM)
    try:
        _, err = process.communicate(timeout=ENDS_S_MAX)
    finally:
        process.kill()
    assert process.returncode == 143, err
    assert err.startswith("2 records were stored before the interruption: lines 1 to 2 of stdin.")


def test_a_loop_that_runs_handlers_again_and_again_ends_at_the_second_signal(
    address: str, client: ledgermq.sync.Client
) -> None:
    fill(client, "again")
    source = f"""
import asyncio, ledgermq

async def main():
    async with ledgermq.connect({address!r}) as client:
        @client.handler("again", group="again")
        async def handle(message): pass
        while True:
            print("runs", flush=True)
            await client.run_handlers()

asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert line_of(process) == "runs\n"
    wait_until(lambda: bool(client.groups.list()) and bool(client.groups.describe("again").members), ENDS_S_MAX)
    process.send_signal(signal.SIGTERM)
    assert line_of(process) == "runs\n"
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == -signal.SIGTERM
