"""The example that follows log files, killed with SIGKILL between all of its steps and within its commits, on a real
broker that is killed, too.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ledgermq.sync
from tests.e2e.processes import BrokerProcesses
from tests.relays.test_tail_files import rotate, write

pytestmark = pytest.mark.slow

STEPS = ("begin", "send", "stage", "commit", "committed")
"""Of one run that has something to send; the whole run of a kill has these once or twice."""
KILLS = [(number, 0.0) for number in range(1, len(STEPS) + 1)] + [(4, 0.002), (4, 0.01), (4, 0.05)]
RUN_S_MAX = 240.0


def run(address: str, pattern: Path, dies_in: int, after_s: float) -> int:
    command = [sys.executable, "-m", "tests.relays.dying_tail", address, str(pattern), str(dies_in), str(after_s)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode


@pytest.mark.timeout(900)
def test_killed_anywhere_it_sends_each_line_once(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log, expected = folder / "app.log", []
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        broker = brokers.start()
        with ledgermq.sync.connect(broker.address) as client:
            client.create_topic("logs", 3)
        killed = 0
        for number, (dies_in, after_s) in enumerate(KILLS):
            lines = [f"{number} {line}" for line in range(20)]
            write(log, *lines)
            expected += lines
            killed += run(broker.address, folder / "app.log*", dies_in, after_s) != 0
            if number % 3 == 1:
                rotate(log)
            if number == len(STEPS):
                brokers.kill(broker)
                broker = brokers.start()
        assert killed >= len(STEPS), "the first runs die between two steps"
        assert run(broker.address, folder / "app.log*", 0, 0) == 0
        with (
            ledgermq.sync.connect(broker.address) as client,
            client.transactions("tail-host"),  # waits until the last commit shows everywhere
            client.consumer("logs", until_end=True) as consumer,
        ):
            assert [(message.value or b"").decode() for message in consumer] == expected
