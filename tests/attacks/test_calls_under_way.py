"""Calls that last: streams and long polls of one principal leave room for those of others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.methods import FETCH, FETCH_ONCE
from ledgermq_broker.grpc_server import CALLS_MAX
from tests.attacks.cluster import SLOW_S, Attacked, attacked, raw_channel, slowest_send_s, status_of

LINES = 3


async def hold(at: Attacked, count: int) -> tuple[list[grpc.aio.Call], int, int, list[grpc.aio.Channel]]:
    """Open streams and long polls of mallory, on several connections; how many stay and how many are refused."""
    streams: list[grpc.aio.Call] = []
    request = pb.FetchRequest(
        partitions=[pb.FetchPartition(topic="mine-t", partition=0)], max_wait_ms=25_000
    ).SerializeToString()
    channels = [
        grpc.aio.insecure_channel(at.broker.address, options=(("grpc.use_local_subchannel_pool", 1),))
        for _ in range(LINES)
    ]
    for number in range(count):
        channel = channels[number % LINES]
        metadata = at.metadata("mallory")
        if number % 2:
            streams.append(channel.unary_unary(FETCH_ONCE.path)(request, metadata=metadata))
        else:
            streams.append(channel.unary_stream(FETCH.path)(request, metadata=metadata))
    codes = [asyncio.create_task(asyncio.wait_for(stream.code(), 8)) for stream in streams]
    done = await asyncio.gather(*codes, return_exceptions=True)
    refused = sum(code is grpc.StatusCode.RESOURCE_EXHAUSTED for code in done)
    return streams, sum(isinstance(code, TimeoutError) for code in done), refused, channels


@pytest.mark.slow
async def test_streams_of_one_principal_leave_half_to_others(tmp_path: Path) -> None:
    """2,000 streams of one principal were all calls of a broker, whatever its quota was."""
    async with attacked(tmp_path) as at:
        async with at.client("mallory") as client:
            await client.create_topic("mine-t", 1)
        streams, _, refused, channels = await hold(at, CALLS_MAX)
        assert refused > CALLS_MAX // 4
        async with at.client("victim") as client, client.producer() as producer:
            assert await slowest_send_s(producer, 2) < 5
        for stream in streams:
            stream.cancel()
        for channel in channels:
            await channel.close()


@pytest.mark.slow
async def test_a_quota_bounds_calls_under_way(tmp_path: Path) -> None:
    async with attacked(tmp_path) as at:
        async with at.client("mallory") as client:
            await client.create_topic("mine-t", 1)
        async with at.client("root") as root:
            assert (await root.quotas.set("user:mallory", calls=40)).calls == 40
            _, held, refused, channels = await hold(at, 100)
            assert (held, refused) == (40, 60)
            [use] = await root.quotas.describe("user:mallory")
            assert (use.limits["calls"], use.used["calls"]) == (40, 40)
            assert 2 <= use.used["connections"] <= LINES  # those with calls under way; one has room for a third of them
            async with raw_channel(at) as channel:
                call = channel.unary_unary(FETCH_ONCE.path)(b"", metadata=at.metadata("mallory"), timeout=SLOW_S)
                assert "calls 40" in (await status_of(call))[1]
            async with at.client("victim") as client:
                assert await client.list_offsets("orders")
            for channel in channels:
                await channel.close()
            await root.quotas.unset("user:mallory")
            assert not await root.quotas.list()
