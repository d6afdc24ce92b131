"""The parent of several processes, with small programs as children: its behaviour in cases that
brokers seldom reach.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import wait_until

PARENT = """
import sys
from ledgermq_broker.settings.processes import load_settings
from ledgermq_broker.process.supervisor import run_brokers
settings = load_settings(log_format="json", shutdown_ms=100)
sys.exit(run_brokers([["sh", "-c", script] for script in sys.argv[1:]], settings))
"""
STAYS = 'trap "exit 0" TERM; echo ready; while :; do sleep 0.05; done'


class Parent:
    """`scripts`: of the shell, one for each child."""

    def __init__(self, folder: Path, *scripts: str) -> None:
        self._log = folder / "parent.log"
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PARENT, *scripts], stdout=output, stderr=subprocess.STDOUT, cwd=Path.cwd()
            )

    def text(self) -> str:
        return self._log.read_text()

    def events(self, event: str) -> list[dict[str, object]]:
        lines = [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def wait(self) -> int:
        return self.process.wait(60)

    def stop(self) -> int:
        self.process.terminate()
        return self.wait()


def test_all_stop_with_the_parent(tmp_path: Path) -> None:
    parent = Parent(tmp_path, STAYS, STAYS)
    wait_until(lambda: "[0] ready" in parent.text() and "[1] ready" in parent.text())
    assert parent.stop() == 0


@pytest.mark.slow
def test_a_broker_that_does_not_end_is_killed_at_the_deadline(tmp_path: Path) -> None:
    parent = Parent(tmp_path, STAYS, 'trap "" TERM; echo ready; while :; do sleep 0.05; done')
    wait_until(lambda: parent.text().count("ready") == 2)
    begun = time.monotonic()
    assert parent.stop() == 137
    assert time.monotonic() - begun >= 5.0  # shutdown_ms, what a broker takes to end anyway, and two seconds
    assert parent.events("not every broker process has ended in time")


def test_a_broker_that_ends_again_and_again_begins_later_each_time(tmp_path: Path) -> None:
    parent = Parent(tmp_path, STAYS, "echo ready; exit 4")
    wait_until(lambda: len(parent.events("a broker process ended")) >= 3)
    ended = parent.events("a broker process ended")[:3]
    assert [(line["process_number"], line["code"], line["restart_in_s"]) for line in ended] == [
        (1, 4, 0.5),
        (1, 4, 1.0),
        (1, 4, 2.0),
    ]
    assert parent.stop() == 0  # in the middle of the pause: no broker was lost by that


def test_a_failure_of_the_first_start_ends_all(tmp_path: Path) -> None:
    parent = Parent(tmp_path, STAYS, "sleep 0.5; echo 'no such bucket' >&2; exit 6")
    assert parent.wait() == 6
    assert "[1] no such bucket" in parent.text()


def test_a_broker_that_is_killed_before_it_was_ready_begins_again(tmp_path: Path) -> None:
    once = tmp_path / "once"
    parent = Parent(tmp_path, f"if [ -e {once} ]; then {STAYS}; fi; touch {once}; kill -9 $$")
    wait_until(lambda: "[0] ready" in parent.text())
    assert [line["code"] for line in parent.events("a broker process ended")] == [-9]
    assert parent.stop() == 0


def test_a_reload_waits_until_a_process_is_ready(tmp_path: Path) -> None:
    """SIGHUP before a broker has its handler would kill it."""
    go = tmp_path / "go"
    waits = f'until [ -e {go} ]; do sleep 0.05; done; trap "echo reloaded" HUP; {STAYS}'
    parent = Parent(tmp_path, STAYS.replace("echo ready", 'trap "echo reloaded" HUP; echo ready'), waits)
    wait_until(lambda: "[0] ready" in parent.text())
    os.kill(parent.process.pid, 1)
    wait_until(lambda: "[0] reloaded" in parent.text())
    assert "[1]" not in parent.text()
    go.touch()
    wait_until(lambda: "[1] reloaded" in parent.text())
    assert parent.stop() == 0


@pytest.mark.parametrize("size", [70_000, 3_000_000])
def test_lines_of_any_length_come_through(tmp_path: Path, size: int) -> None:
    parent = Parent(tmp_path, f"head -c {size} /dev/zero | tr '\\0' x >&2; echo >&2; {STAYS}")
    wait_until(lambda: "[0] ready" in parent.text() and parent.text().count("x") >= size)  # of two streams
    assert parent.text().count("x") == size
    assert parent.stop() == 0
