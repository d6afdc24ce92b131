"""Drain a broker by the command line, with real processes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.processes import QUICK, BrokerProcesses
from tests.e2e.warm_cli import WarmCommands


@pytest.mark.slow
def test_the_command_hands_everything_over_and_back(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGERMQ_")}
    with (
        WarmCommands(tmp_path) as program,
        BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), QUICK) as brokers,
    ):
        for _ in range(2):
            brokers.start()
        first, second = (address for address in brokers.addresses.split(","))

        def run(*words: str, code: int = 0) -> tuple[str, str]:
            command = [program, *words, "--target", second]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == code, done.stderr
            return done.stdout, done.stderr

        run("topic", "create", "t")
        _, note = run("drain", first)
        assert f"{first} owns nothing now" in note
        status = json.loads(run("status", "-o", "json")[0])
        shown = {broker["address"]: broker for broker in status["brokers"]}
        assert (shown[first]["draining"], shown[first]["owned_bundles"]) == (True, 0)
        assert (shown[second]["draining"], shown[second]["owned_bundles"]) == (False, len(status["bundles"]))
        assert "no other broker could take over" in run("drain", second, code=2)[1]
        assert "there is no broker" in run("drain", "nowhere:1", code=2)[1]
        run("undrain", first)
