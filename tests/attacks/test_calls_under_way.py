"""Calls that last: streams and long polls of one principal leave room for those of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.methods import FETCH, FETCH_ONCE
from ledgermq_broker.ports.grpc_server import CALLS_MAX
from tests.attacks.cluster import SEND_S_MAX, SLOW_S, Attacked, attacked, raw_channel, slowest_send_s, status_of
from tests.waiting import until

LINES = 3
WAIT_MS = 25_000
"""Of a long poll; a stream lasts until its caller ends it."""


@asynccontextmanager
async def held(at: Attacked, streams: int, polls: int) -> AsyncIterator[Callable[[], int]]:
    """Calls of mallory on several connections. Gives how many were refused so far; all end with the block."""
    request = pb.FetchRequest(
        partitions=[pb.FetchPartition(topic="mine-t", partition=0)], max_wait_ms=WAIT_MS
    ).SerializeToString()
    channels = [
        grpc.aio.insecure_channel(at.broker.address, options=(("grpc.use_local_subchannel_pool", 1),))
        for _ in range(LINES)
    ]
    metadata = at.metadata("mallory")
    calls: list[grpc.aio.Call] = [
        channels[number % LINES].unary_unary(FETCH_ONCE.path)(request, metadata=metadata) for number in range(polls)
    ]
    calls += [
        channels[number % LINES].unary_stream(FETCH.path)(request, metadata=metadata) for number in range(streams)
    ]
    codes = [asyncio.create_task(call.code()) for call in calls]
    try:
        yield lambda: sum(code.done() and code.result() is grpc.StatusCode.RESOURCE_EXHAUSTED for code in codes)
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*codes, return_exceptions=True)
        for channel in channels:
            await channel.close()


@pytest.mark.slow
async def test_streams_of_one_principal_leave_half_to_others(tmp_path: Path) -> None:
    """2,000 streams of one principal were all calls of a broker, whatever its quota was."""
    async with attacked(tmp_path) as at:
        async with at.client("mallory") as client:
            await client.create_topic("mine-t", 1)
        async with held(at, CALLS_MAX // 2, CALLS_MAX // 2) as refused:
            await until(lambda: refused() > CALLS_MAX // 4, SLOW_S)
            async with at.client("victim") as client, client.producer() as producer:
                assert await slowest_send_s(producer, 2) < SEND_S_MAX


@pytest.mark.slow
async def test_a_quota_bounds_calls_under_way(tmp_path: Path) -> None:
    """Forty streams stay, whatever the order in which the hundred come; long polls count as they do."""
    async with attacked(tmp_path) as at:
        async with at.client("mallory") as client:
            await client.create_topic("mine-t", 1)
        async with at.client("root") as root:
            assert (await root.quotas.set("user:mallory", calls=40)).calls == 40
            async with held(at, 100, 0) as refused:
                await until(lambda: refused() == 60, SLOW_S)
                [use] = await root.quotas.describe("user:mallory")
                assert (use.limits["calls"], use.used["calls"]) == (40, 40)
                assert 2 <= use.used["connections"] <= LINES  # one connection has room for a third of them
                async with held(at, 0, 5) as refused_polls:
                    await until(lambda: refused_polls() == 5, SLOW_S)
                async with raw_channel(at) as channel:
                    call = channel.unary_unary(FETCH_ONCE.path)(b"", metadata=at.metadata("mallory"), timeout=SLOW_S)
                    assert "calls 40" in (await status_of(call))[1]
                async with at.client("victim") as client:
                    assert await client.list_offsets("orders")
                assert refused() == 60, "those that stay are not ended"
            await root.quotas.unset("user:mallory")
            assert not await root.quotas.list()
