"""A broker that is killed at the distance of S3: how long its partitions take no records, in virtual
time, where only requests to the store take any.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from bench.distant import DISTANCES, STANDARD
from bench.sizing.distant_brokers import DistantBrokers
from ledgermq.client.client import Client
from ledgermq.client.producing.producer import Producer
from tests.simulation.loop import SimulatedLoop, run_simulated

BROKERS = ("a", "b", "c")
PARTITIONS, BUNDLES, KILLS = 8, 4, 3
HISTORY_S = 20.0
GAP_S_MAX = 3.0


class Sending:
    """One record at a time to each partition; when the last one of each was acknowledged."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.acknowledged_s: dict[int, float] = {}
        self._tasks = [asyncio.create_task(self._send(producer, topic, number)) for number in range(PARTITIONS)]

    async def _send(self, producer: Producer, topic: str, partition: int) -> None:
        while True:
            await producer.send(topic, b"some", partition=partition)
            self.acknowledged_s[partition] = asyncio.get_running_loop().time()
            await asyncio.sleep(0.01)

    async def gap_s(self, partitions: list[int]) -> float:
        """Wait until all these partitions take records again; return the longest time without one."""
        before, now = dict(self.acknowledged_s), asyncio.get_running_loop().time()
        while any(self.acknowledged_s[partition] <= now for partition in partitions):
            await asyncio.sleep(0.005)
        return max(self.acknowledged_s[partition] - before[partition] for partition in partitions)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _busiest(client: Client, topic: str) -> tuple[str, list[int]]:
    partitions = (await client.describe_topic(topic)).partitions
    [(owner, _)] = Counter(partition.owner for partition in partitions if partition.owner).most_common(1)
    return owner, [partition.partition for partition in partitions if partition.owner == owner]


def test_partitions_of_a_killed_broker_take_records_within_three_seconds() -> None:
    gaps: list[float] = []

    async def kill_and_watch(cluster: DistantBrokers) -> None:
        client = cluster.client("client")
        async with client.producer() as producer:
            sending = Sending(producer, "events")
            for _ in range(KILLS):
                await asyncio.sleep(HISTORY_S)
                owner, partitions = await _busiest(client, "events")
                cluster.kill(owner)
                gaps.append(await sending.gap_s(partitions))
                await cluster.start(owner)
            await sending.stop()
        await client.close()

    async def main(loop: SimulatedLoop) -> None:
        cluster = DistantBrokers(loop, BUNDLES, DISTANCES[STANDARD])
        for name in BROKERS:
            await cluster.start(name)
        await cluster.process("admin").spawn(cluster.create_topic("events", PARTITIONS))
        await asyncio.sleep(HISTORY_S)  # each broker has its share
        await cluster.process("client").spawn(kill_and_watch(cluster))

    run_simulated(main)
    assert len(gaps) == KILLS
    assert 0.1 < max(gaps) < GAP_S_MAX, gaps
