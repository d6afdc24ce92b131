"""A steady load on one broker in virtual time: what it asks of a distant store, and when it
answers.

The load is that of row P5: runs of 64 records of 1000 B to one partition after the other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from bench.percentiles import at
from bench.sizing.distant_broker import SEED, DistantBroker
from ledgermq.client.producing.producer import Producer
from stateless_broker.metrics.store_metrics import S3_PRICES
from tests.simulation.loop import SimulatedLoop, run_simulated

RUN_RECORDS, VALUE_BYTES = 64, 1000
TOPIC = "load"
SETTLING_S = 2.0


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one broker."""

    megabytes_per_s: float
    partitions: int
    bundles: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Observed:
    """`requests_per_s`: by operation of the store contract, every attempt.

    Latencies are from `send_batch` until the acknowledgement.
    """

    acknowledged_ms_p50: float
    acknowledged_ms_p99: float
    puts_per_s: float
    put_megabytes: float
    requests_per_s: Mapping[str, float]

    @property
    def dollars_per_s(self) -> float:
        """Return dollars per second at the list prices of S3 Standard."""
        return sum(S3_PRICES.of(name) * rate for name, rate in self.requests_per_s.items())

    @property
    def segment_dollars_per_s(self) -> float:
        return S3_PRICES.of("put_if_absent") * self.puts_per_s


def observe(load: Load) -> Observed:
    """Observe the load; the same load gives the same answer each time."""
    return run_simulated(lambda loop: _Observation(loop, load).run())


class _Observation:
    def __init__(self, loop: SimulatedLoop, load: Load) -> None:
        self._loop = loop
        self._broker = DistantBroker(loop, load.bundles)
        self._load = load
        self._latencies_s: list[float] = []

    async def run(self) -> Observed:
        await self._broker.start()
        return await self._broker.process("client").spawn(self._produce())

    async def _produce(self) -> Observed:
        await self._broker.create_topic(TOPIC, self._load.partitions)
        client = self._broker.client("client")
        async with client.producer(compression="none") as producer:
            await self._send(producer, SETTLING_S)  # sessions are open, and queues have their steady length
            self._latencies_s.clear()
            before, begun_s = self._broker.meter.by_operation(), self._loop.time()
            sent_bytes = await self._send(producer, self._load.seconds)
            seconds = self._loop.time() - begun_s
        await client.close()
        requests = {
            name: (count - before.get(name, 0)) / seconds for name, count in self._broker.meter.by_operation().items()
        }
        found = sorted(self._latencies_s)
        puts = requests["put_if_absent"]
        return Observed(
            1000 * at(found, 0.5), 1000 * at(found, 0.99), puts, sent_bytes / 1e6 / (puts * seconds), requests
        )

    async def _send(self, producer: Producer, seconds: float) -> int:
        """Send; return the bytes of values when all are acknowledged."""
        chance = random.Random(SEED)
        rows = pa.record_batch(
            {"value": pa.array([chance.randbytes(VALUE_BYTES) for _ in range(RUN_RECORDS)], pa.binary())}
        )
        runs = round(self._load.megabytes_per_s * 1e6 * seconds / (RUN_RECORDS * VALUE_BYTES))
        begun_s = self._loop.time()
        async with asyncio.TaskGroup() as group:
            for number in range(runs):
                await asyncio.sleep(max(0.0, begun_s + number * seconds / runs - self._loop.time()))
                group.create_task(self._send_run(producer, rows, number % self._load.partitions))
        return runs * RUN_RECORDS * VALUE_BYTES

    async def _send_run(self, producer: Producer, rows: pa.RecordBatch, partition: int) -> None:
        begun_s = self._loop.time()
        await (await producer.send_batch(TOPIC, rows, partition=partition))
        self._latencies_s.append(self._loop.time() - begun_s)
