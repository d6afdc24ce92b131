"""A real Prometheus scrapes a real broker: every query of the dashboard has an answer, and a
healthy cluster raises no alert.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.grafana.dashboard import queries
from infra.ports import free_port
from tests.e2e.admin_port import ADMIN, AdminPort
from tests.e2e.processes import BrokerProcesses
from tests.waiting import wait_until

RULES = Path(__file__).resolve().parents[2] / "infra" / "prometheus" / "alerts.yml"

pytestmark = [pytest.mark.real, pytest.mark.slow]


class Prometheus:
    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **arguments: str) -> Any:
        with urllib.request.urlopen(
            f"http://{self._address}/{path}?{urllib.parse.urlencode(arguments)}", timeout=10
        ) as answer:
            return json.load(answer)["data"]

    def result(self, query: str) -> list[Any]:
        found: list[Any] = self.ask("api/v1/query", query=query)["result"]
        return found

    def is_up(self) -> bool:
        try:
            return bool(self.result("min_over_time(up[5s]) == 1 and count_over_time(ledgermq_ready[20s]) > 5"))
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not installed")
    address = f"127.0.0.1:{free_port()}"
    config = folder / "prometheus.yml"
    scrape = {"job_name": "ledgermq", "static_configs": [{"targets": [target]}]}
    times = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config.write_text(yaml.safe_dump({"global": times, "rule_files": [str(RULES)], "scrape_configs": [scrape]}))
    command = [
        binary,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait(30)


def test_every_query_of_the_dashboard_is_answered(tmp_path: Path) -> None:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers:
        admin = AdminPort(brokers.start(*ADMIN))
        with prometheus(tmp_path, admin.address) as found:
            wait_until(found.is_up)
            assert [query for query in queries() if not found.result(query)] == []
            assert found.ask("api/v1/alerts")["alerts"] == []
            assert len(found.ask("api/v1/rules")["groups"][0]["rules"]) > 10
