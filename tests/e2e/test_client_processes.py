"""The SDK over gRPC on real broker processes that are killed and stopped in mid-stream, and on
ports without a listener.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import ledgermq
from ledgermq import errors
from tests.e2e.processes import BrokerProcesses
from tests.servers.loopback_server import serving
from tests.worlds.consumed import read_messages

RECORDS = 12_000
KEYS = 16
REQUEST_S = 100.0


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerProcesses]:
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri()) as processes:
        processes.start_all(3)
        yield processes


@pytest.fixture
async def client(brokers: BrokerProcesses) -> AsyncIterator[ledgermq.Client]:
    async with ledgermq.connect(brokers.addresses) as client:
        await client.create_topic("t", 8)
        yield client


async def owner_of_most(client: ledgermq.Client) -> str:
    owners = [partition.owner for partition in (await client.describe_topic("t")).partitions]
    return max(set(owners), key=owners.count)


async def produce_while(client: ledgermq.Client, disturb: AsyncIterator[None]) -> list[ledgermq.SendResult]:
    """All records, with a disturbance now and then; what was answered of each, in the order of
    sending.
    """
    deliveries: list[ledgermq.Delivery] = []
    async with client.producer(linger_ms=1, request_timeout_s=REQUEST_S) as producer:
        for first in range(0, RECORDS, 200):
            records = [
                ledgermq.Record(b"%d" % number, key=b"k%d" % (number % KEYS)) for number in range(first, first + 200)
            ]
            deliveries += await producer.send_many("t", records)
            await asyncio.sleep(0.02)
            await anext(disturb, None)
    return [delivery.result() for delivery in deliveries]


async def check_everything(client: ledgermq.Client, results: list[ledgermq.SendResult]) -> None:
    by_key: dict[bytes | None, list[int]] = {}
    messages = await read_messages(client)
    for message in messages:
        number = int(message.value or b"")
        assert results[number][:3] == message[:3], "each record is where its answer said"
        by_key.setdefault(message.key, []).append(number)
    assert len(messages) == RECORDS, "each record is there once"
    assert by_key == {b"k%d" % key: list(range(key, RECORDS, KEYS)) for key in range(KEYS)}, (
        "in the order of sending, by key"
    )


@pytest.mark.slow
async def test_nothing_is_lost_or_doubled_when_an_owner_is_killed(
    brokers: BrokerProcesses, client: ledgermq.Client
) -> None:
    async def disturb() -> AsyncIterator[None]:
        for _ in range(20):
            yield
        brokers.kill(brokers.at(await owner_of_most(client)))

    await check_everything(client, await produce_while(client, disturb()))


@pytest.mark.slow
async def test_nothing_is_lost_or_doubled_when_an_owner_stands_still(
    brokers: BrokerProcesses, client: ledgermq.Client
) -> None:
    paused = []

    async def disturb() -> AsyncIterator[None]:
        for _ in range(20):
            yield
        paused.append(brokers.at(await owner_of_most(client)))
        brokers.pause(paused[0])

    begun = time.monotonic()
    results = await produce_while(client, disturb())
    assert time.monotonic() - begun < REQUEST_S, "others are asked long before the request's time is up"
    await check_everything(client, results)
    brokers.resume(paused[0])
    async with client.producer() as producer:
        await asyncio.gather(*(producer.send("t", b"after", partition=partition) for partition in range(8)))


async def test_requests_fail_when_no_process_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening: connections are refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with ledgermq.connect(address, timeout_s=1) as client:
            begun = time.monotonic()
            with pytest.raises(errors.Unavailable, match=address):
                await client.list_topics()
            producer = client.producer(delivery_timeout_s=1)
            with pytest.raises((errors.Unavailable, errors.DeadlineExceeded)):
                await producer.send("t", b"v")
            with pytest.raises(errors.Unavailable):
                await client.consumer("t", request_timeout_s=1).fetch()
            assert time.monotonic() - begun < 20
            await producer.abort()


async def test_a_black_hole_does_not_hold_the_client() -> None:
    """A port that takes connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        async with ledgermq.connect(address, timeout_s=1, attempt_timeout_s=0.5) as client:
            begun = time.monotonic()
            with pytest.raises(errors.Unavailable):
                await client.list_topics()
            assert time.monotonic() - begun < 10


async def test_a_server_that_is_no_broker_is_named() -> None:
    """A web server, perhaps: it answers, but not gRPC."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with serving(answer) as endpoint:
        address = endpoint.removeprefix("http://")
        async with ledgermq.connect(address, timeout_s=1) as client:
            with pytest.raises(errors.LedgerMQError, match=address):
                await client.list_topics()
