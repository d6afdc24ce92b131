"""Interrupt `ledgermq produce`, or stop its broker: it reports what is stored, and a second run
resumes from there.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ledgermq.sync
from tests.e2e.processes import BrokerProcesses
from tests.waiting import wait_until

LEDGERMQ = Path(sys.executable).parent / "ledgermq"
ENDS_S_MAX = 60.0
TIMEOUT_S = 12


def producing(address: str, *options: str) -> subprocess.Popen[bytes]:
    command = [LEDGERMQ, "produce", "t", "--target", address, *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def write(process: subprocess.Popen[bytes], first: int, end: int) -> None:
    assert process.stdin is not None
    process.stdin.write(b"".join(b"%d\n" % number for number in range(first, end)))
    process.stdin.flush()


def wait_until_stored(address: str, count: int) -> None:
    with ledgermq.sync.connect(address) as client:
        wait_until(lambda: client.list_offsets("t")[0] >= count, ENDS_S_MAX, what=f"the broker stores {count} records")


def values(address: str) -> list[int]:
    command = [LEDGERMQ, "consume", "t", "--target", address, "--until-end"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S_MAX, check=True)
    return [int(line) for line in found.stdout.split()]


@pytest.mark.slow
def test_after_ctrl_c_a_second_run_goes_on(tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        address = brokers.start("--auto-create-topics", "--default-partitions", "1").address
        with ledgermq.sync.connect(address) as client:
            client.create_topic("t", partitions=1)
        process = producing(address)
        write(process, 0, 3000)
        wait_until_stored(address, 3000)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(ENDS_S_MAX)
            _, err = process.communicate(timeout=ENDS_S_MAX)
        finally:
            process.kill()
        assert process.returncode == 130, err
        assert (
            err == b"3,000 records were stored before the interruption: lines 1 to 3,000 of stdin. --skip 3000 resumes"
            b" after them.\n"
        )
        second = producing(address, "--skip", "3000")
        write(second, 0, 4000)
        _, err = second.communicate(timeout=ENDS_S_MAX)
        assert second.returncode == 0, err
        assert values(address) == list(range(4000))


@pytest.mark.slow
def test_a_broker_that_stops_is_told_at_once_and_the_lines_that_are_stored_are_named(tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        broker = brokers.start()
        with ledgermq.sync.connect(broker.address) as client:
            client.create_topic("t", partitions=1)
        process = producing(broker.address, "--timeout", str(TIMEOUT_S))
        write(process, 0, 100)
        wait_until_stored(broker.address, 100)
        brokers.pause(broker)
        begun = time.monotonic()
        write(process, 100, 110)
        try:
            assert process.stderr is not None
            told, told_s = process.stderr.readline().decode(), time.monotonic() - begun
            code = process.wait(ENDS_S_MAX)
            ended_s = time.monotonic() - begun
            rest = process.stderr.read().decode()
        finally:
            process.kill()
            process.communicate()
            brokers.resume(broker)
        assert re.match(rf"waiting for a broker at {broker.address}: no answer so far; timeout in \d+ s", told)
        assert told_s < TIMEOUT_S
        assert code == 8, rest
        assert ended_s < 3 * TIMEOUT_S, "four times the time limit and more, before"
        assert (
            "100 records were stored before the error: lines 1 to 100 of stdin. --skip 100 resumes after them." in rest
        )
        assert "10 more records of later lines may or may not be stored." in rest
