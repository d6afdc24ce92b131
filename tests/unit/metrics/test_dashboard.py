"""Dashboard, alert rules and the page of metrics name only metrics that there are, and Prometheus
understands all of it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from infra.grafana.dashboard import VARIABLES, dashboard, queries
from ledgermq_broker.metrics.page import names, page

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "infra" / "prometheus" / "alerts.yml"
NAME = re.compile(r"\b((?:ledgermq|process)_[a-z0-9_]+)\b")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def unknown(expressions: Iterator[str] | list[str]) -> set[str]:
    found = {name for expression in expressions for name in NAME.findall(expression)}
    assert found
    return found - names()


def test_the_dashboard_file_is_up_to_date() -> None:
    stored = (ROOT / "infra" / "grafana" / "ledgermq.json").read_text()
    assert stored == json.dumps(dashboard(), indent=2) + "\n", "run: make pages"


def test_the_page_of_metrics_is_up_to_date() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == page(), "run: make pages"


def test_every_query_of_the_dashboard_asks_for_metrics_that_there_are() -> None:
    assert unknown(queries()) == set()


def test_every_rule_asks_for_metrics_that_there_are() -> None:
    assert unknown([rule["expr"] for rule in rules()]) == set()


def test_every_metric_is_on_the_dashboard_or_deliberately_not() -> None:
    shown = {name for expression in queries() for name in NAME.findall(expression)}
    of_ours = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in names() if name.startswith("ledgermq_")}
    on_it = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown}
    assert of_ours - on_it == {
        "ledgermq_bundle_epoch",
        "ledgermq_bundle_slot",
        "ledgermq_compaction_rounds",
        "ledgermq_compacted_bytes",
        "ledgermq_fetched_records",
        "ledgermq_filtered_batches",
        "ledgermq_filtered_records",
        "ledgermq_flush_batches",
        "ledgermq_produced_batches",
        "ledgermq_table_behind_seconds",  # what needs an operator is an alarm of `ledgermq status`, too
        "ledgermq_table_foreign_objects",
        "ledgermq_table_held_bytes",
        "ledgermq_table_let_go",
    }


def test_no_variable_is_left_in_a_query() -> None:
    assert not [query for query in queries() if "$" in query]
    assert all(name in json.dumps(dashboard()) for name in VARIABLES)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_rule_says_how_bad_it_is_and_is_in_the_operators_guide() -> None:
    guide = (ROOT / "docs" / "operations.md").read_text()
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["for"]
        assert rule["alert"] in guide, "it does not say what to do about it"


@pytest.mark.parametrize("expression", [*queries(), *(rule["expr"] for rule in rules())])
def test_every_expression_is_promql_with_the_types_that_its_functions_take(expression: str) -> None:
    promql_parser.parse(expression)


@pytest.mark.parametrize("broken", ["sum(rate(ledgermq_x[5m])", "rate(ledgermq_x)", "no_such_function(ledgermq_x)"])
def test_a_text_that_is_not_promql_is_refused(broken: str) -> None:
    with pytest.raises(ValueError):
        promql_parser.parse(broken)


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed")
    return found


def run(promtool: str, *arguments: object) -> None:
    done = subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_rules_and_configuration(promtool: str) -> None:
    run(promtool, "check", "rules", RULES)
    run(promtool, "check", "config", RULES.with_name("prometheus.yml"))


def test_prometheus_understands_every_query(promtool: str, tmp_path: Path) -> None:
    """As recording rules, for promtool parses those."""
    file = tmp_path / "queries.yml"
    recorded = [{"record": f"query:{at}", "expr": query} for at, query in enumerate(queries())]
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    run(promtool, "check", "rules", file)


def test_rules_fire_when_they_should_and_not_before(promtool: str) -> None:
    run(promtool, "test", "rules", ROOT / "tests" / "unit" / "metrics" / "alerts_test.yml")


def test_the_chart_has_these_alerts() -> None:
    """Helm reads files of the chart's folder alone, so there is a copy."""
    copy = ROOT / "infra" / "kubernetes" / "ledgermq" / "files" / "alerts.yml"
    assert copy.read_text() == RULES.read_text(), "run `make pages`"
