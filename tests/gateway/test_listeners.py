"""Clients that vanish, take nothing, or send a byte a second, at a gateway in a process of its own: its
memory stays within its bounds, and others are served meanwhile.
"""

from __future__ import annotations

import asyncio
import re
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

import ledgermq
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.gateway.test_process import started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MIB = 1024 * 1024
SLACK_BYTES = 96 * MIB
"""What the process may take besides: its code, caches of its client, and what the allocator keeps."""
LISTENER_BYTES = 64 * 1024
"""What a listener may take that is not behind."""
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def rss_bytes_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def open_files_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@contextmanager
def open_files(most: int) -> Iterator[None]:
    """Let processes that start within open so many files; 0: as many as this one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most or soft, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def gateway(
    tmp_path: Path, memory_bytes: int, *options: str, files_of_broker: int = 0
) -> AsyncIterator[tuple[int, int, str]]:
    """Yield the process id and the port of a gateway, and its brokers."""
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), (*QUICK, "--constant-calls-max=10000")) as brokers:
        with open_files(files_of_broker):
            await asyncio.to_thread(brokers.start_all, 1)
        given = ("--streams-max=4000", "--streams-per-principal-max=4000", "--connections-max=8000")
        memory = f"--memory-bytes={memory_bytes}"
        command = ("gateway", "--target", brokers.addresses, "--port", "0", memory, *given, *options)
        process, port = await started(tmp_path / "gateway.log", r"http://127.0.0.1:(\d+)", *command)
        try:
            yield process.pid, port, brokers.addresses
            assert process.returncode is None
        finally:
            process.kill()
            await process.wait()


async def listen(port: int, topic: str = "t", status: int = 200) -> Ends:
    """Open a stream of events, and return the connection behind its header."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(
        f"GET /v1/topics/{topic}/events?from=latest&values=text HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        "Accept: text/event-stream\r\n\r\n".encode()
    )
    header = await reader.readuntil(b"\r\n\r\n")
    assert re.match(rb"HTTP/1.1 %d" % status, header), header[:300]
    return reader, writer


async def until_heard(reader: asyncio.StreamReader, wanted: bytes) -> None:
    while wanted not in await reader.readline():
        pass


async def close(*ends: Ends) -> None:
    for _, writer in ends:
        writer.transport.abort()
    for _, writer in ends:
        with suppress(OSError):
            await writer.wait_closed()


async def test_listeners_that_take_nothing_or_vanish_leave_memory_and_others_alone(tmp_path: Path) -> None:
    """Each gets 40 MB to read: the slow ones are dropped, and those that vanished free their streams."""
    async with (
        gateway(tmp_path, 256 * MIB, "--write-timeout-ms=2000") as (pid, port, target),
        ledgermq.connect(target) as client,
    ):
        await client.create_topic("t", 1)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            good = await listen(port)
            ends = await asyncio.gather(*(listen(port) for _ in range(200)))
            opened = [good, *ends]
            for _, writer in ends[100:]:
                writer.transport.abort()
            before = rss_bytes_of(pid)
            heard = asyncio.create_task(until_heard(good[0], b"the last one"))
            for number in range(80):
                answer = await http.post("/v1/topics/t/records", json={"records": [{"value": "x" * 500_000}]})
                assert answer.status_code in (200, 503), (number, answer.text)
            async with asyncio.timeout(60):
                while (
                    await http.post("/v1/topics/t/records", json={"records": [{"value": "the last one"}]})
                ).status_code != 200:
                    await asyncio.sleep(0.5)
            async with asyncio.timeout(120):
                await heard
            assert rss_bytes_of(pid) - before <= 256 * MIB + SLACK_BYTES
            async with asyncio.timeout(60):
                while len(ends) > 0:
                    reader, _ = ends[-1]
                    with suppress(ConnectionError):
                        while await reader.read(2**20):
                            pass
                    ends = ends[:-1]
        await close(*opened)


async def test_listeners_at_their_bound_leave_calls_and_connections_to_producers(tmp_path: Path) -> None:
    """400 streams are what a gateway has by default. Then a new one is refused, and none that is open is closed. The
    broker may open 1,024 files, the usual number, so it takes 512 connections.
    """
    bound = ("--streams-max=400", "--streams-per-principal-max=400")
    async with gateway(tmp_path, 512 * MIB, *bound, files_of_broker=1024) as (_, port, target):
        async with ledgermq.connect(target) as client:
            await client.create_topic("t", 4)
        ends: list[Ends] = []
        for _ in range(8):
            ends += await asyncio.gather(*(listen(port) for _ in range(50)))
        await close(await listen(port, status=503))
        heard = [asyncio.create_task(until_heard(reader, b"by a newcomer")) for reader, _ in ends]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            for number in range(100):
                answer = await http.post("/v1/topics/t/records", json={"records": [{"value": str(number)}]})
                assert answer.status_code == 200, answer.text
        async with ledgermq.connect(target) as newcomer, newcomer.producer() as producer:
            for number in range(100):
                await producer.send("t", b"native", key=str(number))
            await producer.send("t", b"by a newcomer")
        async with asyncio.timeout(180):
            await asyncio.gather(*heard)
        await close(*ends)


async def test_2000_listeners_are_bounded_in_memory_and_share_a_read(tmp_path: Path) -> None:
    """All hear what is produced. Then most of them take nothing of 20 MB, and the others go on."""
    async with (
        gateway(tmp_path, 512 * MIB, "--write-timeout-ms=5000") as (pid, port, target),
        ledgermq.connect(target) as client,
    ):
        await client.create_topic("t", 1)
        before = rss_bytes_of(pid)
        ends: list[Ends] = []
        for _ in range(20):
            ends += await asyncio.gather(*(listen(port) for _ in range(100)))
        assert open_files_of(pid) < 2_000 + 50, "a connection for each listener, and few to brokers"
        async with client.producer() as producer:
            heard = [asyncio.create_task(until_heard(reader, b"first")) for reader, _ in ends]
            await producer.send("t", b"first")
            async with asyncio.timeout(120):
                await asyncio.gather(*heard)
            assert rss_bytes_of(pid) - before <= 2_000 * LISTENER_BYTES + SLACK_BYTES
            heard = [asyncio.create_task(until_heard(reader, b"last")) for reader, _ in ends[:20]]
            for _ in range(200):
                await producer.send("t", b"x" * 100_000)
                await asyncio.sleep(0.02)
            await producer.send("t", b"last")
            async with asyncio.timeout(240):
                await asyncio.gather(*heard)
        assert rss_bytes_of(pid) - before <= 512 * MIB + SLACK_BYTES
        await close(*ends)


async def test_clients_that_send_a_byte_a_second_are_closed_and_others_served(tmp_path: Path) -> None:
    async with gateway(tmp_path, 256 * MIB, "--header-timeout-ms=3000", "--body-timeout-ms=3000") as (
        pid,
        port,
        target,
    ):
        async with ledgermq.connect(target) as client:
            await client.create_topic("t", 1)
        before = rss_bytes_of(pid)

        async def drip(begin: bytes) -> bytes:
            """Send a byte each second until the gateway closes; return what it said."""
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(begin)
                for _ in range(60):
                    writer.write(b"x")
                    await writer.drain()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(1):
                            return await reader.read(4096)
                raise AssertionError("it was not closed")
            except ConnectionError:
                return b""
            finally:
                await close((reader, writer))

        path = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % port
        in_header = [asyncio.create_task(drip(path + b"X-Slow: ")) for _ in range(150)]
        more = b"Content-Type: application/octet-stream\r\nContent-Length: 1000\r\n\r\n"
        in_body = [asyncio.create_task(drip(path + more)) for _ in range(150)]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            for number in range(20):
                answer = await http.post("/v1/topics/t/records", json={"records": [{"value": str(number)}]})
                assert answer.status_code == 200, answer.text
            await asyncio.gather(*in_header)
            said = await asyncio.gather(*in_body)
            assert {text[:12] for text in said} <= {b"", b"HTTP/1.1 408"}, set(said)
            page = (await http.get("/v1/topics/t/partitions/0/records?from=earliest&values=text")).json()
            assert [record["value"] for record in page["records"]] == [str(number) for number in range(20)]
        assert rss_bytes_of(pid) - before <= SLACK_BYTES
