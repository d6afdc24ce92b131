"""The web applications of the pages, served by a real web server that SIGTERM stops."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ledgermq.sync
from tests.docs.pages import ALL_BLOCKS
from tests.e2e.processes import BrokerProcesses
from tests.waiting import wait_until

ENDS_S_MAX = 90.0
pytestmark = pytest.mark.slow


def save(name: str, folder: Path, address: str) -> None:
    """Save a block of the pages in a folder, as a reader does."""
    [block] = [block for block in ALL_BLOCKS if block.saved_as == name]
    (folder / name).write_text(block.text.replace("localhost:9650", address))


@contextmanager
def served(application: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Serve an application with uvicorn; yield its process and its URL."""
    log = folder / "server.log"
    command = [sys.executable, "-m", "uvicorn", application, "--port", "0", "--app-dir", str(folder)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "Uvicorn running on" in log.read_text() or process.poll() is not None, ENDS_S_MAX)
        found = re.search(r"running on (http://\S+)", log.read_text())
        assert found, log.read_text()
        yield process, found[1]
    finally:
        process.kill()
        process.wait()


def test_fastapi_serves_requests_runs_handlers_and_stops_at_sigterm(tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        address = brokers.start().address
        with ledgermq.sync.connect(address) as client:
            client.create_topic("orders", partitions=1)
            save("web.py", tmp_path, address)
            with served("web:app", tmp_path) as (process, url):
                request = urllib.request.Request(f"{url}/orders", data=b"two coffees", method="POST")
                with urllib.request.urlopen(request, timeout=ENDS_S_MAX) as answer:
                    assert answer.read() == b'{"partition":0,"offset":0}'
                wait_until(lambda: "order 0" in (tmp_path / "server.log").read_text(), ENDS_S_MAX)
                process.send_signal(signal.SIGTERM)
                assert process.wait(ENDS_S_MAX) in (0, -signal.SIGTERM), "uvicorn raises the signal again at its end"
            group = client.groups.describe("web")
            assert [entry.stored.offset for entry in group.committed.values()] == [1]
            assert not group.members


def test_django_sends_in_a_view_and_handles_in_a_command(tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        address = brokers.start().address
        with ledgermq.sync.connect(address) as client:
            client.create_topic("orders", partitions=1)
            save("shop.py", tmp_path, address)
            with served("shop:application", tmp_path) as (_, url):
                request = urllib.request.Request(f"{url}/orders", data=b"two coffees", method="POST")
                with urllib.request.urlopen(request, timeout=ENDS_S_MAX) as answer:
                    assert answer.read() == b'{"partition": 0, "offset": 0}'
            command = [sys.executable, "shop.py", "handle"]
            process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "order 0\n"
                process.send_signal(signal.SIGTERM)
                assert process.wait(ENDS_S_MAX) == 0
            finally:
                process.kill()
                process.communicate()
            group = client.groups.describe("shop")
            assert [entry.stored.offset for entry in group.committed.values()] == [1]
            assert not group.members


def test_the_worker_runs_the_handlers_of_a_module(tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        address = brokers.start().address
        with ledgermq.sync.connect(address) as client:
            client.create_topic("orders", partitions=1)
            client.create_topic("invoices", partitions=1)
            with client.producer() as producer:
                producer.send("orders", b"two coffees", key=b"table-7")
            save("orders_app.py", tmp_path, address)
            command = [Path(sys.executable).parent / "ledgermq", "worker", "orders_app:client"]
            log = tmp_path / "worker.log"
            with log.open("wb") as output:
                process = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT)
            try:
                wait_until(lambda: {"invoice 0", "mail 0"} <= set(log.read_text().splitlines()), ENDS_S_MAX)
                process.send_signal(signal.SIGTERM)
                assert process.wait(ENDS_S_MAX) == 0, log.read_text()
            finally:
                process.kill()
                process.wait()
            group = client.groups.describe("invoices")
            assert [entry.stored.offset for entry in group.committed.values()] == [1]
            assert client.list_offsets("invoices") == {0: 1}
