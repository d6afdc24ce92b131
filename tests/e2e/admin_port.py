"""Read the admin port of a broker process, as a probe or Prometheus does."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.processes import BrokerProcess
from tests.waiting import wait_until

ADMIN = ("--admin-port", "0", "--log-format", "json")
"""Options with which `AdminPort` finds a broker's port."""


class AdminPort:
    """Of a broker that was started with the options ADMIN; waits until it is open."""

    def __init__(self, broker: BrokerProcess) -> None:
        wait_until(lambda: "admin port open" in broker.text() or broker.process.poll() is not None)
        found = re.search(r'"event": "admin port open".*"port": (\d+)', broker.text())
        assert found is not None, broker.text()
        self.address = f"127.0.0.1:{found[1]}"

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ready(self) -> tuple[int, dict[str, Any]]:
        status, body = self.get("/readyz")
        return status, json.loads(body)

    def metrics(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Values by name and label values (in the order of the labels' names)."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = (
                    sample.value
                )
        return found
