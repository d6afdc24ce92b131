"""How much of requests is on its way, by the counters of the kernel, and which connections are broken."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import pytest

from ledgermq_broker.admission.arriving_requests import (
    BYTES_MAX,
    IS_COUNTED,
    STALE_BYTES_MAX,
    STALE_S,
    ArrivingRequests,
    counts_of_connections,
)
from tests.virtual_time import virtual

MB = 1_000_000


def peer(number: int) -> str:
    return f"ipv4:10.0.0.1:{number}"


def address(number: int) -> tuple[str, int]:
    return "10.0.0.1", number


@virtual
async def test_stale_halves_of_requests_are_broken_and_busy_connections_are_not() -> None:
    cut: list[str] = []
    arriving = ArrivingRequests(cut.append)
    stale = STALE_BYTES_MAX // (33 * MB) + 1
    with ExitStack() as stack:
        good = stack.enter_context(arriving.reading(peer(0), "user:good"))
        for number in range(1, stale + 1):
            stack.enter_context(arriving.reading(peer(number), "user:bad"))
        counts = {address(number): (0, 33 * MB) for number in range(1, stale + 1)}
        counts[address(0)] = (0, 500 * MB)
        good.message(480 * MB, 0.0)
        assert arriving.judge(counts, 1.0) == [], "nothing is stale yet"
        await asyncio.sleep(2 * STALE_S)
        good.message(100 * MB, asyncio.get_running_loop().time())
        counts[address(0)] = (0, 600 * MB)
        broken = arriving.judge(counts, asyncio.get_running_loop().time())
    assert broken
    assert broken == cut
    assert peer(0) not in broken
    assert len(broken) < stale, "only what is too much"


@virtual
async def test_above_the_hard_bound_the_sharer_with_the_most_pays() -> None:
    cut: list[str] = []
    arriving = ArrivingRequests(cut.append)
    counts = {}
    with ExitStack() as stack:
        for number in range(45):
            sharer = "user:bad" if number < 40 else "user:good"
            stack.enter_context(arriving.reading(peer(number), sharer))
            counts[address(number)] = (0, 33 * MB if number < 40 else 30 * MB)
        arriving.judge(counts, 0.1)
    assert 1 <= len(cut) <= 40
    assert all(name in {peer(number) for number in range(40)} for name in cut)
    assert 45 * 33 * MB - len(cut) * 33 * MB <= BYTES_MAX + 33 * MB


@virtual
async def test_what_acknowledges_answers_and_what_was_received_is_not_on_its_way() -> None:
    cut: list[str] = []
    arriving = ArrivingRequests(cut.append)
    loop = asyncio.get_running_loop()
    with arriving.reading(peer(1), "user:a") as one:
        brought = acked = 0
        for _ in range(1000):
            acked, brought = acked + 100 * MB, brought + 4 * MB + MB
            one.message(4 * MB, loop.time())
            arriving.judge({address(1): (acked, brought)}, loop.time())
            assert one.on_way < MB
    assert not cut
    arriving.judge({address(1): (acked, brought + 900 * MB)}, loop.time())
    assert not cut, "no request is waited for"


@pytest.mark.skipif(not IS_COUNTED, reason="this system does not count the bytes of a connection")
async def test_the_kernel_counts_what_a_connection_has_brought() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            client.sendall(bytes(100_000))
            left = 100_000
            while left:
                left -= len(accepted.recv(left))
            counts, files = counts_of_connections()
            assert counts[client.getsockname()][1] == 100_000
            assert files > 3
