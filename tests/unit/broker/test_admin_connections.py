"""The admin port under a flood of connections: it answers, holds a bounded number, and closes idle ones."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from ledgermq_broker.health.readiness import Health
from ledgermq_broker.ports import admin_server
from ledgermq_broker.ports.admin_server import ADMIN_PORT, AdminServer
from tests.certificates import Authority
from tests.waiting import until

IDLE = 200
WAIT_S = 60.0


@asynccontextmanager
async def admin(tls: ssl.SSLContext | None = None) -> AsyncIterator[AdminServer]:
    server = AdminServer(Health(), lambda: b"up 1\n" * 100_000)
    await server.listen("127.0.0.1", 0, tls)
    yield server
    await server.close()


async def idle_lines(port: int, first: bytes) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    lines = []
    for _ in range(IDLE):
        line = await asyncio.open_connection("127.0.0.1", port)
        line[1].write(first)
        lines.append(line)
    return lines


async def open_of(lines: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> int:
    """How many of them the server has not closed."""

    async def is_open(reader: asyncio.StreamReader) -> bool:
        with suppress(ConnectionError, TimeoutError):
            return bool(await asyncio.wait_for(reader.read(1), 0.5))
        return not reader.at_eof() and reader.exception() is None

    return sum(await asyncio.gather(*(is_open(reader) for reader, _ in lines)))


@pytest.fixture(params=["plain", "tls"])
def contexts(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    if request.param == "plain":
        return None, None
    authority = Authority(tmp_path)
    pair = authority.issue("broker")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair.cert, pair.key)
    return server, ssl.create_default_context(cafile=str(authority.ca))


@pytest.mark.parametrize("first", [b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n"], ids=["silent", "half a request"])
async def test_idle_connections_take_nothing_from_others(
    contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None], first: bytes
) -> None:
    server_tls, client_tls = contexts
    async with admin(server_tls) as server:
        lines = await idle_lines(server.port, first)
        assert await open_of(lines) <= ADMIN_PORT.most // 2
        scheme = "http" if client_tls is None else "https"
        async with aiohttp.ClientSession() as session:
            for _ in range(3):
                url = f"{scheme}://127.0.0.1:{server.port}/metrics"
                async with session.get(url, ssl=client_tls or True) as answer:
                    assert (await answer.text()).count("up 1") == 100_000
        for _, writer in lines:
            writer.close()


async def test_a_connection_without_a_request_is_closed(
    contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_server, "ADMIN_PORT", replace(ADMIN_PORT, request_s=0.3))
    async with admin(contexts[0]) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), WAIT_S)  # ends with the connection
        writer.close()


async def test_a_connection_whose_answer_is_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_server, "ADMIN_PORT", replace(ADMIN_PORT, kept_s=0.5))
    async with admin() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
        await until(lambda: bool(server._connections._open))
        await until(lambda: not server._connections._open)
        writer.close()
