"""Spans of a broker process reach a collector by OTLP, and a process ends in time without one."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import ledgermq
from tests.e2e.processes import BrokerProcesses
from tests.tracing.collector import Collector, collecting, tracer
from tests.waiting import until


def spans_of_broker(collector: Collector) -> set[str]:
    return {span.name for span in collector.received() if span.service == "ledgermq-broker"}


async def test_a_broker_process_sends_its_spans_to_a_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with BrokerProcesses(tmp_path, f"file://{tmp_path}/root") as brokers:
            brokers.start("--tracing")
            async with ledgermq.connect(brokers.addresses, tracing=True) as client:
                await client.create_topic("orders", 1)
                async with client.producer() as producer:
                    with tracer().start_as_current_span("order"):
                        await producer.send("orders", b"two coffees")
            await until(lambda: {"append orders", "put segment"} <= spans_of_broker(collector))
        sent, append = collector.only("send orders"), collector.only("append orders")
        assert append.parent == sent.span_id
        assert collector.only("put segment").parent == append.span_id


def test_a_broker_ends_in_time_and_well_if_no_collector_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with BrokerProcesses(tmp_path, f"file://{tmp_path}/root") as brokers:
        broker = brokers.start("--tracing")
        with ledgermq.sync.connect(brokers.addresses, tracing=True) as client:
            client.create_topic("orders", 1)
            with client.producer() as producer, tracer().start_as_current_span("order"):
                producer.send("orders", b"two coffees").result()
        begun_s = time.monotonic()
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(60) == 0
        assert time.monotonic() - begun_s < 50, broker.text()
        assert "Traceback" not in broker.text()
