"""A producer at full speed: batches of all sizes, as many under way as its buffer holds, to every
partition, until SIGTERM.

python -m tests.soak.producer TARGET TOPIC PARTITIONS SIZE BYTES_PER_S FOLDER

BYTES_PER_S 0: as fast as it goes. It rests while FOLDER holds a file `pause` (the disk is full
enough). Writes the runs that were acknowledged, and the counters of which it does not know whether
they were stored, to FOLDER/producer-TOPIC.json at its end.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa

import ledgermq
from ledgermq.errors import LedgerMQError
from tests.soak.numbered import Run, joined, values

UNDER_WAY_MAX = 24
ROWS_MAX_BYTES = 1_000_000
PAUSE_S = 0.5


class SoakProducer:
    def __init__(self, topic: str, partitions: int, size: int, bytes_per_s: float, folder: Path) -> None:
        self.topic, self.partitions, self.size, self.bytes_per_s, self.folder = (
            topic,
            partitions,
            size,
            bytes_per_s,
            folder,
        )
        self.next = dict.fromkeys(range(partitions), 0)
        self.acknowledged: dict[int, list[Run]] = {partition: [] for partition in range(partitions)}
        self.unknown: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(partitions)}
        self.told: Counter[str] = Counter()
        self.records = 0
        self.paused_s = 0.0
        self.latency_ms: list[float] = []
        self.stopping = asyncio.Event()
        self._random = random.Random(f"soak {topic}")
        self._under_way = asyncio.Semaphore(UNDER_WAY_MAX)

    async def run(self, target: str) -> None:
        loop = asyncio.get_running_loop()
        begun_s, sent_bytes = loop.time(), 0
        async with (
            ledgermq.connect(target, timeout_s=60) as client,
            client.producer(delivery_timeout_s=120, compression="none") as producer,
            asyncio.TaskGroup() as group,
        ):
            while not self.stopping.is_set():
                await self._rest(begun_s, sent_bytes)
                partition = self._random.randrange(self.partitions)
                count = self._random.choice((1, 10, 100, ROWS_MAX_BYTES // self.size))
                sent_bytes += count * self.size
                await self._under_way.acquire()
                counter, self.next[partition] = self.next[partition], self.next[partition] + count
                batch = pa.record_batch([values(partition, counter, count, self.size)], names=["value"])
                try:
                    delivery = await producer.send_batch(self.topic, batch, partition=partition)
                except LedgerMQError as error:
                    self._failed(partition, counter, count, error)
                    continue
                group.create_task(self._await(delivery, partition, counter, count, loop.time()))

    async def _rest(self, begun_s: float, sent_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        while (self.folder / "pause").exists() and not self.stopping.is_set():
            self.paused_s += PAUSE_S
            await asyncio.sleep(PAUSE_S)
        if self.bytes_per_s:
            await asyncio.sleep(begun_s + self.paused_s + sent_bytes / self.bytes_per_s - loop.time())

    async def _await(
        self, delivery: ledgermq.BatchDelivery, partition: int, counter: int, count: int, sent_s: float
    ) -> None:
        try:
            for result in await delivery:
                self.acknowledged[partition].append(
                    Run(result.base_offset, result.base_offset + result.record_count - 1, counter - result.base_offset)
                )
                counter, count = counter + result.record_count, count - result.record_count
                self.records += result.record_count
            self.latency_ms.append((asyncio.get_running_loop().time() - sent_s) * 1000)
        except LedgerMQError as error:
            self._failed(partition, counter, count, error)
        else:
            self._under_way.release()

    def _failed(self, partition: int, counter: int, count: int, error: LedgerMQError) -> None:
        self.told[f"{type(error).__name__}: {error.message[:120]}"] += 1
        self.unknown[partition].append((counter, counter + count - 1))
        self._under_way.release()

    def write(self) -> None:
        ordered = sorted(self.latency_ms) or [0.0]
        document = {
            "topic": self.topic,
            "records": self.records,
            "bytes": self.records * self.size,
            "acknowledged": {partition: joined(runs) for partition, runs in self.acknowledged.items()},
            "unknown": self.unknown,
            "told": dict(self.told),
            "paused_s": self.paused_s,
            "latency_p50_ms": ordered[len(ordered) // 2],
            "latency_p99_ms": ordered[len(ordered) * 99 // 100],
        }
        (self.folder / f"producer-{self.topic}.json").write_text(json.dumps(document))


async def main(target: str, topic: str, partitions: str, size: str, bytes_per_s: str, folder: str) -> None:
    producer = SoakProducer(topic, int(partitions), int(size), float(bytes_per_s), Path(folder))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, producer.stopping.set)
    await producer.run(target)
    producer.write()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
