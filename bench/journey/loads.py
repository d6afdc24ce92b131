"""Two loads to watch: single records at a rate, which a consumer reads, and runs of 64 records at a rate of bytes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from bench.journey.watch import Watch
from bench.runs import send_runs
from ledgermq.client.client import Client

VALUE = b"x" * 100
READ_S = 30.0
"""The consumer has this time for what is left when all is acknowledged."""


@dataclass(frozen=True, slots=True)
class Load:
    """Either `records_per_s` single records, or `megabytes_per_s` in runs of 64, over `partitions` partitions."""

    seconds: float
    records_per_s: float = 0.0
    megabytes_per_s: float = 0.0
    partitions: int = 8


@dataclass(frozen=True, slots=True)
class Felt:
    """What the program felt: sorted seconds from when a record, or a run, was due until it was acknowledged, and
    `seen`, until a consumer had it; `seconds` until all was acknowledged.
    """

    acknowledged_s: list[float]
    seen_s: list[float]
    seconds: float


async def bear(client: Client, topic: str, load: Load, watch: Watch) -> Felt:
    """Send a load to a topic that has no records, and return what was felt."""
    if not load.records_per_s:
        async with client.producer(compression="none") as producer:
            for partition in range(load.partitions):
                producer.send(topic, b"first", partition=partition)
            await producer.flush()
            watch.forget()
            begun_s = _now_s()
            found = await send_runs(producer, topic, load.partitions, load.megabytes_per_s, load.seconds)
            return Felt(sorted(found), [], _now_s() - begun_s)
    return await _single(client, topic, load, watch)


async def _single(client: Client, topic: str, load: Load, watch: Watch) -> Felt:
    records = round(load.records_per_s * load.seconds)
    due_s, acknowledged_s, seen_s = dict[int, float](), list[float](), list[float]()
    async with client.producer() as producer, client.consumer(topic, start="latest") as consumer:
        for partition in range(load.partitions):
            producer.send(topic, b"first", partition=partition)
        await producer.flush()
        await consumer.wait_ready()
        watch.forget()

        async def read() -> None:
            while len(seen_s) < records:
                for message in await consumer.fetch(timeout=1.0):
                    assert message.value is not None
                    if len(message.value) == len(VALUE):
                        watch.saw(message.partition, message.offset)
                        seen_s.append(_now_s() - due_s[int.from_bytes(message.value[:8], "big")])

        async def one(number: int) -> None:
            await producer.send(topic, number.to_bytes(8, "big") + VALUE[8:])
            acknowledged_s.append(_now_s() - due_s[number])

        reading, begun_s = asyncio.create_task(read()), _now_s()
        async with asyncio.TaskGroup() as group:
            for number in range(records):
                due_s[number] = begun_s + number / load.records_per_s
                await asyncio.sleep(max(0.0, due_s[number] - _now_s()))
                group.create_task(one(number))
        seconds = _now_s() - begun_s
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                await reading
        reading.cancel()
    return Felt(sorted(acknowledged_s), sorted(seen_s), seconds)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
