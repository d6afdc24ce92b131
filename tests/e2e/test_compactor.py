"""The compaction service as a process beside a broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset
import pytest

from tests.e2e.admin_port import ADMIN, AdminPort
from tests.e2e.processes import STOP_S_MAX, BrokerProcess, BrokerProcesses
from tests.e2e.raw_client import RawClient
from tests.waiting import wait_until


@contextmanager
def compactor(folder: Path, root: str) -> Iterator[BrokerProcess]:
    log = folder / "compactor.log"
    command = [sys.executable, "-m", "ledgermq.cli.main", "compactor", root, "--compaction-interval-ms", "200", *ADMIN]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield BrokerProcess(process, log)
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
async def test_it_waits_for_a_cluster_then_turns_records_into_parquet(tmp_path: Path) -> None:
    root = (tmp_path / "root").as_uri()
    with compactor(tmp_path, root) as service:
        admin = AdminPort(service)
        wait_until(lambda: "there is no cluster at this root yet" in admin.ready()[1]["why"])
        with BrokerProcesses(tmp_path, root) as brokers:
            async with RawClient(brokers.start().address) as client:
                await client.create("t", 1, **{"parquet.max.lag.ms": "0"})
                await client.produce("t", 0, b"a", b"b")
                wait_until(lambda: admin.ready()[0] == 200)
                wait_until(lambda: admin.metrics()["ledgermq_compacted_records_total"][()] == 2)
                assert await client.read_all("t", 0) == [b"a", b"b"]
        found = pyarrow.dataset.dataset(tmp_path / "root" / "parquet").to_table()
        assert found.column("value").to_pylist() == [b"a", b"b"]
        service.process.terminate()
        assert service.process.wait(STOP_S_MAX) == 0, service.text()
    assert "Traceback" not in service.text()
