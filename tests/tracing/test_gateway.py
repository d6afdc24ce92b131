"""Traces through the HTTP gateway: whose trace is continued, and what strangers can have recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ledgermq.errors import InvalidConfig
from ledgermq.telemetry.trace_context import TRACEPARENT, recorded_context
from ledgermq.telemetry.tracing import TRACES_PER_S_MAX
from ledgermq_gateway.settings import GatewaySettings
from tests.e2e.retrying import all_of
from tests.gateway.world import World, world
from tests.tracing.collector import Collector

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
NAMED = {TRACEPARENT: f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=x", "baggage": "user=planted-secret"}
RECORDS = {"records": [{"value": "two coffees"}]}


@asynccontextmanager
async def serving(**settings: object) -> AsyncIterator[World]:
    async with world(tracing="on", client_tracing=True, **settings) as at:
        assert (await at.http.post("/v1/topics", json={"name": "orders", "partitions": 1})).status_code == 201
        yield at


async def test_a_request_of_a_trusted_proxy_continues_its_trace(collector: Collector) -> None:
    async with serving(trusted_proxies="10.0.0.0/8, 127.0.0.1") as at:
        answer = await at.http.post("/v1/topics/orders/records", json=RECORDS, headers=NAMED)
        assert answer.status_code == 200, answer.text
        async with at.client() as client:
            [message] = await all_of(client, "orders")
    request, sent = collector.only("POST /v1/topics/{topic}/records"), collector.only("send orders")
    assert (request.trace_id, request.parent, request.links) == (TRACE, SPAN, ())
    assert request.kind == "server"
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/topics/{topic}/records",
        "http.response.status_code": 200,
        "ledgermq.request_id": answer.headers["LedgerMQ-Request-Id"],
    }
    assert (sent.trace_id, sent.parent) == (TRACE, request.span_id)
    found = recorded_context(message.headers)
    assert found is not None
    assert f"{found.span_id:016x}" == request.span_id
    assert found.state == "vendor=x"
    assert [name for name, _ in message.headers] == [TRACEPARENT, "tracestate"]
    assert "planted-secret" not in "".join(span.text for span in collector.spans())


async def test_a_stranger_begins_a_trace_of_its_own(collector: Collector) -> None:
    async with serving(trusted_proxies="10.0.0.0/8") as at:
        assert (await at.http.post("/v1/topics/orders/records", json=RECORDS, headers=NAMED)).status_code == 200
        for said in (None, "nonsense", NAMED[TRACEPARENT][:-1] + "0"):
            headers = {} if said is None else {TRACEPARENT: said}
            assert (await at.http.post("/v1/topics/orders/records", json=RECORDS, headers=headers)).status_code == 200
        async with at.client() as client:
            messages = await all_of(client, "orders")
    request = collector.only("POST /v1/topics/{topic}/records")
    assert request.trace_id != TRACE
    assert request.links == ((TRACE, SPAN),)
    assert [bool(message.headers) for message in messages] == [True, False, False, False]


async def test_unknown_paths_and_refusals_name_no_text_of_strangers(collector: Collector) -> None:
    async with serving() as at:
        for method in ("GET", "PROPFIND"):
            assert (await at.http.request(method, "/v1/planted-secret", headers=NAMED)).status_code >= 400
    assert {span.name for span in collector.spans()} == {"GET", "HTTP"}
    assert "planted-secret" not in "".join(span.text for span in collector.spans())


async def test_a_flood_of_recorded_requests_has_at_most_100_spans_a_second(collector: Collector) -> None:
    async with serving() as at:
        flood = int(3 * TRACES_PER_S_MAX)
        gate = asyncio.Semaphore(20)

        async def ask() -> int:
            async with gate:
                return (await at.http.get("/v1/topics/orders", headers=NAMED)).status_code

        assert set(await asyncio.gather(*(ask() for _ in range(flood)))) == {200}
    spans = collector.spans("GET /v1/topics/{topic}")
    seconds = spans[-1].begun_s - spans[0].begun_s
    assert TRACES_PER_S_MAX - 1 <= len(spans) <= min(flood, TRACES_PER_S_MAX * (1 + seconds) + 1)


def test_settings_say_what_they_take() -> None:
    for wrong in ({"tracing": "true"}, {"trusted_proxies": "10.0.0.1/8"}, {"trusted_proxies": "proxy.example"}):
        with pytest.raises(InvalidConfig, match=next(iter(wrong))):
            GatewaySettings(**wrong)


async def test_without_tracing_a_request_has_no_span(collector: Collector) -> None:
    async with world() as at:
        assert (await at.http.get("/v1/topics", headers=NAMED)).status_code == 200
    assert collector.spans() == []
