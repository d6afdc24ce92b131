"""A collector for each test, and clients that trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.broker.cluster import Cluster
from tests.e2e.test_client_takeover import client_of
from tests.tracing.collector import Collector, collecting

FOREIGN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET = "planted-secret"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def traced(cluster: Cluster, **settings: Any) -> Any:
    return client_of(cluster, tracing=True, **settings)
