"""What `use_every_feature` does is seen by each counter of the dashboard that it names; in virtual time."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from infra.grafana.dashboard import queries
from ledgermq_broker.metrics.process_metrics import ProcessMetrics
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore
from tests.broker.access import RULES, change, token
from tests.broker.cluster import Cluster
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.every_feature import NARROW, USED, use_every_feature


class Observed(Cluster):
    """Each broker reports to `process`."""

    def __init__(self, process: ProcessMetrics) -> None:
        super().__init__(MeteredStore(MemoryStore("", virtual_sources(1000)), process.store), **RULES)
        self._hooks = process.hooks

    def observers(self, address: str) -> dict[str, object]:
        hooks = self._hooks
        return {
            "metrics": hooks.owners,
            "counts": hooks.counts,
        }


@virtual
async def test_each_feature_that_is_used_is_counted() -> None:
    process = ProcessMetrics("memory://")
    cluster = Observed(process)
    try:
        await cluster.start("m:1")
        await cluster.settled()
        process.broker = cluster.brokers["m:1"]
        root, narrow = await token(cluster, "root"), await token(cluster, NARROW.removeprefix("user:"))
        await change(cluster, grant=[f"allow {NARROW} produce narrow"])
        async with cluster.client(root.text) as client, cluster.client(narrow.text) as other:
            await use_every_feature(client, other)
        text = process.render(is_ready=True).decode()
    finally:
        await cluster.close()
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    assert [feature for feature, counter in USED.items() if not totals.get(counter)] == []


def test_the_counters_are_on_the_dashboard() -> None:
    shown = "\n".join(queries())
    assert [counter for counter in USED.values() if counter not in shown] == []
