"""Send and recall timed messages while brokers die and come, in virtual time: each message is delivered
once, never early, unless its recall was confirmed.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.broker.cluster import Cluster, in_cluster
from tests.broker.timer_calls import Sender, Timed, Watcher, constants_of, now_s, recall

TIGHT = constants_of(flush_after_ms=2000, chunk_bytes=600, body_bytes=5000, log_start_ms=5000)
DELAYS_S = (-5, 0.3, 2, 20, 100, 200, 300, 700)
BATCHES = 40


class Program:
    """Sends to one partition. `sent`: due times by value. `recalled`: values whose recall was confirmed."""

    def __init__(self, cluster: Cluster, partition: int, rng: random.Random) -> None:
        self.sent: dict[bytes, float] = {}
        self.recalled: set[bytes] = set()
        self._cluster = cluster
        self._partition = partition
        self._rng = rng

    async def run(self) -> None:
        rng, sender = self._rng, await Sender(self._cluster, "t", self._partition).open()
        for batch in range(BATCHES):
            messages: list[Timed] = [
                (b"%d-%d" % (batch, row), now_s() + rng.choice(DELAYS_S) * rng.random())
                for row in range(rng.randint(1, 6))
            ]
            offset = await sender.send(*messages)
            self.sent.update(messages)
            if rng.random() < 0.2:
                row = rng.randrange(len(messages))
                value, due_s = messages[row]
                if await recall(self._cluster, "t", self._partition, offset, row, due_s) == "RECALLED":
                    self.recalled.add(value)
            await asyncio.sleep(rng.random() * 4)


async def replace_brokers(cluster: Cluster, rng: random.Random) -> None:
    for number in range(6):
        await asyncio.sleep(rng.random() * 40)
        newest = f"n{number}:1"
        await cluster.start(newest)
        await asyncio.sleep(rng.random() * 4)
        victim = rng.choice([address for address in cluster.brokers if address != newest])
        await cluster.stop(victim, graceful=rng.random() < 0.5)


@pytest.mark.parametrize("seed", range(3))
def test_each_message_is_delivered_once_while_brokers_die(seed: int) -> None:
    rng = random.Random(seed)

    @in_cluster("a:1", "b:1", constants=TIGHT, bundles=3)
    async def run(cluster: Cluster) -> None:
        await cluster.create("t", 2)
        watchers = [Watcher(cluster, "t", partition) for partition in (0, 1)]
        programs = [Program(cluster, partition, rng) for partition in (0, 1)]
        await asyncio.gather(*(program.run() for program in programs), replace_brokers(cluster, rng))
        for program, watcher in zip(programs, watchers, strict=True):
            wanted = program.sent.keys() - program.recalled
            values = await watcher.until(len(wanted), 3000)
            assert len(values) == len(wanted)
            assert set(values) == wanted
            assert all(seen_s >= program.sent[value] for value, seen_s in watcher.seen)
            await watcher.close()

    run()
