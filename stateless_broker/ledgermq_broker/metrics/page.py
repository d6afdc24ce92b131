"""Make docs/metrics.md: every metric of a broker, from its registry, so that the page cannot be
outdated.

python -m ledgermq_broker.metrics.page > docs/metrics.md
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

from prometheus_client.metrics_core import Metric

from ledgermq_broker.metrics.process_metrics import ProcessMetrics
from ledgermq_broker.metrics.topic_totals import TOPICS_MAX

INTRODUCTION = f"""\
# Metrics

This page is made by `make pages`; a test holds it to the code. A broker whose setting `admin_port`
is set gives them at `/metrics`, and Prometheus adds `job` and `instance`.
`infra/grafana/ledgermq.json` is a dashboard, `infra/prometheus/alerts.yml` the rules for what an
operator must know.

Labels are bounded: operations and error codes are closed sets, bundles are those that the broker owns
(256 at most), and topics above the first {TOPICS_MAX} are summed up under `(other)`. Times are measured
to the millisecond.
"""


def families() -> list[Metric]:
    """Return every family, as a broker shows them before it is up."""

    async def collect() -> list[Metric]:
        return list(ProcessMetrics("file:///").registry.collect())

    return sorted(asyncio.run(collect()), key=lambda family: family.name)


def page() -> str:
    return "\n".join([INTRODUCTION, "| metric | kind | meaning |", "| --- | --- | --- |", *_rows(families()), ""])


def names() -> set[str]:
    """Return the name of every series that a query may use."""
    found = set()
    for family in families():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + suffix for suffix in suffixes}
    return found


def _rows(found: Iterable[Metric]) -> Iterable[str]:
    for family in found:
        if family.name.startswith("ledgermq_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            yield f"| `{name}` | {family.type} | {family.documentation} |"


if __name__ == "__main__":
    sys.stdout.write(page())
