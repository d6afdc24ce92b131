"""What is counted, and that its cost in labels is bounded."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from ledgermq_broker.bundle.shared.context import READ_SOURCES
from ledgermq_broker.costs.counted import StoreCosts
from ledgermq_broker.metrics.call_metrics import CallMetrics
from ledgermq_broker.metrics.features.timed import TimerMetrics
from ledgermq_broker.metrics.features.transactions import BEGIN, TransactionMetrics
from ledgermq_broker.metrics.owner_metrics import OwnerMetrics
from ledgermq_broker.metrics.store_metrics import HourlyRate, StoreMetrics
from ledgermq_broker.metrics.topic_totals import OTHER, TopicTotals
from ledgermq_broker.transactions.counts import CAUSES
from ledgermq_broker.transactions.state.types import State
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.object_store.prices import S3_PRICES, Prices, prices_for


def index(*topics: int) -> fmt.SegmentIndex:
    return fmt.SegmentIndex(batches=[fmt.BatchEntry(topic_id=topic, record_count=10, length=100) for topic in topics])


def test_topics_above_the_cap_share_one_label() -> None:
    totals = TopicTotals(topics_max=2)
    for topic in (1, 2, 3, 4, 1):
        totals.of(topic).records_in += 1
    names = {topic: f"t{topic}" for topic in range(1, 5)}
    assert {label: found.records_in for label, found in totals.named(names)} == {"t1": 2, "t2": 1, OTHER: 2}


def test_a_removed_topic_makes_room_and_no_total_goes_back() -> None:
    totals = TopicTotals(topics_max=1)
    totals.of(1).records_in += 5
    totals.of(2).records_in += 7
    assert {label: found.records_in for label, found in totals.named({2: "t2"})} == {OTHER: 7}
    totals.of(3).records_in += 1
    totals.of(2).records_in += 1
    assert {label: found.records_in for label, found in totals.named({2: "t2", 3: "t3"})} == {"t3": 1, OTHER: 8}


def test_a_thousand_topics_are_as_many_series_as_the_cap_says() -> None:
    metrics = OwnerMetrics(CollectorRegistry(), topics_max=5)
    for topic in range(1000):
        metrics.stored(index(topic))
        metrics.delivered(topic, 3, 30)
    found = list(metrics.topics.named({topic: str(topic) for topic in range(1000)}))
    assert len(found) == 6
    assert sum(totals.records_in for _, totals in found) == 10_000
    assert sum(totals.bytes_out for _, totals in found) == 30_000


def test_requests_are_priced_by_what_they_are() -> None:
    registry = CollectorRegistry()
    store = StoreMetrics(registry, StoreCosts(Prices(write=5.0, read=1.0, delete=0.5)), now_s=100.0)
    for operation in (
        "put",
        "put_if_absent",
        "list",
        "fenced_put",
        "get",
        "get_range",
        "head",
        "delete",
        "fenced_puts",
        "open_fence",
    ):
        store.request_ended(operation, "OK", 0.01, 1000 if "put" in operation else 0, 50 if "get" in operation else 0)
    store.request_ended("put_if_absent", "OBJECT_EXISTS", 0.01, 1000, 0)
    store.at(100.0 + 3600)
    assert registry.get_sample_value("ledgermq_store_dollars_total") == pytest.approx((5 * 5 + 4 * 1 + 0.5) / 1000)
    assert registry.get_sample_value("ledgermq_store_dollars_per_hour") == pytest.approx(0.0295)
    labels = {"operation": "put_if_absent", "outcome": "OBJECT_EXISTS"}
    assert registry.get_sample_value("ledgermq_store_requests_total", labels) == 1
    assert registry.get_sample_value("ledgermq_store_sent_bytes_total", {"operation": "put_if_absent"}) == 2000
    assert registry.get_sample_value("ledgermq_store_received_bytes_total", {"operation": "get_range"}) == 50
    assert registry.get_sample_value("ledgermq_store_request_seconds_count", {"operation": "put_if_absent"}) == 2


def test_prices_are_those_of_the_store_unless_set() -> None:
    assert prices_for("s3://b/p") == S3_PRICES
    assert prices_for("file:///x") == Prices()


def test_dollars_per_hour_follow_the_last_ten_minutes() -> None:
    rate = HourlyRate()
    found = [rate.at(60.0 * minute, total=0.01 * min(minute, 20)) for minute in range(41)]
    assert found[0] == 0
    assert found[20] == pytest.approx(0.6)
    assert found[40] == 0, "nothing was asked for in the last ten minutes"
    assert len(rate.samples) <= 13


def test_calls_are_counted_by_how_they_end_and_streams_while_they_are_open() -> None:
    registry = CollectorRegistry()
    calls = CallMetrics(registry)
    for method in ("Fetch", "Fetch", "CreateTopic"):
        calls.begun(method)
    calls.ended("Fetch", "CANCELLED", 100.0)
    calls.ended("CreateTopic", "TOPIC_EXISTS", 0.2)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("ledgermq_open_streams", method="Fetch") == 1
    assert value("ledgermq_calls_total", method="Fetch", code="CANCELLED") == 1
    assert value("ledgermq_calls_total", method="CreateTopic", code="TOPIC_EXISTS") == 1
    assert value("ledgermq_call_seconds_sum", method="CreateTopic") == 0.2
    assert value("ledgermq_call_seconds_count", method="Fetch") is None, "how long a stream is open says nothing"


@dataclass
class Counted:
    hook: str
    arguments: tuple[object, ...]
    name: str
    labels: dict[str, str]


@pytest.mark.parametrize(
    "counted",
    [
        Counted("refused", (1,), "produce_refused_total", {}),
        *(Counted("fetched", (1, source, 10), "reads_total", {"source": source}) for source in READ_SOURCES),
        Counted("claimed", (1, 2, 0.5), "takeovers_total", {}),
        Counted("claimed", (1, 1, 0.5), "claims_total", {"outcome": "won"}),
        Counted("term_ended", (1, "fenced"), "terms_ended_total", {"why": "fenced"}),
        Counted("checkpointed", (1, 5), "checkpoints_total", {}),
        Counted("upkeep_failed", (1, "look", ValueError()), "upkeep_failures_total", {"work": "look"}),
        Counted("waited", (1, 0.1), "group_commit_wait_seconds_count", {}),
        Counted("flushed", (1, 3, 1000, 0.1), "flush_batches_count", {}),
    ],
    ids=lambda counted: f"{counted.hook} {counted.name} {counted.arguments[1:2]}",
)
def test_each_hook_is_counted_once(counted: Counted) -> None:
    registry = CollectorRegistry()
    getattr(OwnerMetrics(registry, 5), counted.hook)(*counted.arguments)
    assert registry.get_sample_value(f"ledgermq_{counted.name}", counted.labels) == 1


@pytest.mark.parametrize(
    "counted",
    [
        Counted(
            "ended",
            (1, State.ABORTED, "timeout"),
            "transactions_ended_total",
            {"outcome": "aborted", "cause": "timeout"},
        ),
        Counted("completed", (1, 0.5), "transaction_completion_seconds_count", {}),
        Counted(
            "completion_failed", (1, "UNAVAILABLE"), "transaction_completion_failures_total", {"code": "UNAVAILABLE"}
        ),
        Counted("carried", (1, 1), "staged_carried_bytes_total", {}),
    ],
    ids=lambda counted: counted.hook,
)
def test_each_hook_of_transactions_is_counted_once(counted: Counted) -> None:
    registry = CollectorRegistry()
    getattr(TransactionMetrics(registry), counted.hook)(*counted.arguments)
    assert registry.get_sample_value(f"ledgermq_{counted.name}", counted.labels) == 1


@pytest.mark.parametrize(
    "counted",
    [
        Counted("taken_in", (1, 1, 10), "timed_messages_taken_in_total", {}),
        Counted("delivered", (1, 1, 10, 1000.0), "timed_messages_delivered_total", {}),
        Counted("delivered", (1, 3, 10, 1000.0), "timed_late_seconds", {"bundle": "1"}),
        Counted("dropped", (1, 1, "removed"), "timed_messages_dropped_total", {"why": "removed"}),
        Counted("recalled", (1, "too_late"), "timed_recalls_total", {"outcome": "too_late"}),
        Counted("moved", (1, 1, 10), "timed_messages_moved_total", {}),
    ],
    ids=lambda counted: counted.name,
)
def test_each_hook_of_timed_messages_is_counted_once(counted: Counted) -> None:
    registry = CollectorRegistry()
    getattr(TimerMetrics(registry), counted.hook)(*counted.arguments)
    assert registry.get_sample_value(f"ledgermq_{counted.name}", counted.labels) == 1


def test_causes_that_begin_at_zero_are_those_that_there_are() -> None:
    assert {cause for _, cause in BEGIN} == set(CAUSES)


def test_a_first_term_is_no_takeover() -> None:
    registry = CollectorRegistry()
    OwnerMetrics(registry, 5).claimed(1, 1, 0.5)
    assert registry.get_sample_value("ledgermq_takeovers_total") == 0
