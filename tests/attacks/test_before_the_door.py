"""Callers without a credential take nothing from others: calls, memory, connections, health.

Each attack is bounded in number and time. Beside it a well-behaved principal sends and reads.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from ledgermq.protocol.limits import MESSAGE_BYTES_MAX
from ledgermq.protocol.methods import LIST_OFFSETS, PRODUCE
from ledgermq_broker.access.audit.sums import LINES_PER_SOURCE, MINUTE_S
from ledgermq_broker.admission.arriving_requests import BYTES_MAX, STALE_BYTES_MAX
from ledgermq_broker.ports.grpc_server import CONNECTION_STREAMS_MAX
from ledgermq_broker.ports.standard_services import CONNECTION_WATCHES_MAX
from tests.attacks.cluster import SEND_S_MAX, SLOW_S, Attacked, attacked, raw_channel, slowest_send_s, status_of
from tests.attacks.raw_http2 import DATA, FRAME_BYTES, HEADERS, RST_STREAM, RawHttp2, frame
from tests.waiting import until

FLOOD_S = 4.0
HALVES, HALVES_S_MAX = 40, 30.0
MEMORY_MAX = 150_000_000
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Attacked]:
    async with attacked(tmp_path) as found:
        yield found


async def others_go_on(at: Attacked, seconds: float = FLOOD_S) -> None:
    async with at.client("victim") as client, client.producer() as producer:
        assert await slowest_send_s(producer, seconds) < SEND_S_MAX
        assert await client.list_offsets("orders")


@pytest.mark.slow
async def test_watches_of_health(at: Attacked) -> None:
    """2,000 of them, on one connection, were all calls of the broker."""
    async with raw_channel(at) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        calls = [watch(b"") for _ in range(2500)]
        readers = [asyncio.create_task(status_of(anext(aiter(call)))) for call in calls]
        await others_go_on(at)
        await until(lambda: sum(reader.done() for reader in readers) >= CONNECTION_STREAMS_MAX - 10, SLOW_S)
        done = [reader.result() for reader in readers if reader.done()]
        assert sum(code is grpc.StatusCode.OK for code, _ in done) <= CONNECTION_WATCHES_MAX
        for call in calls:
            call.cancel()
        async with raw_channel(at) as other:
            answer = await other.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=SLOW_S)
            assert health_pb2.HealthCheckResponse.FromString(answer).status == 1


@pytest.mark.slow
async def test_reflection_needs_a_credential(at: Attacked) -> None:
    async with raw_channel(at) as channel:
        info = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        code, _ = await status_of(info(iter([b"\x3a\x00"]), timeout=SLOW_S).read())
        assert code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        async with asyncio.timeout(SLOW_S):  # a broker that was kept waiting may not be sure of its rules yet
            while True:
                call = info(iter([b"\x3a\x00"]), metadata=at.metadata("nobody"), timeout=SLOW_S)
                try:
                    assert b"ledgermq.v1.Broker" in await call.read()
                    break
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    await asyncio.sleep(0.2)


@pytest.mark.slow
async def test_headers_without_a_request(at: Attacked) -> None:
    """2,600 of them were all calls of the broker, for as long as their caller liked."""
    line = RawHttp2(at.host, at.port)
    await asyncio.to_thread(line.read_frames, 0.5)
    for _ in range(2600):
        if not line.send(line.headers(LIST_OFFSETS.path)):
            break
    await others_go_on(at)
    assert await asyncio.to_thread(line.is_closed, SLOW_S), "many refused calls end a connection"
    line.close()


@pytest.mark.slow
async def test_a_refusal_comes_before_the_request(at: Attacked) -> None:
    line = RawHttp2(at.host, at.port)
    await asyncio.to_thread(line.read_frames, 0.5)
    line.send(line.headers(LIST_OFFSETS.path))
    first = await asyncio.to_thread(line.first_frame_of, line.stream, SLOW_S)
    assert first == HEADERS, "trailers, and no data was asked for"
    line.close()


@pytest.mark.slow
async def test_rapid_resets(at: Attacked) -> None:
    """Most calls of others ended CANCELLED, because gRPC holds a bounded number of calls that wait for a handler."""

    def flood() -> tuple[int, int]:
        begun, sent, lines = time.monotonic(), 0, 0

        def is_on() -> bool:
            passed_s = time.monotonic() - begun
            return passed_s < FLOOD_S or (lines < 2 and passed_s < SLOW_S)

        while is_on():
            line = RawHttp2(at.host, at.port)
            lines += 1
            while is_on():
                some = b"".join(line.headers(LIST_OFFSETS.path) + line.reset(line.stream) for _ in range(100))
                if not line.send(some):
                    break
                sent += 100
            line.close()
        return sent, lines

    flooding = asyncio.create_task(asyncio.to_thread(flood))
    await others_go_on(at)
    sent, lines = await flooding
    assert lines > 1, f"the connection was never broken, after {sent} resets"


@pytest.mark.slow
async def test_complete_calls_without_a_credential(at: Attacked) -> None:
    async def flood() -> None:
        async with raw_channel(at) as channel:
            call = channel.unary_unary(LIST_OFFSETS.path)
            end = time.monotonic() + FLOOD_S
            while time.monotonic() < end:
                await asyncio.gather(*(status_of(call(b"", timeout=SLOW_S)) for _ in range(200)))

    flooding = asyncio.create_task(flood())
    await others_go_on(at)
    await flooding


@pytest.mark.slow
async def test_refused_calls_do_not_fill_the_disk_by_the_audit_log(at: Attacked) -> None:
    """Each had a line: 37 GB a day from one process."""
    begin_s, refused = time.monotonic(), 0
    for _ in range(10):  # connections with many refused calls are broken, so not every call is judged
        async with raw_channel(at) as channel:
            call = channel.unary_unary(LIST_OFFSETS.path)
            codes = [code for code, _ in await asyncio.gather(*(status_of(call(b"", timeout=5.0)) for _ in range(100)))]
            assert grpc.StatusCode.OK not in codes
        refused += sum(code in REFUSED for code in codes)
    minutes = 2 + int((time.monotonic() - begin_s) / MINUTE_S)
    lines = at.audit.read_text().splitlines()
    assert LINES_PER_SOURCE <= len(lines) <= minutes * (LINES_PER_SOURCE + 1), "one host is one source"
    assert {json.loads(line)["event"] for line in lines} <= {"refused", "summed"}
    assert refused > 2 * (LINES_PER_SOURCE + 1), "without the bound there would be more lines"


@pytest.mark.slow
@pytest.mark.parametrize("path", [LIST_OFFSETS.path, "/grpc.health.v1.Health/Check"])
async def test_requests_of_strangers_are_not_received(at: Attacked, path: str) -> None:
    """60 of them, each but its last byte, were 1.7 GB in 1.6 s, and stayed."""
    await others_go_on(at, 1)
    before = at.rss_bytes()
    prefix = b"\0" + MESSAGE_BYTES_MAX.to_bytes(4, "big")

    def fill() -> None:
        for _ in range(60):
            line = RawHttp2(at.host, at.port)
            line.send(line.headers(path) + frame(DATA, 0, 1, prefix))
            for _ in range(4):
                if not line.send(frame(DATA, 0, 1, bytes(FRAME_BYTES - 10))):
                    break
            lines.append(line)

    lines: list[RawHttp2] = []
    await asyncio.to_thread(fill)
    first = await asyncio.to_thread(lines[0].first_frame_of, 1, SLOW_S)
    assert first in (HEADERS, RST_STREAM), "it is answered"
    assert at.rss_bytes() - before < MEMORY_MAX
    await others_go_on(at, 1)
    for line in lines:
        line.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", [LIST_OFFSETS.path, PRODUCE.path])
async def test_halves_of_requests_of_a_principal_are_bounded(at: Attacked, path: str) -> None:
    """A principal may send requests, so the bytes on their way are counted: 40 halves were 1.3 GB."""
    await others_go_on(at, 1)
    before, most = at.rss_bytes(), 0
    prefix = b"\0" + MESSAGE_BYTES_MAX.to_bytes(4, "big")
    token = ("authorization", f"Bearer {at.tokens['nobody']}")
    sent, broken, stack = 0, 0, ExitStack()

    def fill() -> None:
        nonlocal most, sent, broken
        end = time.monotonic() + HALVES_S_MAX
        for number in range(HALVES):
            line = stack.enter_context(closing(RawHttp2(at.host, at.port)))
            line.send(line.headers(path, [token]) + frame(DATA, 0, 1, prefix))
            line.read_frames(0.02)
            share_s = (end - time.monotonic()) / (HALVES - number)
            sent += line.send_data(1, MESSAGE_BYTES_MAX - 1, max(0.0, share_s))
            broken += line.is_broken
            most = max(most, at.rss_bytes() - before)

    with stack:
        filling = asyncio.create_task(asyncio.to_thread(fill))
        await others_go_on(at, 8)
        await filling
        await others_go_on(at, 2)
    assert broken or sent > STALE_BYTES_MAX, "the flood is large enough to tell"
    assert most < BYTES_MAX + 300_000_000
