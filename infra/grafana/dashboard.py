"""Define the Grafana dashboard of a cluster. `make pages` writes it to ledgermq.json; a test holds
both, and every metric name, to the code.

Rows answer an operator's questions in order: health, throughput, time until durable, the store and
its cost, owners of bundles, compaction, processes. Every query gives an answer on an idle cluster
too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from infra.grafana.broker_rows import BROKERS, PROCESSES
from infra.grafana.feature_rows import FEATURES
from infra.grafana.panels import Panel

PER_ROW, WIDTH, HEIGHT, STAT_HEIGHT = 3, 24, 8, 4
VARIABLES = {"$job": ".+", "$instance": ".+", "$__rate_interval": "1m"}
"""Values of the variables for queries that run without Grafana."""

ROWS = {**BROKERS, **FEATURES, **PROCESSES}


def dashboard() -> dict[str, Any]:
    return {
        "uid": "ledgermq",
        "title": "LedgerMQ",
        "tags": ["ledgermq"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                _source(),
                _variable("job", "ledgermq_ready"),
                _variable("instance", 'ledgermq_ready{job=~"$job"}'),
            ]
        },
        "panels": list(_panels()),
    }


def queries(*, used: bool = True) -> list[str]:
    """Return every query, with a pattern that matches everything in place of Grafana's variables. `used`: False
    leaves out those that have no data while what they show is not in use.
    """
    found = []
    for panels in ROWS.values():
        shown = [panel for panel in panels if used or not panel.empty]
        for expression in (expression for panel in shown for expression, _ in panel.queries):
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            found.append(expression)
    return found


def _panels() -> Iterator[dict[str, Any]]:
    number, top_edge = 1, 0
    for title, panels in ROWS.items():
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": _place(0, top_edge, WIDTH, 1),
        }
        number, top_edge = number + 1, top_edge + 1
        per_row = 6 if panels[0].kind == "stat" else PER_ROW
        height, width = (STAT_HEIGHT if panels[0].kind == "stat" else HEIGHT), WIDTH // per_row
        for place, panel in enumerate(panels):
            yield _panel(
                number, panel, _place(width * (place % per_row), top_edge + height * (place // per_row), width, height)
            )
            number += 1
        top_edge += height * -(-len(panels) // per_row)


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    targets = [
        {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend, "datasource": source}
        for at, (expression, legend) in enumerate(panel.queries)
    ]
    defaults = {"unit": panel.unit, "min": 0} | ({"noValue": panel.empty} if panel.empty else {})
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": source,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "gridPos": place,
    }


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _source() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _variable(label: str, series: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": f"label_values({series}, {label})", "refId": label},
        "includeAll": True,
        "allValue": ".+",
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=2) + "\n")
