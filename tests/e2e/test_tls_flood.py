"""Connections that never finish their handshake hold no thread and no call of a broker, and end soon."""

from __future__ import annotations

import asyncio
import resource
import socket
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import ledgermq
from ledgermq_broker.ports.grpc_server import connections_max
from tests.certificates import Authority
from tests.e2e.processes import BrokerProcess, BrokerProcesses

HALF_OPEN = 500
FIRST_BYTES_OF_A_HANDSHAKE = bytes([22, 3, 1, 2, 0, 1, 0])
RECORDS = 150
SLOW_S = 90.0
HANDSHAKE_S = 10.0
"""How long a broker waits for the end of a handshake. Row X1 of the benchmarks measures what TLS costs."""


@pytest.fixture
def open_files() -> Iterator[None]:
    """This process and the brokers that it starts may open what a flood needs."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * HALF_OPEN
    if before[1] != resource.RLIM_INFINITY and before[1] < wanted:
        pytest.skip(f"this machine lets a process open {before[1]} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, before[0]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def threads_of(broker: BrokerProcess) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads"))


async def waits(producer: ledgermq.Producer) -> list[float]:
    """Seconds until each of some records is acknowledged, one at a time."""
    loop, found = asyncio.get_running_loop(), []
    for _ in range(RECORDS):
        begun = loop.time()
        await producer.send("orders", "x" * 100)
        found.append(loop.time() - begun)
    return found


def half_open(stack: ExitStack, address: str) -> list[socket.socket]:
    """Half of them say nothing, the others begin a handshake."""
    host, _, port = address.rpartition(":")
    lines = []
    for number in range(HALF_OPEN):
        line = stack.enter_context(socket.create_connection((host, int(port)), timeout=SLOW_S))
        if number % 2:
            line.sendall(FIRST_BYTES_OF_A_HANDSHAKE)
        lines.append(line)
    return lines


@pytest.mark.slow
async def test_half_open_connections_hold_nobody_up(
    tmp_path: Path, open_files: None, record_property: pytest.RecordProperty
) -> None:
    """A producer's latency stays, a newcomer is let in, no thread is held, and each line is closed."""
    authority = Authority(tmp_path)
    pair = authority.issue("broker")
    options = (f"--tls-cert-file={pair.cert}", f"--tls-key-file={pair.key}")
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as brokers, ExitStack() as stack:
        broker = brokers.start(*options)
        async with (
            ledgermq.connect(broker.address, tls=authority.tls(), timeout_s=SLOW_S) as client,
            client.producer() as producer,
        ):
            await client.create_topic("orders", 1)
            await waits(producer)
            alone, threads = statistics.median(await waits(producer)), threads_of(broker)
            lines = await asyncio.to_thread(half_open, stack, broker.address)
            beside = statistics.median(await waits(producer))
            async with ledgermq.connect(broker.address, tls=authority.tls(), timeout_s=SLOW_S) as newcomer:
                assert len(await newcomer.list_topics()) == 1
            record_property("median_ms", f"{1000 * alone:.2f} alone, {1000 * beside:.2f} beside {HALF_OPEN} half-open")
            assert threads_of(broker) <= threads + 8
            assert beside < 5 * alone + HANDSHAKE_S / 10, "who waits for half-open connections waits for their end"
            for line in lines:
                assert await asyncio.to_thread(line.recv, 1) == b""  # closed by the broker
            assert (await waits(producer))[-1] < SLOW_S


def test_a_broker_keeps_files_for_itself(open_files: None) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
        assert connections_max() == 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
