"""Brokers that are processes, with the port for clients of the Kafka protocol, so that a test may kill them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.processes import QUICK, BrokerProcess, BrokerProcesses

_PORT = re.compile(r'Kafka port open.*?advertised(?:=|": ")([^\s"]+)')


@contextmanager
def processes(folder: Path, count: int, *options: str) -> Iterator[BrokerProcesses]:
    root = folder / "root"
    root.mkdir()
    with BrokerProcesses(folder, root.as_uri(), (*QUICK, "--kafka-port", "0", *options)) as found:
        found.start_all(count)
        yield found


def seed(broker: BrokerProcess) -> str:
    """Return where clients reach a broker."""
    found = _PORT.search(broker.text())
    assert found is not None, broker.text()
    return found[1]


def seeds(brokers: BrokerProcesses) -> str:
    return ",".join(seed(broker) for broker in brokers.running)
