"""Traces of messages from producers through brokers to handlers, with OpenTelemetry's SDK and a real collector, on
brokers in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from opentelemetry import trace
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names

import ledgermq
from ledgermq import Retry
from ledgermq.telemetry.trace_context import TRACEPARENT, TRACESTATE, recorded_context
from ledgermq.telemetry.tracing import LINKS_MAX
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.retrying import all_of, running, until_in
from tests.e2e.test_client_takeover import client_of
from tests.tracing.collector import Collector, never_recorded, tracer
from tests.tracing.conftest import FOREIGN, SECRET, traced
from tests.waiting import until


def parent_of(message: ledgermq.Message) -> str:
    return dict(message.headers).get(TRACEPARENT, b"").decode()


def context_text(span: trace.Span) -> str:
    found = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-01"


def test_one_trace_from_the_producer_to_the_reply(collector: Collector) -> None:
    @in_cluster("a:1", tracing=True)
    async def run(cluster: Cluster) -> None:
        async with traced(cluster) as asking, traced(cluster, tracing_parent="message") as answering:
            await answering.create_topic("orders", 1)

            @answering.handler("orders", group="billing")
            async def handle(message: ledgermq.GroupMessage) -> None:
                await message.reply(b"done")

            async with running(answering):
                with tracer().start_as_current_span("order"):
                    reply = await asking.request("orders", b"two coffees")
            assert recorded_context(reply.headers) is not None

    run()
    order = collector.only("order")
    assert {span.trace_id for span in collector.spans()} == {order.trace_id}
    request, reply = collector.only("send orders"), collector.only("send ledgermq.replies")
    processing = collector.only("process orders")
    assert request.parent == order.span_id
    assert processing.parent == order.span_id
    assert processing.links == (order.place,)
    assert reply.parent == processing.span_id
    for sent, topic in ((request, "orders"), (reply, "ledgermq.replies")):
        append = collector.only(f"append {topic}")
        assert append.parent == sent.span_id
        [put] = [span for span in collector.spans("put segment") if span.parent == append.span_id]
        assert sent.begun_s <= append.begun_s <= put.begun_s <= put.ended_s <= append.ended_s <= sent.ended_s
    kinds = {span.name.partition(" ")[0]: span.kind for span in collector.spans()}
    assert kinds == {"order": "internal", "send": "client", "append": "server", "put": "client", "process": "consumer"}


def test_names_are_those_of_the_semantic_conventions(collector: Collector) -> None:
    @in_cluster("a:1", tracing=True)
    async def run(cluster: Cluster) -> None:
        async with traced(cluster) as client:
            await client.create_topic("orders", 2)

            @client.handler("orders", group="billing")
            async def handle(message: ledgermq.GroupMessage) -> None: ...

            async with client.producer(linger_ms=5) as producer:
                with tracer().start_as_current_span("order"):
                    for _ in range(3):
                        producer.send("orders", b"v", partition=1)
                await producer.flush()
            async with running(client):
                await until(lambda: handle.handled == 3)

    run()
    assert collector.only("send orders").attributes == {
        names.MESSAGING_SYSTEM: "ledgermq",
        names.MESSAGING_OPERATION_NAME: "send",
        names.MESSAGING_OPERATION_TYPE: "send",
        names.MESSAGING_DESTINATION_NAME: "orders",
        names.MESSAGING_DESTINATION_PARTITION_ID: "1",
        names.MESSAGING_BATCH_MESSAGE_COUNT: 3,
        "ledgermq.offset": 0,
    }
    assert collector.spans("process orders")[2].attributes == {
        names.MESSAGING_SYSTEM: "ledgermq",
        names.MESSAGING_OPERATION_NAME: "process",
        names.MESSAGING_OPERATION_TYPE: "process",
        names.MESSAGING_DESTINATION_NAME: "orders",
        names.MESSAGING_DESTINATION_PARTITION_ID: "1",
        names.MESSAGING_CONSUMER_GROUP_NAME: "billing",
        names.MESSAGING_MESSAGE_ID: "orders:1:2",
        "ledgermq.offset": 2,
    }


def test_a_record_outside_a_recorded_trace_has_neither_headers_nor_spans(collector: Collector) -> None:
    @in_cluster("a:1", tracing=True)
    async def run(cluster: Cluster) -> None:
        async with traced(cluster) as client:
            await client.create_topic("t", 1)

            @client.handler("t", group="g")
            async def handle(message: ledgermq.GroupMessage) -> None:
                assert not message.headers

            async with client.producer() as producer:
                await producer.send("t", b"outside")
                with never_recorded(), tracer().start_as_current_span("not recorded"):
                    await producer.send("t", b"inside", key=b"k")
                    await (await producer.send_many("t", [b"1", b"2"]))
            async with running(client):
                await until(lambda: handle.handled + handle.failures == 4)
            assert handle.handled == 4

    run()
    assert collector.spans() == []


def test_every_way_of_sending_carries_the_trace(collector: Collector) -> None:
    async def later() -> AsyncIterator[bytes]:
        yield b"asynchronous"

    @in_cluster("a:1")
    async def run(cluster: Cluster) -> None:
        async with traced(cluster) as client:
            await client.create_topic("t", 1)
            with tracer().start_as_current_span("order") as span:
                async with client.producer() as producer:
                    producer.send("t", b"plain")
                    producer.send("t", b"headers", None, {"a": b"1"})
                    producer.send("t", b"by name", headers=iter([("a", b"1")]))
                    await producer.send_many("t", [b"list", ledgermq.Record(b"record", headers={"a": b"1"})])
                    await producer.send_many("t", iter([b"iterator"]))
                    await producer.send_many("t", later())
                    producer.send("t", b"delayed", delay=5)
                async with client.transactions("tx") as transactions, transactions.begin() as transaction:
                    transaction.send("t", b"transaction")
                async with client.half_messages("g", check=lambda message: "unknown") as half:
                    await (await half.send("t", b"half")).commit()
            await asyncio.sleep(10)
            found = await until_in(client, "t", 10)
            assert {message.value: parent_of(message) for message in found} == {
                value: context_text(span)
                for value in (
                    b"plain",
                    b"headers",
                    b"by name",
                    b"list",
                    b"record",
                    b"iterator",
                    b"asynchronous",
                    b"delayed",
                    b"transaction",
                    b"half",
                )
            }
            assert [dict(message.headers)["a"] for message in found if message.value == b"by name"] == [b"1"]

    run()


def test_a_trace_that_the_record_says_itself_stays(collector: Collector) -> None:
    @in_cluster("a:1")
    async def run(cluster: Cluster) -> None:
        async with traced(cluster) as client:
            await client.create_topic("t", 1)
            async with client.producer() as producer:
                with tracer().start_as_current_span("order"):
                    own = {TRACEPARENT: FOREIGN, TRACESTATE: "vendor=x"}
                    await producer.send("t", b"v", headers=own)
                    await (await producer.send_many("t", [ledgermq.Record(b"w", headers=own)]))
            for message in await all_of(client, "t"):
                assert dict(message.headers) == {TRACEPARENT: FOREIGN.encode(), TRACESTATE: b"vendor=x"}

    run()
    for span in collector.spans("send t"):
        assert span.trace_id == FOREIGN.split("-")[1]
        assert span.links == ((span.trace_id, "00f067aa0ba902b7"),)


def test_a_batch_has_one_span_with_at_most_128_links(collector: Collector) -> None:
    @in_cluster("a:1", tracing=True)
    async def run(cluster: Cluster) -> None:
        async with traced(cluster) as client:
            await client.create_topic("t", 1)
            async with client.producer(linger_ms=1000) as producer:
                for _ in range(300):
                    with tracer().start_as_current_span("order"):
                        producer.send("t", b"v")
                        producer.send("t", b"w")
                    producer.send("t", b"without")

    run()
    sent = collector.only("send t")
    assert sent.attributes[names.MESSAGING_BATCH_MESSAGE_COUNT] == 900
    orders = [span.place for span in collector.spans("order")]
    assert len(sent.links) == len(set(sent.links)) == LINKS_MAX
    assert set(sent.links) <= set(orders)
    assert sent.parent == sent.links[0][1]


def test_retries_dead_letters_and_a_redrive_keep_the_trace(collector: Collector) -> None:
    @in_cluster("a:1")
    async def run(cluster: Cluster) -> None:
        async with traced(cluster) as client:
            await client.create_topic("t", 1)

            @client.handler("t", group="g", ordered_by=None, retry=Retry.levels(3, [0]), commit_interval_ms=100)
            async def handle(message: ledgermq.GroupMessage) -> None:
                raise ZeroDivisionError(SECRET)

            with tracer().start_as_current_span("order") as span:
                async with client.producer() as producer:
                    await producer.send("t", b"poison", key=b"k")
            async with running(client):
                await until(lambda: handle.dead_lettered)
            for topic, count in (("g.retry", 2), ("g.dlq", 1)):
                for message in await until_in(client, topic, count):
                    assert parent_of(message) == context_text(span), topic
                    assert [name for name, _ in message.headers].count(TRACEPARENT) == 1

    run()
    order = collector.only("order")
    attempts = [span for span in collector.spans() if span.name.startswith("process ")]
    assert len(attempts) == 3
    for attempt in attempts:
        assert attempt.failed
        assert attempt.attributes["error.type"] == "ZeroDivisionError"
        assert attempt.links == (order.place,)
        assert attempt.parent == ""
        assert attempt.trace_id != order.trace_id


def test_a_reply_stays_in_the_trace_of_its_request_where_the_answering_program_does_not_trace(
    collector: Collector,
) -> None:
    @in_cluster("a:1")
    async def run(cluster: Cluster) -> None:
        async with traced(cluster) as asking, client_of(cluster) as answering:
            await answering.create_topic("t", 1)

            @answering.handler("t", group="g")
            async def handle(message: ledgermq.GroupMessage) -> None:
                await message.reply(b"done")

            async with running(answering):
                with tracer().start_as_current_span("order") as span:
                    assert parent_of(await asking.request("t", b"v")) == context_text(span)
                assert not parent_of(await asking.request("t", b"v"))

    run()


def test_a_transactional_handler_sends_within_the_span_of_its_call(collector: Collector) -> None:
    @in_cluster("a:1")
    async def run(cluster: Cluster) -> None:
        async with traced(cluster) as client:
            await client.create_topic("t", 1)
            await client.create_topic("out", 1)

            @client.handler("t", group="g", transactional=True)
            async def handle(message: ledgermq.GroupMessage) -> object:
                made = ledgermq.Outgoing("out", message.value)
                return made if message.value == b"one" else [made, made]

            with tracer().start_as_current_span("order"):
                async with client.producer() as producer:
                    await producer.send("t", b"one")
                    await producer.send("t", b"list")
            async with running(client):
                found = await until_in(client, "out", 3)
            assert all(map(parent_of, found))

    run()
    calls = {span.span_id for span in collector.spans("process t")}
    assert len(calls) == 2
    assert {span.parent for span in collector.spans("send out")} <= calls


def test_handlers_of_queues_batches_and_threads_have_spans(collector: Collector) -> None:
    seen: dict[str, trace.Span] = {}

    @in_cluster("a:1")
    async def run(cluster: Cluster) -> None:
        async with traced(cluster) as client:
            await client.create_topic("t", 1)

            @client.queue_handler("t", group="of-queue")
            async def of_queue(message: ledgermq.QueueMessage) -> None:
                seen["queue"] = trace.get_current_span()

            @client.handler("t", group="of-batches", batch=True, batch_wait_ms=500)
            async def of_batches(messages: list[ledgermq.GroupMessage]) -> None:
                seen["batches"] = trace.get_current_span()

            @client.handler("t", group="of-threads")
            def of_threads(message: ledgermq.GroupMessage) -> None:
                seen["threads"] = trace.get_current_span()

            async with running(client):
                async with client.producer() as producer:
                    for _ in range(2):
                        with tracer().start_as_current_span("order"):
                            await producer.send("t", b"v")
                await until(lambda: of_queue.handled == 2 and of_batches.handled == 2 and of_threads.handled == 2)

    run()
    orders = [span.place for span in collector.spans("order")]
    by_group: dict[str, list[Any]] = {}
    for span in collector.spans("process t"):
        by_group.setdefault(span.attributes[names.MESSAGING_CONSUMER_GROUP_NAME], []).append(span)
    assert [len(by_group[group]) for group in ("of-queue", "of-batches", "of-threads")] == [2, 1, 2]
    [batch] = by_group["of-batches"]
    assert set(batch.links) == set(orders)
    assert batch.attributes[names.MESSAGING_BATCH_MESSAGE_COUNT] == 2
    for kind, group in (("queue", "of-queue"), ("batches", "of-batches"), ("threads", "of-threads")):
        current = seen[kind].get_span_context()
        assert (f"{current.trace_id:032x}", f"{current.span_id:016x}") == by_group[group][-1].place


def test_tracing_parent_local_makes_the_call_part_of_what_the_program_is_in(collector: Collector) -> None:
    @in_cluster("a:1")
    async def run(cluster: Cluster) -> None:
        async with traced(cluster) as client:
            await client.create_topic("t", 1)

            @client.handler("t", group="g")
            async def handle(message: ledgermq.GroupMessage) -> None: ...

            async with client.producer() as producer:
                await producer.send("t", b"v")
            with tracer().start_as_current_span("job"):
                async with running(client):
                    await until(lambda: handle.handled == 1)

    run()
    assert collector.only("process t").parent == collector.only("job").span_id
