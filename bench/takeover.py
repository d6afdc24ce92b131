"""P6: kill -9 of an owner until the next acknowledged send to one of its partitions, with little and
with much history in the ledger.

Three brokers run. One record at a time is sent to every partition, each in a separate loop. After
each kill another broker is started, as a supervisor would do. The gap of a partition is the time
between its last acknowledgement before the kill and its first one after it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path

import ledgermq
from bench.measures import Results
from bench.ours import Cluster
from bench.percentiles import at
from ledgermq.client.client import Client
from ledgermq.client.producing.producer import Producer

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
    acknowledged_s: dict[int, float] = {}
    gaps: list[float] = []
    async with (
        ledgermq.connect(cluster.brokers.addresses) as client,
        client.producer() as producer,
        asyncio.TaskGroup() as group,
    ):
        loops = [
            group.create_task(_send_on(producer, topic, partition, acknowledged_s, delay_s))
            for partition in range(PARTITIONS)
        ]
        for _ in range(kills):
            await asyncio.sleep(SETTLE_S)
            address, partitions = await _busiest(client, topic)
            before = {partition: acknowledged_s[partition] for partition in partitions}
            cluster.brokers.kill(cluster.brokers.at(address))
            killed_s = time.perf_counter()
            while any(acknowledged_s[partition] < killed_s for partition in partitions):  # noqa: ASYNC110  a look now and then
                await asyncio.sleep(0.005)
            gaps.append(max(acknowledged_s[partition] - before[partition] for partition in partitions))
            await asyncio.to_thread(cluster.brokers.start)
        for task in loops:
            task.cancel()
    return gaps


async def _send_on(
    producer: Producer, topic: str, partition: int, acknowledged_s: dict[int, float], delay_s: float | None
) -> None:
    while True:
        await producer.send(topic, b"x" * 100, partition=partition, delay=delay_s)
        acknowledged_s[partition] = time.perf_counter()
        await asyncio.sleep(0.01)


async def _busiest(client: Client, topic: str) -> tuple[str, list[int]]:
    described = await client.describe_topic(topic)
    [(address, _)] = Counter(partition.owner for partition in described.partitions if partition.owner).most_common(1)
    return address, [partition.partition for partition in described.partitions if partition.owner == address]
