"""S1: ten broker processes on local files share 40 bundles that began as four, while a producer sends to 80 partitions.

All partitions are in the first four bundles, because there were no others. 36 bundles are added, brokers take them,
and `ledgermq cluster rebalance` moves partitions until all bundles have the same load. Each partition gets 20 records
of 1 KiB a second all along, one at a time: a stall is the time between two acknowledgements of a partition. At the end
everything is read: a record is lost if it was acknowledged and does not come, and doubled if it comes twice. The load
of a bundle is what was acknowledged in its partitions in the last part of the run.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import ledgermq
from bench.measures import Results
from bench.ours import Cluster
from bench.percentiles import at
from ledgermq.client.client import Client

BROKERS, BEGAN, BUNDLES, PARTITIONS = 10, 4, 40, 80
EVERY_S, RECORD = 0.05, b"x" * 1000
AT_ONCE = 4
"""Partitions that leave a bundle at the same time."""
QUIET_S, EVEN_S = 15.0, 30.0
"""How long is sent before bundles are added, and after the last move."""
OWNED_S_MAX, READ_S_MAX = 120.0, 300.0
OURS = f"{BROKERS} brokers, {BEGAN} to {BUNDLES} bundles"
LOST, DOUBLED = "records lost", "records doubled"
STALL, UNEVEN = "longest stall of a partition", "farthest bundle from the mean load"
WHEN = BEFORE, DURING, AFTER = "before", "while partitions move", "after"


def stall(when: str) -> str:
    return f"{STALL}, {when}"


class Growing:
    def __init__(self, results: Results) -> None:
        self._results = results

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
            folder = Path(name)
            (folder / "root").mkdir()
            cluster = Cluster(folder, (folder / "root").as_uri(), BROKERS, f"--bundles={BEGAN + 1}")
            try:
                asyncio.run(self._measure(cluster, cluster.new_topic(PARTITIONS)))
            finally:
                cluster.close()

    async def _measure(self, cluster: Cluster, topic: str) -> None:
        async with ledgermq.connect(cluster.brokers.addresses, timeout_s=60) as client:
            traffic = Traffic(client, topic)
            async with client.producer(linger_ms=0) as producer:
                sending = [asyncio.create_task(traffic.send(producer, number)) for number in range(PARTITIONS)]
                await asyncio.sleep(QUIET_S)
                traffic.begin(BEFORE)
                await asyncio.sleep(QUIET_S)
                traffic.begin(DURING)
                begun_s = time.perf_counter()
                await client.add_bundles(BUNDLES - BEGAN)
                await self._until_owned(client)
                moves = await self._rebalance(cluster)
                self._add("partitions moved", "", moves)
                self._add("bundles added and partitions moved in", "s", time.perf_counter() - begun_s)
                traffic.begin(AFTER)
                acknowledged = traffic.acknowledged.copy()
                await asyncio.sleep(EVEN_S)
                traffic.is_over = True
                await asyncio.gather(*sending)
            for when in WHEN:
                stalls = sorted(traffic.stalls_s[when])
                self._add(stall(when), "s", stalls[-1])
                self._add(f"p99.9 of the time between two acknowledgements, {when}", "ms", 1000 * at(stalls, 0.999))
            described = await client.describe_topic(topic)
            loads = Counter(dict.fromkeys(range(1, BUNDLES + 1), 0))
            for part in described.partitions:
                loads[part.bundle] += traffic.acknowledged[part.partition] - acknowledged[part.partition]
            mean = loads.total() / BUNDLES
            self._add(UNEVEN, "%", max(100 * abs(load / mean - 1) for load in loads.values()))
            seen = await self._read(client, topic, traffic.acknowledged)
            sent = {(part, number) for part, count in traffic.acknowledged.items() for number in range(count)}
            self._add("records acknowledged", "", len(sent))
            self._add(LOST, "", len(sent - seen.keys()))
            self._add(DOUBLED, "", sum(count - 1 for count in seen.values()))

    async def _until_owned(self, client: Client) -> None:
        async with asyncio.timeout(OWNED_S_MAX):
            while True:
                bundles = (await client.describe_cluster()).bundles
                if len(bundles) == BUNDLES + 1 and all(bundle.owner for bundle in bundles):
                    return
                await asyncio.sleep(0.5)

    async def _rebalance(self, cluster: Cluster) -> int:
        command = [
            *(sys.executable, "-m", "ledgermq.cli.main", "cluster", "rebalance"),
            *("--target", cluster.brokers.addresses, "--at-once", str(AT_ONCE), "--output", "json"),
        ]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        text, _ = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"ledgermq cluster rebalance ended with {process.returncode}")
        return len(json.loads(text)["moves"])

    async def _read(self, client: Client, topic: str, sent: Counter[int]) -> Counter[tuple[int, int]]:
        seen = Counter[tuple[int, int]]()
        ends = await client.list_offsets(topic, "latest")
        async with asyncio.timeout(READ_S_MAX), client.consumer(topic, start="earliest") as consumer:
            await consumer.wait_ready()
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                for message in await consumer.fetch(max_records=10_000, timeout=1.0):
                    seen[message.partition, int((message.value or b"").partition(b" ")[0])] += 1
        return seen

    def _add(self, what: str, unit: str, value: float) -> None:
        self._results.add("S1", what, OURS, unit, value)


class Traffic:
    """`acknowledged`: records by partition. `stalls_s`: times between two acknowledgements, by part of the run."""

    def __init__(self, client: Client, topic: str) -> None:
        self._topic = topic
        self._when = ""
        self.is_over = False
        self.acknowledged = Counter[int]()
        self.stalls_s: dict[str, list[float]] = {when: [] for when in ("", *WHEN)}

    def begin(self, when: str) -> None:
        self._when = when

    async def send(self, producer: ledgermq.Producer, partition: int) -> None:
        before_s = time.perf_counter()
        while not self.is_over:
            number = self.acknowledged[partition]
            await producer.send(self._topic, b"%d %b" % (number, RECORD), partition=partition)
            now_s = time.perf_counter()
            self.stalls_s[self._when].append(now_s - before_s)
            self.acknowledged[partition] += 1
            before_s = now_s
            await asyncio.sleep(EVERY_S)
