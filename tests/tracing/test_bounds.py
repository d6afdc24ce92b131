"""What tracing is bounded by, says nothing of, and costs nothing for: strangers, errors, programs without it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import ledgermq
from ledgermq.errors import InvalidConfig, InvalidRecord, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq.telemetry.trace_context import TRACEPARENT
from ledgermq.telemetry.tracing import TRACES_PER_S_MAX
from tests.broker.cluster import Cluster, batch_header, encoded, in_cluster
from tests.e2e.retrying import running
from tests.e2e.test_client_takeover import client_of
from tests.tracing.collector import Collector, tracer
from tests.tracing.conftest import FOREIGN, SECRET, traced
from tests.waiting import until


def test_strangers_have_at_most_100_traces_a_second_recorded(collector: Collector) -> None:
    @in_cluster("a:1", tracing=True)
    async def run(cluster: Cluster) -> None:
        await cluster.create("t", 1)
        flood = int(5 * TRACES_PER_S_MAX)
        data = encoded([b"v"])
        for _ in range(flood):
            header = batch_header("t", 0, data, 1)
            header.traceparent = FOREIGN
            frame = Frame(pb.ProduceHeader(batches=[header]), [data])
            assert not (await cluster.line("a:1").produce_once(frame)).results[0].HasField("error")
        async with client_of(cluster) as plain, traced(cluster) as client:
            async with plain.producer() as producer:
                await producer.send_many(
                    "t", [ledgermq.Record(b"v", headers={TRACEPARENT: FOREIGN}) for _ in range(flood)]
                )

            @client.handler("t", group="g", ordered_by=None, concurrency=100)
            async def handle(message: ledgermq.GroupMessage) -> None: ...

            async with running(client):
                await until(lambda: handle.handled == 2 * flood)

    run()
    for name in ("append t", "process t"):
        spans = collector.spans(name)
        seconds = spans[-1].begun_s - spans[0].begun_s
        assert TRACES_PER_S_MAX <= len(spans) <= TRACES_PER_S_MAX * (1 + seconds) + 1, name


def test_errors_keep_what_they_are_without_their_text(collector: Collector) -> None:
    @in_cluster("a:1", tracing=True, auto_create_topics=False)
    async def run(cluster: Cluster) -> None:
        async with traced(cluster) as client:
            await client.create_topic("t", 1)
            async with client.producer(raise_on_error=False, delivery_timeout_s=5) as producer:
                with tracer().start_as_current_span("order"):
                    assert isinstance((await producer.send("missing", SECRET)).error, UnknownTopic)
                    assert isinstance((await producer.send("t", b"v", headers=5)).error, InvalidRecord)  # type: ignore[arg-type]
                    assert isinstance((await producer.send("t", b"v", headers=[()])).error, InvalidRecord)  # type: ignore[list-item]
                    await client.topics.alter("t", settings={"max.message.bytes": "1024"})
                    sent = await producer.send("t", SECRET * 300, partition=0)
                    assert sent.error is not None
            for header in (FOREIGN, "nonsense", FOREIGN + "\n", "00-" + "0" * 32 + "-" + "1" * 16 + "-01"):
                data = encoded([b"v"])
                wrong = batch_header("no-such-topic-" + SECRET, 0, data, 1)
                wrong.traceparent = header
                frame = Frame(pb.ProduceHeader(batches=[wrong]), [data])
                assert (await cluster.line("a:1").produce_once(frame)).results[0].HasField("error")

    run()
    [refused] = [span for span in collector.spans() if span.name == "append"]
    assert refused.failed
    assert refused.attributes["error.type"] == UnknownTopic.code
    assert not any(SECRET in span.text for span in collector.spans())


def test_a_program_that_does_not_trace_imports_nothing_of_opentelemetry() -> None:
    program = (
        "import asyncio, sys, ledgermq\n"
        "async def main():\n"
        "    async with ledgermq.connect('memory://quiet') as client:\n"
        "        await client.create_topic('t', 1)\n"
        "        async with client.producer() as producer:\n"
        "            await producer.send('t', b'v')\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True, env={**os.environ}
    )
    assert done.stdout.strip() == "[]"


async def test_the_variable_switches_tracing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERMQ_TRACING", "1")
    async with ledgermq.connect("localhost:1") as client:
        assert client.settings.tracing is True
        assert client.producer().tracing is not None
    async with ledgermq.connect("localhost:1", tracing=False) as client:
        assert client.producer().tracing is None
    monkeypatch.setenv("LEDGERMQ_TRACING", "perhaps")
    with pytest.raises(InvalidConfig, match="tracing is true or false"):
        ledgermq.connect("localhost:1")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "ledgermq.telemetry.tracing")
    with pytest.raises(InvalidConfig, match=r'pip install "ledgermq\[otel\]"'):
        ledgermq.connect("localhost:1", tracing=True)
