"""Ranges of a topic as files: what is in them, their bounds, and that a part is never taken for the whole."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import httpx
import pyarrow as pa
import pytest
from aiohttp import web

from ledgermq.client.consuming.consumer import Consumer
from ledgermq.errors import Unavailable
from ledgermq_gateway.connections import STREAM_BUFFER_BYTES
from tests.gateway.world import World, raw, status_of, world

PATH = "/v1/topics/orders/download"


async def fill(at: World, count: int, partitions: int = 2) -> None:
    made = await at.http.post("/v1/topics", json={"name": "orders", "partitions": partitions})
    assert made.status_code == 201, made.text
    records = [{"value": str(n), "key": f"k{n}", "tag": "odd" if n % 2 else "even"} for n in range(count)]
    for first in range(0, count, 1000):
        stored = await at.http.post("/v1/topics/orders/records", json={"records": records[first : first + 1000]})
        assert stored.status_code == 200, stored.text


async def lines(at: World, query: str = "") -> list[Any]:
    answer = await at.http.get(PATH + query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_lines_of_a_whole_topic_and_of_a_range() -> None:
    async with world() as at:
        await fill(at, 3000)
        answer = await at.http.get(PATH)
        assert answer.headers["content-disposition"] == 'attachment; filename="orders.ndjson"'
        assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert sorted(int(each["value"]) for each in await lines(at)) == list(range(3000))
        assert len(await lines(at, "?limit=7")) == 7
        assert {each["tag"] for each in await lines(at, "?tags=odd&limit=50")} == {"odd"}
        part = await lines(at, "?partitions=1&from=10&to=20&values=base64")
        assert [each["offset"] for each in part] == list(range(10, 20))
        assert all("value_base64" in each for each in part)
        assert await lines(at, "?from=latest") == []
        some = await lines(at, "?partitions=1&from=1400&to=999999")
        assert [each["offset"] for each in some] == list(range(1400, 1400 + len(some))), "it waits for no record"
        assert await lines(at, "?from=1h&to=1h") == []


async def test_arrow() -> None:
    async with world() as at:
        await fill(at, 3000)
        answer = await at.http.get(f"{PATH}?format=arrow")
        assert answer.headers["content-disposition"] == 'attachment; filename="orders.arrow"'
        with pa.ipc.open_stream(io.BytesIO(answer.content)) as stream:
            table = stream.read_all()
        assert table.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "headers", "tag"]
        assert sorted(map(int, table.column("value").to_pylist())) == list(range(3000))
        answer = await at.http.get(f"{PATH}?format=arrow&from=latest")
        with pa.ipc.open_stream(io.BytesIO(answer.content)) as stream:
            assert stream.read_all().num_rows == 0


async def test_what_comes_later_is_left_out() -> None:
    async with world() as at:
        await fill(at, 2000, 1)
        async with at.http.stream("GET", PATH) as answer:
            chunks = answer.aiter_bytes()
            begun = await anext(chunks)
            await at.http.post("/v1/topics/orders/records", json={"records": [{"value": "late"}] * 100})
            rest = b"".join([chunk async for chunk in chunks])
        assert len((begun + rest).splitlines()) == 2000


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?from=5", 400),
        ("?to=5&partitions=0,1", 400),
        ("?format=csv", 400),
        ("?limit=0", 400),
        ("?filter=((", 400),
        ("?tags=a&filter=b", 400),
        ("?from=yesterday", 400),
        ("?partitions=9", 404),
    ],
)
async def test_what_is_refused(query: str, status: int) -> None:
    async with world() as at:
        await fill(at, 1)
        answer = await at.http.get(PATH + query)
        assert answer.status_code == status, answer.text
        assert "content-disposition" not in answer.headers


@pytest.mark.parametrize("kind", ["ndjson", "arrow"])
async def test_a_part_is_never_taken_for_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker goes away in the middle: the connection breaks instead of an end that looks like one."""
    name = "fetch" if kind == "ndjson" else "fetch_arrow"
    true, calls = getattr(Consumer, name), 0

    async def fetch(self: Consumer, *given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise Unavailable("no broker serves it")
        return await true(self, *given, **named)

    async with world() as at:
        await fill(at, 12_000, 1)
        monkeypatch.setattr(Consumer, name, fetch)
        with pytest.raises(httpx.RemoteProtocolError):
            await at.http.get(f"{PATH}?format={kind}")
        monkeypatch.setattr(Consumer, name, true)
        assert len(await lines(at, "?limit=12000")) == 12_000


@pytest.mark.parametrize("kind", ["ndjson", "arrow"])
async def test_a_batch_that_decodes_to_much_takes_of_the_budget(kind: str) -> None:
    """A slow reader holds it for as long as it likes: 20 downloads of batches of 256 MiB would end the gateway."""
    async with world(memory_bytes=10 * 1024 * 1024) as at:
        await fill(at, 1, 1)
        rows = pa.table({"value": [b"x" * 100_000] * 150})
        async with at.client() as client, client.producer(batch_bytes_max=2**24, request_bytes_max=2**24) as producer:
            await (await producer.send_batch("orders", rows))
        for limit in (1000, 2):  # a large chunk; a small one of a large batch
            with pytest.raises(httpx.RemoteProtocolError):
                await at.http.get(f"{PATH}?format={kind}&limit={limit}")
        async with asyncio.timeout(30):  # the connection breaks before the rest ends
            while at.gateway.service.memory.held_bytes:
                await asyncio.sleep(0.01)
        assert len(await lines(at, "?to=1&partitions=0")) == 1


async def test_http_1_0_is_refused_because_it_shows_no_end() -> None:
    async with world() as at:
        await fill(at, 1)
        answer = await raw(at.port, f"GET {PATH} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        assert status_of(answer) == 400, answer
        assert b"HTTP/1.1" in answer.split(b"\r\n\r\n")[1]
        assert (at.gateway.service.streams.count, at.gateway.service.memory.held_bytes) == (0, 0)


async def test_a_slow_reader_has_its_time_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk may have megabytes: a reader that takes some of it all the time loses nothing."""
    sizes, true = list[int](), web.StreamResponse.write

    async def write(self: web.StreamResponse, data: bytes) -> None:
        sizes.append(len(data))
        await true(self, data)

    async with world() as at:
        await fill(at, 1, 1)
        for _ in range(2):
            body = {"records": [{"value": "x" * 400_000}]}
            assert (await at.http.post("/v1/topics/orders/records", json=body)).status_code == 200
        monkeypatch.setattr(web.StreamResponse, "write", write)
        found = await lines(at)
    assert [len(each["value"]) for each in found] == [1, 400_000, 400_000]
    assert sum(sizes) > 800_000
    assert max(sizes) <= STREAM_BUFFER_BYTES


async def test_a_reader_that_takes_nothing_holds_little_and_loses_its_download() -> None:
    async with world(write_timeout_ms=500) as at:
        made = await at.http.post("/v1/topics", json={"name": "orders", "partitions": 1})
        assert made.status_code == 201
        for _ in range(40):
            body = {"records": [{"value": "x" * 100_000}] * 10}
            assert (await at.http.post("/v1/topics/orders/records", json=body)).status_code == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port, limit=1024)
        writer.write(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await writer.drain()
        async with asyncio.timeout(30):
            while at.gateway.service.streams.count == 0:
                await asyncio.sleep(0.01)
            assert at.gateway.service.memory.held_bytes <= 8 * 1024 * 1024
            while at.gateway.service.streams.count:
                await asyncio.sleep(0.05)
        assert at.gateway.service.memory.held_bytes == 0
        writer.close()
        del reader
