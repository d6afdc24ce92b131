"""A broker that is killed at the distance of S3: how long its partitions take no records, in virtual
time, where only requests to the store take any.
"""

from __future__ import annotations

import asyncio

import pytest

from bench.distant import DISTANCES, STANDARD
from bench.sizing.distant_brokers import DistantBrokers
from bench.takeover import Sending, busiest
from tests.simulation.loop import SimulatedLoop, run_simulated

BROKERS = ("a", "b", "c")
PARTITIONS, BUNDLES, KILLS = 8, 4, 3
HISTORY_S = 20.0
GAP_S_MAX = 3.0


@pytest.mark.slow
def test_partitions_of_a_killed_broker_take_records_within_three_seconds() -> None:
    gaps: list[float] = []

    async def kill_and_watch(cluster: DistantBrokers) -> None:
        client = cluster.client("client")
        async with client.producer() as producer:
            sending = Sending(producer, "events", PARTITIONS)
            for _ in range(KILLS):
                await asyncio.sleep(HISTORY_S)
                owner, partitions = await busiest(client, "events")
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
