"""P6: kill -9 of an owner until the next acknowledged send to one of its partitions, with little and
with much history in the ledger.

Three brokers run. One record at a time is sent to every partition, each in a separate loop. After
each kill another broker is started, as a supervisor would do. The gap of a partition is the time
between its last acknowledgement before the kill and its first one after it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import ledgermq
from bench.measures import Results
from bench.ours import Cluster
from bench.percentiles import at
from ledgermq.client.client import Client
from ledgermq.client.producing.producer import Producer
from ledgermq.runtime.tasks import end

PARTITIONS = 16
SETTLE_S = 5.0
"""Between two kills: takeovers in quick succession count as a fight, and wait longer on purpose."""


WHAT = "kill -9 until acknowledged"
HISTORY_MB = (10, 10_000)


def subject(megabytes: int) -> str:
    return f"{megabytes:,} MB of history"


class Takeover:
    def __init__(self, results: Results, kills: int, history_mb: tuple[int, ...] = HISTORY_MB) -> None:
        self._results, self._kills, self._history_mb = results, kills, history_mb

    def run(self) -> None:
        for megabytes in self._history_mb:
            with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
                folder = Path(name)
                (folder / "root").mkdir()
                cluster = Cluster(folder, (folder / "root").as_uri(), 3)
                try:
                    topic = cluster.new_topic(PARTITIONS)
                    cluster.client(
                        "produce", topic, records=megabytes * 1000, value_bytes=1000, via="send_batch", values="random"
                    )
                    gaps = asyncio.run(kill_and_watch(cluster, topic, self._kills))
                finally:
                    cluster.close()
            for gap in gaps:
                self._results.add("P6", WHAT, subject(megabytes), "s", gap)
            self._results.add("P6", f"{WHAT}, p99", subject(megabytes), "s", at(sorted(gaps), 0.99))


async def kill_and_watch(cluster: Cluster, topic: str, kills: int, delay_s: float | None = None) -> list[float]:
    """The longest gap among the partitions of the killed broker, for each kill.

    `delay_s`: the records are timed messages, due so much later.
    """
    gaps: list[float] = []
    async with ledgermq.connect(cluster.brokers.addresses) as client, client.producer() as producer:
        sending = Sending(producer, topic, PARTITIONS, delay_s)
        try:
            for _ in range(kills):
                await asyncio.sleep(SETTLE_S)
                address, partitions = await busiest(client, topic)
                cluster.brokers.kill(cluster.brokers.at(address))
                gaps.append(await sending.gap_s(partitions))
                await asyncio.to_thread(cluster.brokers.start)
        finally:
            await sending.stop()
    return gaps


class Sending:
    """Sends one record at a time to each partition. `acknowledged_s`: when the last one of each was."""

    def __init__(self, producer: Producer, topic: str, partitions: int, delay_s: float | None = None) -> None:
        self.acknowledged_s: dict[int, float] = {}
        self._tasks = [
            asyncio.create_task(self._send(producer, topic, partition, delay_s)) for partition in range(partitions)
        ]

    async def _send(self, producer: Producer, topic: str, partition: int, delay_s: float | None) -> None:
        while True:
            await producer.send(topic, b"x" * 100, partition=partition, delay=delay_s)
            self.acknowledged_s[partition] = asyncio.get_running_loop().time()
            await asyncio.sleep(0.01)

    async def gap_s(self, partitions: Sequence[int]) -> float:
        """Wait until all these partitions take records again, after their owner was killed in this turn of the
        event loop; return the longest time without one. Raises what a record's delivery raises.
        """
        before, killed_s = dict(self.acknowledged_s), asyncio.get_running_loop().time()
        while any(self.acknowledged_s[partition] <= killed_s for partition in partitions):
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.005)
        return max(self.acknowledged_s[partition] - before[partition] for partition in partitions)

    async def stop(self) -> None:
        await end(*self._tasks)


async def busiest(client: Client, topic: str) -> tuple[str, list[int]]:
    """Return the owner of most partitions of a topic, and these."""
    described = await client.describe_topic(topic)
    [(address, _)] = Counter(partition.owner for partition in described.partitions if partition.owner).most_common(1)
    return address, [partition.partition for partition in described.partitions if partition.owner == address]
