"""Sample lag by consumer group and topic while the process runs: the coordinator requests the ends
of partitions from their owners.

The pairs that are farthest behind have a label each, up to a cap; all others are summed. Partitions
that a group has never committed are not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stateless_broker.groups.groups import GroupLag, Groups
from stateless_broker.logs import get_logger
from stateless_broker.metrics.topic_totals import OTHER

EVERY_S = 15.0
PAIRS_MAX = 200
PARTITIONS_MAX = 5000

log = get_logger(__name__)


class GroupLagMetrics(Collector):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._rows: list[GroupLag] = []
        registry.register(self)

    async def run(self, groups: Groups) -> None:
        """Sample until cancelled."""
        while True:
            try:
                await self.sample(groups)
            except Exception:  # a broker works without its metrics, too
                log.exception("lag of groups not sampled")
            await asyncio.sleep(EVERY_S)

    async def sample(self, groups: Groups) -> None:
        self._rows = sorted(await groups.lags(PARTITIONS_MAX), key=lambda row: (-row.records, row.group, row.topic))

    def collect(self) -> Iterable[Metric]:
        lag = GaugeMetricFamily(
            "ledgermq_group_lag_records",
            "Records between a group's committed offsets and the ends of the partitions, reported by its coordinator",
            labels=("group", "topic"),
        )
        members = GaugeMetricFamily(
            "ledgermq_group_members", "Members of a group, reported by its coordinator", labels=("group",)
        )
        for row in self._rows[:PAIRS_MAX]:
            lag.add_metric((row.group, row.topic), row.records)
        if self._rows[PAIRS_MAX:]:
            lag.add_metric((OTHER, OTHER), sum(row.records for row in self._rows[PAIRS_MAX:]))
        for group, count in {row.group: row.members for row in self._rows[:PAIRS_MAX]}.items():
            members.add_metric((group,), count)
        yield from (lag, members)
