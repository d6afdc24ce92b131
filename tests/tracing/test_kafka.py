"""Traces between programs of ours and clients of the Kafka protocol: W3C's headers are plain headers in both."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

import ledgermq
from ledgermq import Retry
from ledgermq.telemetry.trace_context import TRACEPARENT, TRACESTATE
from tests.e2e.retrying import running
from tests.kafka.nodes import served
from tests.tracing.collector import Collector, tracer
from tests.tracing.conftest import FOREIGN
from tests.tracing.test_traces import context_text
from tests.waiting import until

pytestmark = pytest.mark.kafka

PLACE = tuple(FOREIGN.split("-")[1:3])
DEADLINE_S = 60.0


async def consumed(bootstrap: str, topic: str, count: int) -> list[ConsumerRecord]:
    """Read the first records of partition 0 as a client of Kafka does."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    async with consumer:
        consumer.assign([TopicPartition(topic, 0)])
        return [await asyncio.wait_for(consumer.getone(), DEADLINE_S) for _ in range(count)]


async def test_the_trace_of_a_kafka_producer_is_kept_through_retries_and_dead_letters(
    tmp_path: Path, collector: Collector
) -> None:
    sent = [("a", b"1"), (TRACEPARENT, FOREIGN.encode()), (TRACESTATE, b"vendor=x")]
    with served(tmp_path, default_partitions=1) as node:
        assert node.kafka_address is not None
        async with ledgermq.connect(node.address, tracing=True) as client:
            await client.create_topic("t", 1)
            async with AIOKafkaProducer(bootstrap_servers=node.kafka_address, enable_idempotence=True) as producer:
                await producer.send_and_wait("t", b"poison", b"k", headers=sent)

            @client.handler("t", group="g", ordered_by=None, retry=Retry.levels(3, [0]), commit_interval_ms=100)
            async def handle(message: ledgermq.GroupMessage) -> None:
                raise ZeroDivisionError

            async with running(client):
                await until(lambda: handle.dead_lettered)
        for topic, count in (("t", 1), ("g.retry", 2), ("g.dlq", 1)):
            for record in await consumed(node.kafka_address, topic, count):
                assert record.value == b"poison"
                assert [pair for pair in record.headers if pair in sent] == sent, topic
                assert [name for name, _ in record.headers].count(TRACEPARENT) == 1, topic
    attempts = [span for span in collector.spans() if span.name.startswith("process ")]
    assert [span.links for span in attempts] == [(PLACE,)] * 3


async def test_a_kafka_consumer_sees_the_trace_of_records_delayed_records_and_transactions(
    tmp_path: Path, collector: Collector
) -> None:
    with served(tmp_path, default_partitions=1) as node:
        assert node.kafka_address is not None
        async with ledgermq.connect(node.address, tracing=True) as client:
            await client.create_topic("t", 1)
            with tracer().start_as_current_span("order") as span:
                async with client.producer() as producer:
                    await producer.send("t", b"plain")
                    await producer.send("t", b"delayed", delay=0.5)
                async with client.transactions("tx") as transactions, transactions.begin() as transaction:
                    transaction.send("t", b"transaction", headers={"a": b"1"})
            async with client.producer() as producer:
                await producer.send("t", b"outside")
        records = await consumed(node.kafka_address, "t", 4)
    traced = {record.value: dict(record.headers).get(TRACEPARENT, b"").decode() for record in records}
    carried = context_text(span)
    assert traced == {b"plain": carried, b"delayed": carried, b"transaction": carried, b"outside": ""}


async def test_a_reply_to_a_request_that_a_kafka_client_has_forwarded_stays_in_its_trace(
    tmp_path: Path, collector: Collector
) -> None:
    """A program in between copies requests from topic to topic with their headers, and knows nothing of traces."""
    with served(tmp_path, default_partitions=1) as node:
        bootstrap = node.kafka_address
        assert bootstrap is not None
        async with (
            ledgermq.connect(node.address, tracing=True) as asking,
            ledgermq.connect(node.address) as answering,
        ):
            for topic in ("in", "out"):
                await answering.create_topic(topic, 1)

            @answering.handler("out", group="g")
            async def handle(message: ledgermq.GroupMessage) -> None:
                await message.reply(b"done")

            async def forward() -> None:
                [request] = await consumed(bootstrap, "in", 1)
                async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
                    await producer.send_and_wait("out", request.value, request.key, headers=list(request.headers))

            async with running(answering):
                forwarding = asyncio.create_task(forward())
                with tracer().start_as_current_span("order") as span:
                    reply = await asking.request("in", b"two coffees", timeout=DEADLINE_S)
                await forwarding
    assert reply.value == b"done"
    assert dict(reply.headers)[TRACEPARENT].decode() == context_text(span)
