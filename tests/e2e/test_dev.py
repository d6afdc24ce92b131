"""`ledgermq dev` prints commands for a newcomer; each works as printed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.processes import START_S_MAX, STOP_S_MAX

LEDGERMQ = Path(sys.executable).parent / "ledgermq"


@pytest.mark.slow
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
            ["bash", "-e", "-o", "pipefail", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
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


@pytest.mark.slow
def test_the_admin_port_is_told_and_watched_and_the_port_for_clients_is_not_taken_for_it(tmp_path: Path) -> None:
    log = tmp_path / "dev.log"
    with log.open("wb") as output:
        command = [
            sys.executable,
            "-m",
            "ledgermq.cli.main",
            "dev",
            str(tmp_path / "root"),
            "--port",
            "0",
            "--admin-port",
            "0",
        ]
        dev = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + START_S_MAX
        while "print(client.list_topics())" not in log.read_text() and time.monotonic() < until:
            time.sleep(0.05)
        told = log.read_text()
        top, clients = (
            re.search(r"^  ledgermq (top localhost:\d+)$", told, re.MULTILINE),
            re.search(r"ready at (\S+);", told),
        )
        assert top is not None, told
        assert clients is not None, told
        shown = ledgermq(*top[1].split(), "--once", "--interval", "0.2")
        assert "1 of 1 brokers ready" in shown.stdout, shown.stderr
        refused = ledgermq("top", clients[1])
        assert refused.returncode == 2
        assert f"{clients[1]} is not the admin port of a broker" in refused.stderr
        assert "admin_port" in refused.stderr
        piped = subprocess.Popen([LEDGERMQ, *top[1].split(), "--interval", "0.2"], stdout=subprocess.PIPE, text=True)
        assert piped.stdout is not None
        heads = (line for line in piped.stdout if "brokers ready" in line)
        assert [next(heads)[:6], next(heads)[:6]] == ["1 of 1"] * 2, "one table after another"
        piped.kill()
        piped.communicate()
    finally:
        dev.send_signal(signal.SIGINT)
        assert dev.wait(STOP_S_MAX) == 0, log.read_text()


@pytest.mark.parametrize(
    ("words", "root", "text"),
    [
        (("dev",), "/proc/foo", "cannot make the folder /proc/foo"),
        (("broker", "--port", "0"), "file", "file is a file"),
        (("topic", "create", "t", "--target"), "/proc/foo", "cannot make the folder /proc/foo"),
    ],
    ids=["dev", "broker", "topic create"],
)
def test_a_folder_that_cannot_be_made_is_told(words: tuple[str, ...], root: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = ledgermq(*words, str(tmp_path / root))
    assert (done.returncode, text in done.stderr) == (6, True), done.stderr


def ledgermq(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(
        [LEDGERMQ, *words], capture_output=True, text=True, timeout=START_S_MAX, check=False, env=environment
    )


def test_dev_is_reached_from_this_machine_only_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "dev.log"
    everywhere = {"LEDGERMQ_HOST": "0.0.0.0", "LEDGERMQ_ADMIN_HOST": "0.0.0.0"}
    command = [sys.executable, "-m", "ledgermq.cli.main", "dev", str(tmp_path / "data"), "--port=0", "--admin-port=0"]
    with log.open("wb") as output:
        dev = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **everywhere})
    try:
        until = time.monotonic() + START_S_MAX
        while "print(client.list_topics())" not in log.read_text() and time.monotonic() < until:
            time.sleep(0.05)
        told = log.read_text()
        assert "Only programs on this machine reach it, and each of them may read and change everything." in told
        noted = " ".join(told.split())
        assert "The setting host = '0.0.0.0' is not used: dev is open to every caller" in noted
        assert "every program that the port lets in" not in noted, "it is not reached from elsewhere"
        ready, admin = (
            re.search(pattern, told) for pattern in (r"ready at 127\.0\.0\.1:(\d+)", r"top localhost:(\d+)")
        )
        assert ready is not None, told
        assert admin is not None, told
        for port in (int(ready[1]), int(admin[1])):
            socket.create_connection(("127.0.0.1", port), timeout=30).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), timeout=30)
    finally:
        dev.send_signal(signal.SIGTERM)
        dev.wait(STOP_S_MAX)
