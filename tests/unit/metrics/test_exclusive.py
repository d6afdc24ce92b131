"""What brokers count about exclusive producers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ledgermq.errors import PartitionHeld, ProducerFenced
from ledgermq_broker.exclusive.counts import CHANGES
from ledgermq_broker.metrics.features.exclusive import HolderMetrics


def test_changes_and_refusals_are_counted_and_begin_at_zero() -> None:
    registry = CollectorRegistry()
    metrics = HolderMetrics(registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"ledgermq_exclusive_{name}_total", labels)

    assert [value("producer_changes", change=change) for change in CHANGES] == [0.0] * len(CHANGES)
    for change in (*CHANGES, "fenced"):
        metrics.changed(change)
    for code in (PartitionHeld.code, ProducerFenced.code, ProducerFenced.code):
        metrics.refused(code)
    assert [value("producer_changes", change=change) for change in CHANGES] == [1.0, 2.0, 1.0, 1.0]
    assert (value("refused_batches", code="PARTITION_HELD"), value("refused_batches", code="PRODUCER_FENCED")) == (1, 2)
