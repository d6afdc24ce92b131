"""64 producers send records of 1 KiB to a topic of 288 partitions, and one group reads everything.

Each producer sends what is due every 10 ms, as the benchmark's rate limiter does. Without keys a producer stays with a
partition until its batch is sent; with keys the records of each producer go to all partitions, so that a batch often
has one record. Clocks are those of the event loop and of the clients, so the load runs in virtual time, too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bench.percentiles import at
from ledgermq.client.client import Client
from ledgermq.client.producing.producer import Producer

PRODUCERS, PARTITIONS, VALUE_BYTES = 64, 288, 1024
GROUP = "readers"
TICK_S = 0.01
SAMPLED = 8
"""One in so many records is looked at when it is acknowledged."""
KEYS = 100_000
READ_S = 20.0
"""What is left has to be read within this time, once all is acknowledged."""
SEED = 7
PARTS = (0.5, 0.99)


@dataclass(frozen=True, slots=True)
class Shape:
    """`settling_s`: how long the load runs before it counts."""

    megabytes_per_s: float
    keyed: bool = False
    seconds: float = 10.0
    settling_s: float = 2.0
    producers: int = PRODUCERS
    partitions: int = PARTITIONS


@dataclass(frozen=True, slots=True)
class Borne:
    """Percentiles in milliseconds, (p50, p99): from `send` until acknowledged, and until a consumer had the record.
    `records`: sent while the load counted; `seconds`: from then until all were acknowledged.
    """

    acknowledged_ms: tuple[float, float]
    seen_ms: tuple[float, float]
    records: int
    seconds: float

    @property
    def megabytes_per_s(self) -> float:
        """Return the rate that was reached."""
        return self.records * VALUE_BYTES / 1e6 / self.seconds


class _Load:
    def __init__(self, topic: str, shape: Shape, now_us: Callable[[], int]) -> None:
        self._topic, self._shape, self._now_us = topic, shape, now_us
        self._value = random.Random(SEED).randbytes(VALUE_BYTES)
        self._keys = [b"key-%d" % number for number in range(KEYS)]
        self.acknowledged_s: list[float] = []
        self.sent = 0
        self._read = 0
        self._wanted: int | None = None
        self._all_read = asyncio.Event()
        self._late_us: list[np.ndarray] = []
        self._from_us = 0
        """Records with earlier timestamps do not count."""

    async def produce(self, producer: Producer, number: int, seconds: float, *, counts: bool) -> None:
        """Send at the producer's part of the rate, and wait until all is acknowledged."""
        shape, chance = self._shape, random.Random(f"{SEED} {number} {counts}")
        rate = shape.megabytes_per_s * 1e6 / VALUE_BYTES / shape.producers
        begun_s, done = _now_s() + number * TICK_S / shape.producers, 0
        while (passed_s := max(0.0, _now_s() - begun_s)) < seconds or done < round(rate * seconds):
            due = round(rate * min(passed_s, seconds))
            for _ in range(due - done):
                key = self._keys[chance.randrange(KEYS)] if shape.keyed else None
                sampled = counts and self.sent % SAMPLED == 0
                self.sent += counts
                producer.send(self._topic, self._value, key=key, on_delivery=self._noting() if sampled else None)
            done = due
            await asyncio.sleep(TICK_S)
        await producer.flush()

    def _noting(self) -> Callable[[object], None]:
        begun_s = _now_s()
        return lambda result: self.acknowledged_s.append(_now_s() - begun_s)

    async def read(self, client: Client) -> None:
        async with client.consumer(self._topic, group=GROUP) as consumer:
            while True:
                table = await consumer.fetch_arrow(timeout=1.0)
                if table.num_rows:
                    self._note_seen(table)

    def _note_seen(self, table: pa.Table) -> None:
        at_us = table.column("timestamp").cast(pa.int64()).to_numpy()
        counted = at_us[at_us >= self._from_us] if self._from_us else at_us[:0]
        self._read += len(counted)
        self._late_us.append(self._now_us() - counted)
        if self._wanted is not None and self._read >= self._wanted:
            self._all_read.set()

    def begin(self) -> None:
        self._from_us = self._now_us()

    async def wait_read(self) -> None:
        """Wait until all records that count were read."""
        self._wanted = self.sent
        if self._read < self._wanted:
            async with asyncio.timeout(READ_S):
                await self._all_read.wait()

    def seen_ms(self) -> tuple[float, float]:
        late_ms = np.sort(np.concatenate(self._late_us)) / 1000
        found = late_ms.tolist()
        return at(found, PARTS[0]), at(found, PARTS[1])


async def bear(
    make: Callable[[str], Client], topic: str, shape: Shape, now_us: Callable[[], int], counting: Callable[[], None]
) -> Borne:
    """Send the load to a topic of `shape.partitions` partitions, and read it. `make` returns a client by its name;
    `now_us`: their clock; `counting` is called when the load begins to count.
    """
    load = _Load(topic, shape, now_us)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(make(f"producer-{number}")) for number in range(shape.producers)]
        reader = await stack.enter_async_context(make("reader"))
        producers = [await stack.enter_async_context(each.producer(compression="none")) for each in clients]
        reading = asyncio.create_task(load.read(reader))
        try:
            await _all(load, producers, shape.settling_s, counts=False)
            load.begin()
            counting()
            begun_s = _now_s()
            await _all(load, producers, shape.seconds, counts=True)
            seconds = _now_s() - begun_s
            await load.wait_read()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    found = sorted(1000 * each for each in load.acknowledged_s)
    return Borne((at(found, PARTS[0]), at(found, PARTS[1])), load.seen_ms(), load.sent, seconds)


async def _all(load: _Load, producers: list[Producer], seconds: float, *, counts: bool) -> None:
    async with asyncio.TaskGroup() as group:
        for number, producer in enumerate(producers):
            group.create_task(load.produce(producer, number, seconds, counts=counts))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
