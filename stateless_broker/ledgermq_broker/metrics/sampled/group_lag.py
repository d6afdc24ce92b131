"""Sample lag by consumer group and topic, and the failed messages of groups with retry levels, while
the process runs: the coordinator requests the ends of partitions from their owners.

The pairs that are farthest behind have a label each, up to a cap; all others are summed. Partitions
that a group has never committed are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ledgermq_broker.groups.groups import GroupFailures, Groups
from ledgermq_broker.groups.lags import PARTITIONS_MAX, GroupLag
from ledgermq_broker.metrics.sampled.sampling import PAIRS_MAX, sample_on
from ledgermq_broker.metrics.topic_totals import OTHER

GROUPS_MAX = 200


class GroupLagMetrics(Collector):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._rows: list[GroupLag] = []
        self._failures: Sequence[GroupFailures] = ()
        registry.register(self)

    async def run(self, groups: Groups) -> None:
        """Sample until cancelled."""
        await sample_on(lambda: self.sample(groups), "lag of groups")

    async def sample(self, groups: Groups) -> None:
        self._rows = sorted(await groups.lags(PARTITIONS_MAX), key=lambda row: (-row.records, row.group, row.topic))
        self._failures = await groups.failures(GROUPS_MAX)

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
        stuck = GaugeMetricFamily(
            "ledgermq_group_stuck_seconds",
            "Time for which this coordinator has seen the committed offset of a partition unmoved although there are"
            " records behind it; the longest of the topic",
            labels=("group", "topic"),
        )
        for row in self._rows[:PAIRS_MAX]:
            stuck.add_metric((row.group, row.topic), row.stuck_s)
        retries = CounterMetricFamily(
            "ledgermq_group_retries",
            "Records that were put into the retry topic of a group, reported by its coordinator",
            labels=("group",),
        )
        dead = CounterMetricFamily(
            "ledgermq_group_dead_letters",
            "Records that were put into the dead-letter topic of a group, reported by its coordinator; `ledgermq dlq`"
            " adds a few, which say what is settled",
            labels=("group",),
        )
        for failures in self._failures:
            retries.add_metric((failures.group,), failures.retries)
            dead.add_metric((failures.group,), failures.dead_letters)
        yield from (lag, members, stuck, retries, dead)
