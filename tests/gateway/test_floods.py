"""Connections and readers that hold what others need."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from ledgermq_gateway.admin_port import admin_port
from ledgermq_gateway.http.server import HttpServer
from tests.certificates import Authority
from tests.gateway.world import World, get, raw, status_of, world
from tests.waiting import until

MIB = 1024 * 1024
TYPED = {"Content-Type": "application/octet-stream"}


@asynccontextmanager
async def silent_reader(at: World, request: bytes) -> AsyncIterator[None]:
    """Hold a connection that has sent a request, and takes next to nothing of what comes."""
    loop = asyncio.get_running_loop()
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.setblocking(False)
        await loop.sock_connect(line, ("127.0.0.1", at.port))
        await loop.sock_sendall(line, request)
        yield


async def test_an_answer_counts_until_its_reader_has_taken_it() -> None:
    """It counted until it was made: so readers that took nothing held pages without any bound, for as long as they
    liked.
    """
    async with world(write_timeout_ms=2_000) as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        for _ in range(12):
            assert (await at.http.post("/v1/topics/t/records", content=bytes(MIB // 2), headers=TYPED)).is_success
        memory = at.gateway.service.memory
        async with silent_reader(at, get("/v1/topics/t/records?from=earliest")):
            await until(lambda: memory.held_bytes > 6 * MIB)
            await asyncio.sleep(0.5)
            assert memory.held_bytes > 6 * MIB
            await until(lambda: memory.held_bytes == 0)
            await until(lambda: len(at.gateway.server.connections) <= 1)  # the one of the well-behaved client
        answer = await at.http.get("/v1/topics/t/records?from=earliest")
        assert len(answer.json()["records"]) == 12, "an answer in pieces is whole"


async def test_repeated_requests_whose_answers_are_not_read_end() -> None:
    """Each answer is small; together they fill the buffers of the connection, and the next one waited for ever."""
    async with world(write_timeout_ms=500) as at, silent_reader(at, get("/openapi.json") * 500):
        await until(lambda: len(at.gateway.server.connections) == 1)
        await until(lambda: len(at.gateway.server.connections) == 0)


async def test_a_flood_of_connections_takes_no_ones_place() -> None:
    """Newcomers were closed, so strangers who kept their connections open kept out all others."""
    async with world(connections_max=6, header_timeout_ms=600_000, keepalive_ms=600_000) as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        async with at.http.stream("GET", "/v1/topics/t/events?from=earliest") as stream:
            lines = aiter(stream.aiter_lines())
            assert (await anext(lines)).startswith("retry")
            held = [await asyncio.open_connection("127.0.0.1", at.port) for _ in range(40)]
            async with httpx.AsyncClient(base_url=at.url, timeout=60) as newcomer:
                stored = await newcomer.post("/v1/topics/t/records", json={"records": [{"value": "here"}]})
                assert stored.status_code == 200
            async with asyncio.timeout(60):
                assert "here" in await anext(line async for line in lines if line.startswith("data"))
            assert len(at.gateway.server.connections) <= 6
            for _, writer in held:
                writer.close()


async def test_a_second_header_that_never_ends_is_closed() -> None:
    async with world(keepalive_ms=500) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(get("/livez") + b"GET /livez HTTP/1.1\r\nHos")
        async with asyncio.timeout(60):
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_handshakes_that_never_end_are_counted_and_closed(tmp_path: Path) -> None:
    """They were no connections until they ended, and were kept for a minute."""
    authority = Authority(tmp_path)
    pair = authority.issue("gateway")
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(pair.cert, pair.key)
    async with world(tls=server_tls, connections_max=10, header_timeout_ms=2_000) as at:
        held = [await asyncio.open_connection("127.0.0.1", at.port) for _ in range(30)]
        await until(lambda: len(at.gateway.server.connections) <= 10)
        context = ssl.create_default_context(cafile=str(authority.ca))
        async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{at.port}", verify=context, timeout=60) as http:
            assert (await http.get("/v1/topics")).status_code == 200
        for reader, writer in held:
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()


async def test_the_admin_port_is_bounded() -> None:
    async with world(admin_port=0) as at, admin_port(at.gateway) as port:
        assert port is not None
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        assert status_of(await raw(port, get("/livez", "Connection: close"))) == 200
        closed = await asyncio.gather(*(_is_closed(reader) for reader, _ in held))
        assert sum(closed) >= 100 - 32
        for _, writer in held:
            writer.close()


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(2):
            return await reader.read(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


async def test_a_look_up_answers_no_more_than_a_page() -> None:
    """It answered a thousand records, of any size, beyond the budget of memory."""
    async with world(page_bytes_max=MIB) as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        keyed = TYPED | {"LedgerMQ-Key": "k"}
        for _ in range(12):
            assert (await at.http.post("/v1/topics/t/records", content=bytes(900_000), headers=keyed)).is_success
        found = await at.http.get("/v1/topics/t/find?key=k&values=base64")
        assert found.status_code == 206
        records = found.json()["records"]
        left = sum(rest["end"] - rest["start"] for rest in found.json()["rest"])
        assert len(records) + left == 12, "what is not answered is told"
        await until(lambda: at.gateway.service.memory.held_bytes == 0)


async def test_a_connection_that_ends_before_its_answer_is_sent_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reader that leaves at that instant, or a bound of the connection, was logged as an error of the gateway."""
    sent = HttpServer._sent

    async def aborted(self: HttpServer, request: web.BaseRequest, response: web.StreamResponse) -> None:
        assert request.transport is not None
        if response.status == 200:
            request.transport.abort()
        await sent(self, request, response)

    monkeypatch.setattr(HttpServer, "_sent", aborted)
    async with world() as at:
        await at.http.post("/v1/topics", json={"name": "t", "partitions": 1})
        with pytest.raises(httpx.TransportError):
            await at.http.get("/v1/topics")
        monkeypatch.undo()
        assert (await at.http.get("/v1/topics")).json()["topics"][0]["name"] == "t"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
