"""The example as its first lines say: with its own broker and beside a running one, killed and
started again.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.postgres import Postgres
from tests.e2e.processes import BrokerProcesses

pytestmark = pytest.mark.real

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "bank_transfer.py"
KILLED_AFTER_S = (0.0, 0.002, 0.004, 0.008, 0.016)
"""After a line about a transfer, so that the next one is under way."""
RUN_S_MAX = 120.0


def run(arguments: list[str], folder: Path) -> str:
    command = [sys.executable, str(EXAMPLE), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_and_kill(arguments: list[str], folder: Path, after_s: float) -> None:
    """Kill the program after its third transfer."""
    command = [sys.executable, str(EXAMPLE), *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if line.startswith("3: "):
                break
        time.sleep(after_s)
        program.kill()
    assert program.returncode == -9


@pytest.mark.timeout(600)
@pytest.mark.parametrize("runs_broker", [False, True])
def test_transfers_go_on_where_a_killed_program_stopped(postgres: Postgres, tmp_path: Path, runs_broker: bool) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        arguments = [postgres.address, brokers.start().address] if runs_broker else [postgres.address]
        for after_s in KILLED_AFTER_S:
            run_and_kill(arguments, tmp_path, after_s)
        assert "and the balances agree" in run(arguments, tmp_path)
        last = run(arguments, tmp_path)
    assert "recovered 0 transfers" in last
    events = int(last.splitlines()[-1].split()[0])
    assert events >= 2 * 20 + 3 * len(KILLED_AFTER_S)


def test_without_arguments_it_says_how(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("usage: python examples/bank_transfer.py POSTGRES")
