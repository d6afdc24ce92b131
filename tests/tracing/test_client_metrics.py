"""Metrics of clients, read by OpenTelemetry's SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

import ledgermq
from ledgermq.errors import InvalidConfig
from ledgermq.telemetry import client_metrics
from ledgermq.telemetry.switch import chosen_switch
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.test_client_takeover import client_of

SENT, CONSUMED = "messaging.client.sent.messages", "messaging.client.consumed.messages"
PROCESSED, BUFFERED = "messaging.process.duration", "ledgermq.client.buffer.usage"
ATTRIBUTES = {
    "topic": "messaging.destination.name",
    "group": "messaging.consumer.group.name",
    "error": "error.type",
}


class Meters:
    """What a meter provider would export."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    def count(self, name: str, **attributes: str) -> float:
        """Return the sum of a metric's values, or the number of its measured times, with these attributes."""
        data = self._reader.get_metrics_data()
        wanted = {ATTRIBUTES[each]: value for each, value in attributes.items()}.items()
        points = [
            point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
            if wanted <= dict(point.attributes or {}).items()
        ]
        return sum(point.count if isinstance(point, HistogramDataPoint) else point.value for point in points)


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meters]:
    made = Meters()

    def get_meter(name: str, version: str, schema_url: str) -> Any:
        return made.provider.get_meter(name, version, schema_url)

    monkeypatch.setattr(metrics, "get_meter_provider", lambda: made.provider)
    monkeypatch.setattr(metrics, "get_meter", get_meter)
    yield made
    made.provider.shutdown()


@in_cluster("a:1")
async def test_what_is_sent_and_read_is_counted_by_topic_and_group(cluster: Cluster, meters: Meters) -> None:
    async with client_of(cluster, metrics=True) as client:
        for topic in ("orders", "tasks"):
            await client.create_topic(topic, 2)
        async with client.producer() as producer:
            await (await producer.send_many("orders", [b"%d" % each for each in range(100)]))
            assert meters.count(SENT, topic="orders") == 100
            assert meters.count("messaging.client.operation.duration", topic="orders") >= 1
            waiting = producer.send("tasks", b"x" * 1000)
            assert meters.count(BUFFERED) >= 1000
            await waiting
            assert meters.count(BUFFERED) == 0
        async with client.consumer("orders", start="earliest", until_end=True) as consumer:
            assert len([message async for message in consumer]) == 100
        assert (await client.read_arrow("orders")).num_rows == 100
        assert meters.count(CONSUMED, topic="orders") == 200
        async with client.consumer("orders", group="billing", start="earliest") as member:
            got = 0
            while got < 100:
                got += len(await member.fetch(timeout=10))
        assert meters.count(CONSUMED, topic="orders", group="billing") == 100
        async with client.queue("tasks", group="workers") as queue:
            [message] = await queue.fetch(timeout=10)
            await message.ack()
        assert meters.count(CONSUMED, topic="tasks", group="workers") == 1


@in_cluster("a:1")
async def test_records_that_fail_count_with_their_error(cluster: Cluster, meters: Meters) -> None:
    async with client_of(cluster, metrics=True) as client:
        await client.create_topic("orders", 1)
        async with client.producer(delivery_timeout_s=5.0, raise_on_error=False) as producer:
            await producer.send("orders", b"first")
            await cluster.stop("a:1", graceful=False)
            results = await (await producer.send_many("orders", [b"x"] * 7))
            [error] = {result.error.code for result in results if result.error is not None}
    assert meters.count(SENT, topic="orders") == 8
    assert meters.count(SENT, topic="orders", error=error) == 7


@in_cluster("a:1")
async def test_calls_of_handlers_are_measured_with_what_they_raise(cluster: Cluster, meters: Meters) -> None:
    async with client_of(cluster, metrics=True) as client:
        await client.create_topic("orders", 1)
        async with client.producer() as producer:
            await (await producer.send_many("orders", [b"good", b"bad"]))
        stop, calls = asyncio.Event(), 0

        @client.handler(
            "orders", group="billing", start="earliest", retry=ledgermq.Retry.in_order(max_attempts=1, then="drop")
        )
        async def bill(message: ledgermq.Message) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                stop.set()
            if message.value == b"bad":
                raise ValueError

        await client.run_handlers(stop=stop)
    assert meters.count(PROCESSED, topic="orders", group="billing") == 2
    assert meters.count(PROCESSED, topic="orders", group="billing", error="ValueError") == 1


@in_cluster("a:1")
async def test_topics_beyond_the_bound_count_as_one(
    cluster: Cluster, meters: Meters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_metrics, "TOPICS_MAX", 2)
    async with client_of(cluster, metrics=True) as client, client.producer() as producer:
        for number in range(4):
            await client.create_topic(f"t{number}", 1)
            await producer.send(f"t{number}", b"x")
    assert [meters.count(SENT, topic=f"t{number}") for number in range(4)] == [1, 1, 0, 0]
    assert meters.count(SENT, topic="(other)") == 2


@in_cluster("a:1")
async def test_a_client_measures_nothing_unless_it_is_told(cluster: Cluster, meters: Meters) -> None:
    async with client_of(cluster) as client, client.producer() as producer:
        await client.create_topic("orders", 1)
        await producer.send("orders", b"x")
    assert meters.count(SENT) == 0


def test_a_variable_or_the_settings_file_switches_metrics_on(tmp_path: Path) -> None:
    file = tmp_path / "ledgermq.toml"
    file.write_text("metrics = true\n")
    assert not chosen_switch("metrics", None, {})
    assert chosen_switch("metrics", None, {"LEDGERMQ_METRICS": "1"})
    assert chosen_switch("metrics", None, {"LEDGERMQ_CONFIG": str(file)})
    assert not chosen_switch("metrics", False, {"LEDGERMQ_METRICS": "1"})
    with pytest.raises(InvalidConfig):
        chosen_switch("metrics", None, {"LEDGERMQ_METRICS": "perhaps"})
