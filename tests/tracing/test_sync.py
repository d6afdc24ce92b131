"""The synchronous client carries the trace that is current in the thread of the program."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

from opentelemetry import trace

import ledgermq
import ledgermq.sync
from ledgermq.telemetry.trace_context import TRACEPARENT
from tests.tracing.collector import Collector, never_recorded, tracer
from tests.tracing.test_traces import context_text, parent_of
from tests.waiting import wait_until

roots = (f"memory://traced-sync-{number}" for number in itertools.count())


def all_of(client: ledgermq.sync.Client, topic: str) -> list[ledgermq.Message]:
    with client.consumer(topic, until_end=True) as consumer:
        return list(consumer)


def test_every_way_of_sending_carries_the_trace_of_its_thread(collector: Collector) -> None:
    with ledgermq.sync.connect(next(roots), tracing=True) as client, client.producer() as producer:
        client.create_topic("t", 1)

        def send_in_a_trace(number: int) -> tuple[bytes, str]:
            value = b"thread %d" % number
            with tracer().start_as_current_span("order") as span:
                producer.send("t", value).result()
                return value, context_text(span)

        with ThreadPoolExecutor(4) as threads:
            wanted = dict(threads.map(send_in_a_trace, range(20)))
        with tracer().start_as_current_span("order") as span:
            producer.send("t", b"headers", headers={"a": b"1"})
            producer.send("t", b"in time", timeout=30)
            producer.send_many("t", [b"list", ledgermq.Record(b"record", headers={"a": b"1"})])
            producer.send("t", b"delayed", delay=0)
            with client.transactions("tx") as transactions, transactions.begin() as transaction:
                transaction.send("t", b"transaction")
            producer.flush()
            for value in (b"headers", b"in time", b"list", b"record", b"delayed", b"transaction"):
                wanted[value] = context_text(span)
        producer.send("t", b"outside").result()
        with never_recorded(), tracer().start_as_current_span("not recorded"):
            producer.send("t", b"not recorded").result()
        wanted |= {b"outside": "", b"not recorded": ""}
        wait_until(lambda: len(all_of(client, "t")) == len(wanted))
        assert {message.value: parent_of(message) for message in all_of(client, "t")} == wanted


def test_a_request_and_its_reply_are_one_trace(collector: Collector) -> None:
    current: list[trace.Span] = []
    with ledgermq.sync.connect(next(roots), tracing=True) as client:
        client.create_topic("orders", 1)

        def answer(message: ledgermq.GroupMessage) -> None:
            current.append(trace.get_current_span())
            client.reply(message, b"done")

        client.listen("orders", answer, group="billing")
        with tracer().start_as_current_span("order") as order:
            reply = client.request("orders", b"two coffees", timeout=60)
        [request] = all_of(client, "orders")
    assert parent_of(request) == context_text(order)
    processing = collector.only("process orders")
    assert processing.links == (collector.only("order").place,)
    assert f"{current[0].get_span_context().span_id:016x}" == processing.span_id
    assert parent_of(reply) == context_text(current[0])
    assert [name for name, _ in reply.headers].count(TRACEPARENT) == 1
