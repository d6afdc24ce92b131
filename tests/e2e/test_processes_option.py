"""`ledgermq broker --processes N` with real processes: all serve, a killed one is restarted,
signals reach all of them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ledgermq.sync
from infra.ports import free_port
from ledgermq.cli.output.exit_codes import ExitCode
from tests.e2e.processes import QUICK, BrokerProcess, BrokerProcesses
from tests.waiting import wait_until

TWO = ("--processes", "2", "--log-format", "json")


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerProcesses]:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), (*QUICK, *TWO)) as brokers:
        yield brokers


def listening(parent: BrokerProcess) -> list[tuple[int, str]]:
    """(number, address) of each time that one became ready."""
    return [
        (int(number), address)
        for number, address in re.findall(r"^\[(\d+)\] broker listens on (\S+),", parent.text(), re.MULTILINE)
    ]


def children(parent: BrokerProcess) -> dict[int, int]:
    """pid by number of process; their command lines name it by the id."""
    found = {}
    for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split():
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        [number] = [int(word[-1:]) for word in command if word.startswith(b"--broker-id=")]
        found[number] = int(pid)
    return found


def events(parent: BrokerProcess, event: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in parent.text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def send(address: str, value: bytes) -> None:
    with ledgermq.sync.connect(address) as client, client.producer() as producer:
        for partition in range(8):
            producer.send("t", value, partition=partition).result()


@pytest.mark.slow
def test_two_serve_one_is_killed_and_comes_back_all_drain(brokers: BrokerProcesses) -> None:
    parent = brokers.spawn("--broker-id", "pair")
    wait_until(lambda: len(listening(parent)) == 2)
    addresses = dict(listening(parent))
    assert set(addresses) == {0, 1}
    with ledgermq.sync.connect(addresses[0]) as client:
        client.create_topic("t", 8)
    send(addresses[0], b"by the first")
    send(addresses[1], b"by the second")

    os.kill(children(parent)[1], signal.SIGKILL)
    send(addresses[0], b"by the other one")
    wait_until(lambda: len(listening(parent)) == 3)
    assert listening(parent)[2][0] == 1
    [ended] = events(parent, "a broker process ended")
    assert (ended["process_number"], ended["code"], ended["restart_in_s"]) == (1, -9, 0.5)
    send(listening(parent)[2][1], b"by the new one")

    parent.process.send_signal(signal.SIGHUP)
    wait_until(lambda: len(events(parent, "settings reloaded")) == 2)
    assert {line["process_number"] for line in events(parent, "settings reloaded")} == {0, 1}

    pids = children(parent).values()
    assert brokers.stop(parent) == ExitCode.OK
    assert {line.get("process_number") for line in events(parent, "stopping")} == {None, 0, 1}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    restarted = brokers.start("--processes", "1")
    with ledgermq.sync.connect(restarted.address) as client, client.consumer("t", start="earliest") as consumer:
        read: list[bytes | None] = []
        while len(read) < 32:
            read += [message.value for message in consumer.fetch(timeout=30.0)]
    assert sorted(set(read)) == [b"by the first", b"by the new one", b"by the other one", b"by the second"]
    assert "[0]" not in restarted.text()


def test_children_drain_when_their_parent_is_killed(brokers: BrokerProcesses) -> None:
    parent = brokers.spawn("--broker-id", "pair")
    wait_until(lambda: len(listening(parent)) == 2)
    pids = children(parent).values()
    brokers.kill(parent)
    wait_until(lambda: not any(alive(pid) for pid in pids))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def taken_after_a_free_one() -> socket.socket:
    """A port that is listened on, and the one before it is free."""
    while True:
        before = free_port()
        try:
            return socket.create_server(("127.0.0.1", before + 1))
        except OSError:
            continue


@pytest.mark.slow
def test_what_holds_for_all_ends_the_command(brokers: BrokerProcesses) -> None:
    with taken_after_a_free_one() as taken:
        port = taken.getsockname()[1]
        parent = brokers.spawn(port=port - 1)
        assert brokers.wait(parent) == ExitCode.USAGE
        assert "the port is in use" in parent.text()
        assert [line["process_number"] for line in events(parent, "a broker process cannot start")] == [1]
    near = brokers.spawn("--admin-port", "9651", port=9650)
    assert brokers.wait(near) == ExitCode.USAGE
    assert "would do" in near.text()


def test_help_names_the_option() -> None:
    command = [sys.executable, "-m", "ledgermq.cli.main", "broker", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "--processes" in shown
    assert "--supervised" not in shown
