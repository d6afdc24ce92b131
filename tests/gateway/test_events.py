"""Server-sent events: cursors, filters that pass nothing, gaps, bounds, and readers that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pyarrow as pa
import pytest

from ledgermq_gateway.records import events
from ledgermq_gateway.records.cursors import cursor_of, parse_cursor
from tests.gateway.world import World, world


@dataclass
class Event:
    """One event as a reader of the stream gets it."""

    name: str = "message"
    data: Any = None
    last_id: str = ""
    retry: int | None = None
    lines: list[str] = field(default_factory=list)


async def parsed(response: httpx.Response) -> AsyncIterator[Event]:
    """Parse a stream as the standard says; `last_id` stays from event to event."""
    last_id = ""
    event = Event()
    async for line in response.aiter_lines():
        if not line:
            event.last_id = last_id
            yield event
            event = Event()
            continue
        name, _, value = line.partition(": ")
        event.lines.append(line)
        if name == "id":
            last_id = value
        elif name == "data":
            event.data = json.loads(value)
        elif name == "event":
            event.name = value
        elif name == "retry":
            event.retry = int(value)


@asynccontextmanager
async def listening(at: World, path: str, **headers: str) -> AsyncIterator[AsyncIterator[Event]]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with at.http.stream("GET", path, headers=sent) as response:
        if response.status_code != 200:
            await response.aread()
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-accel-buffering"] == "no"
        async with aclosing(parsed(response)) as found:
            yield found


async def next_data(found: AsyncIterator[Event]) -> Event:
    async with asyncio.timeout(30):
        while (event := await anext(found)).data is None:
            pass
        return event


async def produce(at: World, topic: str, *records: dict[str, Any]) -> None:
    answer = await at.http.post(f"/v1/topics/{topic}/records", json={"records": records})
    assert answer.status_code == 200, answer.text


async def topic(at: World, name: str = "t", partitions: int = 1, **settings: Any) -> None:
    made = await at.http.post("/v1/topics", json={"name": name, "partitions": partitions, "settings": settings})
    assert made.status_code == 201, made.text


async def test_last_event_id_resumes_without_loss_and_without_repetition() -> None:
    async with world() as at:
        await topic(at, partitions=3)
        await produce(at, "t", *({"value": str(number), "partition": number % 3} for number in range(9)))
        seen: list[str] = []
        last_id = ""
        for _ in range(4):
            headers = {"Last_Event_ID": last_id} if last_id else {}
            async with listening(at, "/v1/topics/t/events?from=earliest", **headers) as found:
                while len(seen) < 9:
                    event = await next_data(found)
                    seen.append(event.data["value"])
                    if event.lines[-1].startswith("id"):
                        last_id = event.last_id
                        break
                if len(seen) >= 9:
                    break
        assert sorted(seen) == sorted(str(number) for number in range(9))


async def test_records_come_as_they_are_produced() -> None:
    async with world() as at:
        await topic(at)
        await produce(at, "t", {"value": "before"})
        async with listening(at, "/v1/topics/t/events") as found:
            assert (await anext(found)).last_id
            await produce(at, "t", {"value": "after", "key": "k"})
            event = await next_data(found)
            assert (event.data["value"], event.data["key"], event.data["offset"]) == ("after", "k", 1)


@pytest.mark.parametrize("wanted", ["tags=eu", "filter=price%20%3E%205"])
async def test_a_filter_that_passes_nothing_moves_the_id(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.1)
    async with world() as at:
        await topic(at)
        async with listening(at, f"/v1/topics/t/events?from=earliest&{wanted}") as found:
            await produce(at, "t", *[{"value": "x", "tag": "us"}] * 5)
            async with asyncio.timeout(30):
                while parse_cursor((await anext(found)).last_id)[1] != {0: 5}:
                    pass
            passing = {"value": "y", "tag": "eu", "headers": [{"key": "price", "value": "7"}]}
            await produce(at, "t", passing)
            event = await next_data(found)
            assert (event.data["value"], event.data["offset"]) == ("y", 5)


async def test_a_place_that_is_gone_is_416_and_gap_skip_goes_on() -> None:
    async with world() as at:
        await topic(at)
        await produce(at, "t", *[{"value": str(number)} for number in range(5)])
        topic_id = (await at.http.get("/v1/topics/t")).json()["topic_id"]
        assert (await at.http.delete("/v1/topics/t/records?before=3")).status_code == 200
        old = cursor_of(topic_id, {0: 1})
        refused = await at.http.get("/v1/topics/t/events", headers={"Last-Event-ID": old})
        assert refused.status_code == 416, refused.text
        problem = refused.json()
        assert (problem["code"], problem["log_start"], problem["high_watermark"]) == ("OFFSET_OUT_OF_RANGE", 3, 5)
        async with listening(at, "/v1/topics/t/events", Last_Event_ID=problem["resume"]) as found:
            assert (await next_data(found)).data["offset"] == 3
        async with listening(at, "/v1/topics/t/events?gap=skip", Last_Event_ID=old) as found:
            gap = await next_data(found)
            assert (gap.name, gap.data) == ("gap", {"partition": 0, "from": 1, "to": 3})
            assert (await next_data(found)).data["offset"] == 3


async def test_cursors_of_another_topic_forged_or_too_large() -> None:
    async with world() as at:
        await topic(at)
        first = (await at.http.get("/v1/topics/t")).json()["topic_id"]
        await at.http.delete("/v1/topics/t?now=true")
        async with asyncio.timeout(30):
            while (await at.http.post("/v1/topics", json={"name": "t", "partitions": 2})).status_code != 201:
                await asyncio.sleep(0.1)
        made_again = await at.http.get("/v1/topics/t/events", headers={"Last-Event-ID": cursor_of(first, {0: 0})})
        assert (made_again.status_code, made_again.json()["code"]) == (409, "OTHER_TOPIC")
        topic_id = (await at.http.get("/v1/topics/t")).json()["topic_id"]
        for wrong in (
            "c1.",
            "c1.AAAA",
            "x",
            cursor_of(topic_id, {0: 0})[:-2] + "zz",
            cursor_of(topic_id, {7: 0}),
            "c1." + "A" * 5000,
        ):
            answer = await at.http.get("/v1/topics/t/events", headers={"Last-Event-ID": wrong})
            assert answer.status_code == 400, (wrong, answer.text)


async def test_streams_are_bounded_and_a_reader_that_leaves_makes_room() -> None:
    async with world(streams_per_principal_max=2) as at:
        await topic(at)
        async with listening(at, "/v1/topics/t/events") as first, listening(at, "/v1/topics/t/events"):
            await anext(first)
            full = await at.http.get("/v1/topics/t/events")
            assert (full.status_code, full.json()["code"]) == (503, "OVERLOADED")
        async with asyncio.timeout(30):
            while at.gateway.service.streams.count:
                await asyncio.sleep(0.05)
        async with listening(at, "/v1/topics/t/events") as again:
            await anext(again)
        async with asyncio.timeout(30):
            while at.gateway.service.streams.count or at.gateway.service.memory.held_bytes:
                await asyncio.sleep(0.05)


async def test_a_batch_that_decodes_to_much_takes_of_the_budget() -> None:
    """A slow reader holds it for as long as it likes. One for which there is no room is told so, and loses nothing."""
    async with world(memory_bytes=10 * 1024 * 1024) as at:
        assert (await at.http.post("/v1/topics", json={"name": "orders", "partitions": 1})).status_code == 201
        assert (await at.http.post("/v1/topics/orders/records", json={"records": [{"value": "x"}]})).status_code == 200
        rows = pa.table({"value": [b"x" * 100_000] * 150})
        async with at.client() as client, client.producer(batch_bytes_max=2**24, request_bytes_max=2**24) as producer:
            await (await producer.send_batch("orders", rows))
        async with listening(at, "/v1/topics/orders/events?from=earliest") as stream:
            found = [event async for event in stream]
        assert (found[-1].name, found[-1].data["code"]) == ("problem", "OVERLOADED")
        assert {event.last_id for event in found if event.last_id} == {found[0].last_id}, "it comes back to this place"
        async with asyncio.timeout(30):
            while at.gateway.service.memory.held_bytes:
                await asyncio.sleep(0.01)


async def test_a_stop_ends_open_streams_with_a_time_to_come_back() -> None:
    ended: list[Event] = []

    async def listen(at: World) -> None:
        async with listening(at, "/v1/topics/t/events") as found:
            ended.extend([event async for event in found])

    async with world(streams_end_ms=300) as at:
        await topic(at)
        listeners = [asyncio.create_task(listen(at)) for _ in range(5)]
        async with asyncio.timeout(30):
            while at.gateway.service.streams.count < 5:
                await asyncio.sleep(0.05)
        at.gateway.service.stopping.set()
        assert (await at.http.get("/readyz")).status_code == 503
        assert (await at.http.get("/v1/topics")).headers["connection"] == "close"
        async with asyncio.timeout(30):
            await asyncio.gather(*listeners)
        last = [event.retry for event in ended if event.retry != events.RETRY_MS_MIN]
        assert len(last) >= 4
        assert all(retry is not None and 1_000 <= retry <= 10_000 for retry in last)


@pytest.mark.slow
async def test_a_revoked_token_ends_its_stream() -> None:
    async with world(rules=True) as at:
        alice = await at.user("alice", "produce,consume,describe,create t")
        root = await at.user("root")
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1}, headers=alice)
        async with listening(at, "/v1/topics/t/events", **alice) as found:
            await anext(found)
            async with at.client(root["Authorization"].removeprefix("Bearer ")) as client:
                [mine] = [each for each in await client.access.list_tokens() if each.user == "alice"]
                await client.access.revoke_token(mine.token_id)
            event = await next_data(found)
            assert (event.name, event.data["status"]) == ("problem", 401)
