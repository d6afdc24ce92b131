"""`ledgermq dev` tells a newcomer what to type next; typed as it stands, it works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.processes import START_S_MAX, STOP_S_MAX


def test_what_dev_says_to_type_works_as_it_stands(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    log = tmp_path / "dev.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "ledgermq.cli.main", "dev", str(tmp_path / "my folder"), "--port", "0"]
        dev = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + START_S_MAX
        while "print(client.list_topics())" not in log.read_text() and time.monotonic() < until:
            time.sleep(0.05)
        told = log.read_text()
        script = "\n".join(re.findall(r"^  ((?:ledgermq|echo|python) .*)$", told, re.MULTILINE))
        assert len(script.splitlines()) == 5, told
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script], env=environment, capture_output=True, text=True, timeout=150, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "first message" in done.stdout
        assert b"first message".hex().upper() in done.stdout, "and the Parquet file holds it"
        program = told[told.index("import ledgermq.sync") :].replace("\n  ", "\n")
        shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert "hello" in shown.stdout, shown.stderr
    finally:
        dev.send_signal(signal.SIGINT)
        assert dev.wait(STOP_S_MAX) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
