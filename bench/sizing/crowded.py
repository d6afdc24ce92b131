"""A small producer beside greedy ones, on the same partitions of one broker in virtual time: how
fair the broker is between connections.

Processors cost nothing here, so greedy producers send as fast as the store and the broker's bounds
let them.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pyarrow as pa

from bench.distant import DISTANCES, FAR
from bench.percentiles import at
from bench.sizing.distant_brokers import SEED, DistantBrokers
from tests.simulation.loop import SimulatedLoop, run_simulated

TOPIC, PARTITIONS, BUNDLES = "crowded", 8, 4
BATCH_RECORDS, VALUE_BYTES = 1000, 1000
FLOODED_S = 3.0
SENDS, PAUSE_S = 40, 0.05


@dataclass(frozen=True, slots=True)
class Crowded:
    """Acknowledgement times of single records of the small producer; megabytes that each of the
    greedy ones produced in the same time.
    """

    acknowledged_ms_p50: float
    acknowledged_ms_longest: float
    greedy_megabytes: list[float]


def crowded(greedy: int, sends: int = SENDS, flooded_s: float = FLOODED_S) -> Crowded:
    """Run it; the small producer begins after `flooded_s`.

    The same arguments give the same answer each time.
    """
    return run_simulated(lambda loop: _Crowd(loop, greedy, sends).run(flooded_s))


class _Crowd:
    def __init__(self, loop: SimulatedLoop, greedy: int, sends: int) -> None:
        self._loop = loop
        self._sends = sends
        self._greedy = greedy
        self._broker = DistantBrokers(loop, BUNDLES, DISTANCES[FAR])
        self._over = asyncio.Event()

    async def run(self, flooded_s: float) -> Crowded:
        await self._broker.start()
        await self._broker.process("admin").spawn(self._broker.create_topic(TOPIC, PARTITIONS))
        names = [f"greedy {number}" for number in range(self._greedy)]
        flood = [self._broker.process(name).spawn(self._flood(name)) for name in names]
        await asyncio.sleep(flooded_s)
        found = sorted(await self._broker.process("small").spawn(self._send_a_little("small")))
        self._over.set()
        return Crowded(1000 * at(found, 0.5), 1000 * found[-1], [await task for task in flood])

    async def _flood(self, name: str) -> float:
        rows = pa.record_batch(
            {"value": pa.array([random.Random(SEED).randbytes(VALUE_BYTES)] * BATCH_RECORDS, pa.binary())}
        )
        client, sent = self._broker.client(name), 0
        async with client.producer(compression="none") as producer:
            while not self._over.is_set():
                await producer.send_batch(TOPIC, rows, partition=sent % PARTITIONS)
                sent += 1
        await client.close()
        return sent * BATCH_RECORDS * VALUE_BYTES / 1e6

    async def _send_a_little(self, name: str) -> list[float]:
        """Return the seconds of each acknowledgement."""
        client, found = self._broker.client(name), []
        async with client.producer() as producer:
            for number in range(self._sends):
                begun_s = self._loop.time()
                await producer.send(TOPIC, b"small", partition=number % PARTITIONS)
                found.append(self._loop.time() - begun_s)
                await asyncio.sleep(PAUSE_S)
        await client.close()
        return found
