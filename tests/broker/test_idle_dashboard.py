"""Every query of the dashboard has an answer on a broker that nothing has used: zero, or its panel says what is
not in use; in virtual time.
"""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from infra.grafana.dashboard import ROWS, VARIABLES, dashboard, queries
from ledgermq_broker.metrics.process_metrics import ProcessMetrics
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore
from tests.broker.cluster import Cluster
from tests.virtual_time import virtual, virtual_sources

SELECTOR = re.compile(r"\b((?:ledgermq|process)_[a-z0-9_]+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(=~|!=|!~|=)"([^"]*)"')
ADDED_BY_PROMETHEUS = {"job", "instance"}

Series = tuple[str, dict[str, str]]


def matches(labels: dict[str, str], matchers: str) -> bool:
    for name, operator, value in MATCHER.findall(matchers):
        if name in ADDED_BY_PROMETHEUS:
            continue
        is_equal = (
            (re.fullmatch(value, labels.get(name, "")) is not None) if "~" in operator else labels.get(name) == value
        )
        if is_equal != operator.startswith("="):
            return False
    return True


def is_answered(query: str, series: list[Series]) -> bool:
    """Whether every selector of the query finds a series, or the query has a value of its own."""
    if query.endswith(" or on() vector(0)"):
        return True
    selectors = SELECTOR.findall(query)
    assert selectors, query
    return all(any(name == found and matches(labels, by) for found, labels in series) for name, by in selectors)


@virtual
async def test_every_query_is_answered_by_an_idle_broker() -> None:
    process = ProcessMetrics("memory://")
    cluster = Cluster(MeteredStore(MemoryStore("", virtual_sources(1000)), process.store))
    try:
        await cluster.start("m:1")
        await cluster.settled()
        process.broker = cluster.brokers["m:1"]
        text = process.render(is_ready=True).decode()
    finally:
        await cluster.close()
    series = [
        (sample.name, dict(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    said = set(queries(used=False))
    unanswered = [query for query in sorted(said) if not is_answered(query, series)]
    assert unanswered == [], "\n".join(unanswered)


def test_a_panel_that_stays_empty_says_what_is_not_in_use() -> None:
    panels = {panel["title"]: panel for panel in dashboard()["panels"] if panel["type"] != "row"}
    empty = [panel for row in ROWS.values() for panel in row if panel.empty]
    assert [panel.title for panel in empty] == ["Time until the TLS certificate expires"]
    for panel in empty:
        assert panels[panel.title]["fieldConfig"]["defaults"]["noValue"] == panel.empty


def test_queries_without_a_value_of_their_own_are_told_from_those_with_one() -> None:
    series = [("ledgermq_calls_total", {"code": "OK"})]
    here = f'job=~"{VARIABLES["$job"]}"'
    assert is_answered(f"sum(rate(ledgermq_calls_total{{{here}}}[1m]))", series)
    assert not is_answered(f'sum(rate(ledgermq_calls_total{{{here}, code!="OK"}}[1m]))', series)
    assert not is_answered(f"sum(rate(ledgermq_absent_total{{{here}}}[1m]))", series)
    assert is_answered(f"sum(rate(ledgermq_absent_total{{{here}}}[1m])) or on() vector(0)", series)
