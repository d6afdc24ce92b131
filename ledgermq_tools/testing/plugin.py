"""The pytest plugin: the fixtures `ledgermq_cluster` and `ledgermq_client`, and the marker `ledgermq`.

pytest imports this module in every run of every project that has the package installed. So it imports
nothing but pytest; the broker is imported by the first test that uses a fixture.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import ledgermq
    from ledgermq_tools.testing.cluster import LedgermqCluster

CLUSTER = "ledgermq_cluster"
MARKER = "ledgermq"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(brokers=1, **settings): brokers of the fixture {CLUSTER}, and settings of theirs",
    )


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Turn coroutines that use the cluster into functions, before a plugin for asyncio sees them: they run
    in the cluster's event loop.
    """
    made = yield
    for item in made if isinstance(made, list) else [made]:
        if isinstance(item, pytest.Function) and CLUSTER in item.fixturenames and inspect.iscoroutinefunction(item.obj):
            item.obj = _in_virtual_time(item, item.obj)
            # pytest-asyncio would warn that it is no coroutine any longer.
            item.own_markers = [mark for mark in item.own_markers if mark.name != "asyncio"]
    return made


def _in_virtual_time(item: pytest.Function, test: Callable[..., Any]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        cluster: Any = item.funcargs[CLUSTER]
        cluster.run(test(*args, **named))

    return run


@pytest.fixture
def ledgermq_cluster(request: pytest.FixtureRequest) -> Iterator[LedgermqCluster]:
    """A cluster in memory and in virtual time, for one test. `@pytest.mark.ledgermq(brokers=3,
    compaction_interval_ms=…)` chooses the number of brokers and their settings.
    """
    try:
        from ledgermq_tools.testing.cluster import LedgermqCluster
    except ImportError as error:
        from ledgermq.runtime.process.missing_modules import what_to_do

        advice = what_to_do(error, 'pip install "ledgermq[broker]"')
        pytest.fail(f"{CLUSTER} needs the broker: {advice}", pytrace=False)
    settings: dict[str, Any] = {}
    for mark in request.node.iter_markers(MARKER):
        settings = mark.kwargs | settings  # the closest mark comes first
    cluster = LedgermqCluster(**settings)
    yield cluster
    cluster.close()


@pytest.fixture
def ledgermq_client(ledgermq_cluster: LedgermqCluster) -> Iterator[ledgermq.Client]:
    """A client of the cluster, for one test."""
    opened = ledgermq_cluster.connect()
    client = ledgermq_cluster.run(opened.__aenter__())
    yield client
    ledgermq_cluster.run(opened.__aexit__(None, None, None))
