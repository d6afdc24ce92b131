"""Readers that take no answers, on a real broker over gRPC: its memory for them is bounded, others
are served, and all memory is released.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import ledgermq
from bench.ours import rss_bytes_of
from ledgermq.client.connection.grpc_connection import GrpcConnection, GrpcConnector
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.e2e.admin_port import ADMIN, AdminPort
from tests.e2e.processes import QUICK, BrokerProcess, BrokerProcesses

MIB = 1024 * 1024
PARTITIONS, READERS = 4, 60
BUDGET = 32 * MIB
BATCHES, BATCH = 32, MIB // 4
TIME_S = 200.0


@asynccontextmanager
async def broker_with_topic(tmp_path: Path) -> AsyncIterator[tuple[BrokerProcess, ledgermq.Client]]:
    """A broker that holds the topic in memory, so that a reader costs it only what its answers
    take.
    """
    options = (*QUICK, *ADMIN, f"--answer-memory-bytes-max={BUDGET}")
    with BrokerProcesses(tmp_path, (tmp_path / "root").as_uri(), options) as brokers:
        broker = brokers.start()
        async with ledgermq.connect(broker.address) as client:
            await client.create_topic("t", PARTITIONS)
            async with client.producer(compression="none") as producer:
                for number in range(PARTITIONS * BATCHES):
                    rows = pa.record_batch({"value": pa.array([os.urandom(BATCH - 4096)], pa.binary())})
                    await (await producer.send_batch("t", rows, partition=number % PARTITIONS))
            yield broker, client


@asynccontextmanager
async def stuck_readers(address: str, count: int) -> AsyncIterator[list[GrpcConnection]]:
    """Streams on connections of their own, of which nothing is taken but the first answer."""
    lines = [GrpcConnector().connect(address) for _ in range(count)]
    partitions = [pb.FetchPartition(topic="t", partition=number) for number in range(PARTITIONS)]
    async with AsyncExitStack() as stack:
        for line in lines:
            stack.push_async_callback(line.close)
            frames = line.fetch(pb.FetchRequest(partitions=partitions, max_bytes=4 * MIB))
            stack.push_async_callback(frames.aclose)  # type: ignore[attr-defined]  # all of ours are generators
            await anext(frames)
        yield lines


def held(admin: AdminPort) -> tuple[float, float]:
    """(bytes of the budget, readers that wait)."""
    found = admin.metrics()
    return sum(found["ledgermq_answer_memory_bytes"].values()), found["ledgermq_waiting_readers"][()]


@pytest.mark.slow
async def test_readers_that_take_nothing_hold_no_more_than_the_budget_and_give_it_back(tmp_path: Path) -> None:
    async with asyncio.timeout(TIME_S), broker_with_topic(tmp_path) as (broker, client):
        admin = AdminPort(broker)
        before = rss_bytes_of(broker.pid)
        async with stuck_readers(broker.address, READERS):
            most, looks = 0.0, 0
            while most <= BUDGET / 4 or looks < 20:  # until they did fill it
                taken, _ = await asyncio.to_thread(held, admin)
                assert taken <= BUDGET
                most, looks = max(most, taken), looks + 1
                await asyncio.sleep(0.1)
            # Beside the budget: connections, and what malloc keeps. Without a bound it was 3 × 4
            # MiB for each reader, 720 MiB.
            assert rss_bytes_of(broker.pid) - before < BUDGET + 160 * MIB
            async with client.consumer("t", start="earliest") as consumer:  # a new reader beside them
                read = 0
                while read < PARTITIONS * BATCHES:
                    read += (await consumer.fetch_arrow(timeout=60.0)).num_rows
        while (await asyncio.to_thread(held, admin)) != (0, 0):
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_consumer_whose_program_takes_nothing_costs_the_broker_nothing(tmp_path: Path) -> None:
    async with asyncio.timeout(TIME_S), broker_with_topic(tmp_path) as (broker, client):
        admin = AdminPort(broker)
        async with client.consumer("t", start="earliest", prefetch_bytes_max=MIB) as consumer:
            await consumer.fetch(1, timeout=30.0)
            while (await asyncio.to_thread(held, admin))[0] == 0:
                await asyncio.sleep(0.05)
            while (await asyncio.to_thread(held, admin))[0] > 0:
                await asyncio.sleep(0.5)
            read = 1
            while read < PARTITIONS * BATCHES:
                read += len(await consumer.fetch(100, timeout=60.0))
