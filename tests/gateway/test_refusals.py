"""What is refused before anything is asked of a broker: over raw sockets, for what HTTP libraries do not send."""

from __future__ import annotations

import asyncio
import gzip
import logging
import zlib

import pytest
from aiohttp import http_parser

from ledgermq.errors import InvalidConfig
from ledgermq_gateway.http import server
from tests.gateway.world import get, raw, status_of, world

PATHS = {
    "/v1/topics/a%2Fb": 400,
    "/v1/topics/%2e%2e": 400,
    "/v1//topics": 400,
    "/v1/topics/": 400,
    "/v1/topics/..": 400,
    "/v1/topics/.": 400,
    "/v1/./topics": 400,
    "//v1/topics": 400,
    "/v1/topics/a\\b": 400,
    "/v1/topics#x": 400,
    "http://evil.example/v1/topics": 421,
    "http://localhost/v1/topics": 421,
    "/v2/topics": 404,
    "/": 404,
    "/v1/topics?limit=1&limit=2": 400,
    "/v1/topics?nonsense=1": 400,
    "/v1/topics?limit=x": 400,
    "/v1/topics?limit=%ff%fe": 400,
}


async def test_paths_that_proxies_read_differently() -> None:
    async with world() as at:
        for path, wanted in PATHS.items():
            answer = await raw(at.port, get(path, "Connection: close"))
            assert status_of(answer) == wanted, (path, answer[:300])
        assert status_of(await raw(at.port, get("/v1/topics", "Connection: close"))) == 200


async def test_methods() -> None:
    async with world() as at:
        answer = await at.http.put("/v1/topics")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
        assert (await at.http.request("PROPFIND", "/v1/topics")).status_code == 405
        assert (await at.http.request("GET", "/v1/topics", content=b"x")).status_code == 400


REPEATED = (
    "Authorization: Bearer a",
    "Content-Type: application/json",
    "Idempotency-Key: a",
    "Last-Event-ID: a",
    "Host: localhost",
)


@pytest.mark.parametrize("line", REPEATED)
async def test_headers_that_decide_come_once(line: str) -> None:
    async with world() as at:
        lines = [line] if line.startswith("Host") else [line, f"{line}b"]
        assert status_of(await raw(at.port, get("/v1/topics", *lines, "Connection: close"))) == 400


SMUGGLED = [
    b"POST /v1/topics HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/topics HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    b"POST /v1/topics HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
    b"POST /v1/topics HTTP/1.1\nHost: a\nContent-Length: 3\n\nabc",
    b"GET /v1/topics HTTP/1.1\r\nHost : a\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",
]


@pytest.mark.parametrize("request_bytes", SMUGGLED, ids=range(len(SMUGGLED)))
async def test_ambiguous_requests_are_400_in_our_words(request_bytes: bytes) -> None:
    async with world() as at:
        answer = await raw(at.port, request_bytes)
        assert status_of(answer) == 400, answer[:300]
        assert b"application/problem+json" in answer


async def test_a_request_without_host_is_400() -> None:
    async with world() as at:
        answer = await raw(at.port, b"GET /v1/topics HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert status_of(answer) == 400


@pytest.mark.parametrize("length", [8_300, 17_000, 100_000])
async def test_an_overlong_token_is_repeated_nowhere(length: int, caplog: pytest.LogCaptureFixture) -> None:
    secret = "planted-secret-" * (length // 15)
    async with world(rules=True) as at:
        with caplog.at_level(logging.DEBUG):
            answer = await raw(at.port, get("/v1/topics", f"Authorization: Bearer {secret}", "Connection: close"))
        assert status_of(answer) in (400, 401, 431), answer[:200]
        assert b"planted" not in answer
        assert "planted" not in caplog.text


async def test_a_gateway_does_not_start_without_the_c_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.http_parser, "HttpRequestParser", http_parser.HttpRequestParserPy)
    with pytest.raises(InvalidConfig, match="C parser"):
        async with world():
            pass


FOREIGN = [
    ({"Host": "evil.example"}, 421),
    ({"Host": "127.0.0.1.evil.example"}, 421),
    ({"Host": "localhost", "Origin": "http://evil.example"}, 403),
    ({"Host": "localhost", "Origin": "null"}, 403),
    ({"Host": "localhost", "Sec-Fetch-Site": "cross-site"}, 403),
    ({"Host": "localhost", "Sec-Fetch-Site": "same-site"}, 403),
    ({"Host": "localhost:1", "Origin": "http://localhost:2"}, 403),
    ({"Host": "localhost", "Sec-Fetch-Site": "same-origin"}, 200),
    ({"Host": "localhost:8080", "Origin": "http://localhost:8080"}, 200),
    ({"Host": "[::1]:8080"}, 200),
    ({"Host": "127.0.0.1:8080"}, 200),
    ({"Host": "localhost", "Origin": "https://app.example.com", "Sec-Fetch-Site": "cross-site"}, 200),
]


@pytest.mark.parametrize(("headers", "wanted"), FOREIGN)
async def test_pages_of_other_sites_are_refused(headers: dict[str, str], wanted: int) -> None:
    """DNS rebinding, and requests that need no preflight; for every method."""
    settings = {"hosts": "localhost,127.0.0.1,[::1]", "cors_origins": "https://app.example.com"}
    async with world(**settings) as at:
        answer = await at.http.get("/v1/topics", headers=headers)
        assert answer.status_code == wanted, answer.text
        name = {"name": "t", "partitions": 1}
        made = await at.http.post("/v1/topics", json=name, headers=headers)
        assert made.status_code == (201 if wanted == 200 else wanted)
        origin = headers.get("Origin", "")
        shared = answer.headers.get("access-control-allow-origin")
        assert shared == (origin if "app.example" in origin else None)
        assert "access-control-allow-credentials" not in answer.headers


async def test_preflight_of_a_listed_origin() -> None:
    async with world(cors_origins="https://app.example.com") as at:
        answer = await at.http.options("/v1/topics", headers={"Origin": "https://app.example.com"})
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-methods"] == "GET, POST"
        assert (await at.http.options("/v1/topics", headers={"Origin": "https://evil.example"})).status_code == 403
        assert (await at.http.options("/v1/topics")).status_code == 405


@pytest.mark.parametrize("origins", ["*", "null", "https://*.example.com", "app.example.com", "https://a.example/path"])
def test_origins_are_exact(origins: str) -> None:
    from ledgermq_gateway.settings import GatewaySettings

    with pytest.raises(InvalidConfig, match="cors_origins"):
        GatewaySettings(cors_origins=origins)


async def test_bodies_that_grow_and_encodings_that_are_not_understood() -> None:
    async def post(body: bytes, encoding: str | None) -> int:
        headers = {"Content-Type": "application/octet-stream"}
        if encoding is not None:
            headers["Content-Encoding"] = encoding
        answer = await at.http.post("/v1/topics/t/records", content=body, headers=headers)
        return answer.status_code

    async with world(body_bytes_max=1_000_000) as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        bomb = gzip.compress(bytes(100_000_000), 1)
        assert await post(bomb, "gzip") == 413
        assert await post(bytes(1_000_001), None) == 413
        assert await post(gzip.compress(b"a") * 1_000, "gzip") == 400
        assert await post(gzip.compress(b"abc" * 100)[:-9], "gzip") == 400
        assert await post(zlib.compress(b"abc"), "gzip") == 400
        for encoding in ("gzip, gzip", "x-gzip", "br", "zstd", "deflate", "identity, gzip"):
            assert await post(gzip.compress(b"a"), encoding) == 415, encoding
        assert await post(gzip.compress(b"good"), "gzip") == 200
        assert at.gateway.service.memory.held_bytes == 0


async def test_a_slow_header_and_a_slow_body_end() -> None:
    async with world(header_timeout_ms=300, body_timeout_ms=300) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(b"GET /v1/topics HTTP/1.1\r\nHos")
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        lines = [b"POST /v1/topics/t/records HTTP/1.1", b"Host: a", b"Content-Type: application/json"]
        answer = await raw(at.port, b"\r\n".join([*lines, b"Content-Length: 100", b"", b"{"]))
        assert status_of(answer) == 408


async def test_a_body_that_ends_early_stores_nothing() -> None:
    body = b'{"value":"a"}\n{"value":"b"}\n'
    async with world() as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        for cut in range(len(body)):
            _, writer = await asyncio.open_connection("127.0.0.1", at.port)
            lines = ["POST /v1/topics/t/records HTTP/1.1", "Host: a", "Content-Type: application/x-ndjson"]
            head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
            writer.write(head.encode() + body[:cut])
            await writer.drain()
            writer.close()
        await asyncio.sleep(0.3)
        found = (await at.http.get("/v1/topics/t/offsets")).json()["offsets"]
        assert found == [{"partition": 0, "offset": 0}]


async def test_memory_is_one_budget() -> None:
    async with world(memory_bytes=2**20) as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        body = b'{"records":[{"value":"' + b"a" * 400_000 + b'"}]}'
        answer = await at.http.post("/v1/topics/t/records", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (503, "OVERLOADED")
        assert answer.headers["retry-after"] == "1"
        assert at.gateway.service.memory.held_bytes == 0


async def test_a_page_of_many_partitions_takes_as_much_memory_as_it_asks_for() -> None:
    async with world(memory_bytes=16 * 2**20, page_bytes_max=2**20) as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 64})
        page = "/v1/topics/t/records?wait_ms=1500&from=latest"
        wide = await asyncio.gather(*(at.http.get(page) for _ in range(9)))
        assert sorted(answer.status_code for answer in wide) == [200] * 8 + [503]
        narrow = await asyncio.gather(*(at.http.get(f"{page}&partitions=1") for _ in range(9)))
        assert {answer.status_code for answer in narrow} == {200}
        assert at.gateway.service.memory.held_bytes == 0


async def test_connections_are_bounded() -> None:
    async with world(connections_max=5) as at:
        held = [await asyncio.open_connection("127.0.0.1", at.port) for _ in range(12)]
        closed = 0
        for reader, _ in held:
            try:
                async with asyncio.timeout(0.3):
                    closed += await reader.read(1) == b""
            except TimeoutError:
                continue
        assert closed >= 12 - 5
        for _, writer in held:
            writer.close()


async def test_scans_make_no_series() -> None:
    async with world() as at:
        for number in range(50):
            await at.http.get(f"/scan/{number}")
            await at.http.get(f"/v1/topics?{number}=1")
        lines = at.gateway.metrics.render().decode().splitlines()
        assert len([line for line in lines if line.startswith("ledgermq_gateway_requests_total{")]) < 10
