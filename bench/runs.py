"""A steady load of runs: 64 records of 1000 B to one partition after the other, as in row P5."""

from __future__ import annotations

import asyncio
import random

import pyarrow as pa

from ledgermq.client.producing.producer import Producer

RUN_RECORDS, VALUE_BYTES = 64, 1000
SEED = 7


async def send_runs(
    producer: Producer,
    topic: str,
    partitions: int,
    megabytes_per_s: float,
    seconds: float,
    run_records: int = RUN_RECORDS,
) -> list[float]:
    """Send at the pace; return the seconds from when each run was due until its acknowledgement, once
    all are acknowledged.
    """
    chance, loop = random.Random(SEED), asyncio.get_running_loop()
    rows = pa.record_batch(
        {"value": pa.array([chance.randbytes(VALUE_BYTES) for _ in range(run_records)], pa.binary())}
    )
    runs = round(megabytes_per_s * 1e6 * seconds / (run_records * VALUE_BYTES))
    begun_s, latencies_s = loop.time(), list[float]()

    async def send(partition: int, due_s: float) -> None:
        await (await producer.send_batch(topic, rows, partition=partition))
        latencies_s.append(loop.time() - due_s)

    async with asyncio.TaskGroup() as group:
        for number in range(runs):
            due_s = begun_s + number * seconds / runs
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            group.create_task(send(number % partitions, due_s))
    return latencies_s
