"""S4: 10,000 topics of 10 partitions each, so 100,000 partitions, on three brokers and local files.

Topics are made 50 at a time; no step may cost more for each topic the more there are. One record
then goes to every partition. Memory is that of the largest broker, before the topics, with them, and
after all partitions have a record. The cache of new batches has a bound for the whole broker, and
would hold these records: it is nearly off, so that the figure is what idle partitions take. A broker
is killed with SIGKILL while one record at a time goes to 16 partitions of one topic; at the end one
broker is started on the whole root.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import ledgermq
from bench.measures import Results
from bench.ours import Cluster
from bench.percentiles import at
from bench.takeover import PARTITIONS as WATCHED
from bench.takeover import WHAT as KILLED
from bench.takeover import kill_and_watch
from ledgermq.client.client import Client
from ledgermq.runtime.tasks import all_of
from tests.e2e.admin_port import ADMIN, AdminPort

TOPICS, PARTITIONS, AT_ONCE = 10_000, 10, 50
TOPICS_AT_ONCE = 500
"""Whose records are on their way together."""
BROKERS, KILLS = 3, 10
OPTIONS = (*ADMIN, "--cache-bytes-max=1048576")
WATCHED_TOPIC = "watched"
FIRST, LAST = "the first thousand", "the last thousand"
MADE, KIB = "topics made", 1024
WHAT = f"{KILLED}, p99"
WHEN = EMPTY, USED = "as topics alone", "with a record in each"


def memory(when: str) -> str:
    return f"memory of a partition, {when}"


def subject(topics: int = TOPICS) -> str:
    return f"{topics * PARTITIONS:,} partitions"


class ManyTopics:
    def __init__(self, results: Results, scale: float) -> None:
        self._results, self._topics = results, int(TOPICS * scale)
        self._kills = max(2, int(KILLS * scale))

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
            folder = Path(name)
            (folder / "root").mkdir()
            root = (folder / "root").as_uri()
            cluster = Cluster(folder, root, BROKERS, *OPTIONS, f"--topics-max={TOPICS + 1}")
            try:
                asyncio.run(self._fill(cluster))
                self._add("/metrics is read", "s", self._scrape_s(cluster))
                gaps = asyncio.run(kill_and_watch(cluster, WATCHED_TOPIC, self._kills))
                self._add(WHAT, "s", at(sorted(gaps), 0.99))
            finally:
                cluster.close()
            begun_s = time.perf_counter()
            cluster = Cluster(folder, root, 1, *OPTIONS)
            try:
                asyncio.run(self._serve(cluster))
                self._add("one broker starts and takes a record of each bundle", "s", time.perf_counter() - begun_s)
            finally:
                cluster.close()

    async def _fill(self, cluster: Cluster) -> None:
        async with ledgermq.connect(cluster.brokers.addresses, timeout_s=120) as client:
            await client.create_topic(WATCHED_TOPIC, WATCHED)
            empty = cluster.rss_bytes()
            rates = await self._make(client)
            self._results.add("S4", MADE, FIRST, "/s", rates[0])
            self._results.add("S4", MADE, LAST, "/s", rates[-1])
            self._memory(EMPTY, cluster, empty)
            begun_s = time.perf_counter()
            assert len(await client.list_topics()) > self._topics
            self._add("topics are listed", "s", time.perf_counter() - begun_s)
            begun_s = time.perf_counter()
            await self._produce(client)
            self._add("a record to each partition", "s", time.perf_counter() - begun_s)
            self._memory(USED, cluster, empty)

    async def _make(self, client: Client) -> list[float]:
        """Topics a second, of each thousand."""
        rates, step = list[float](), min(1000, self._topics)
        for first in range(0, self._topics, step):
            begun_s = time.perf_counter()
            numbers = range(first, first + step)
            await all_of((client.create_topic(f"topic-{number}", PARTITIONS) for number in numbers), AT_ONCE)
            rates.append(step / (time.perf_counter() - begun_s))
        return rates

    async def _produce(self, client: Client) -> None:
        async with client.producer() as producer:
            for number in range(self._topics):
                for partition in range(PARTITIONS):
                    producer.send(f"topic-{number}", b"one", partition=partition)
                if (number + 1) % TOPICS_AT_ONCE == 0:
                    await producer.flush()
            await producer.flush()

    async def _serve(self, cluster: Cluster) -> None:
        async with ledgermq.connect(cluster.brokers.addresses, timeout_s=300) as client, client.producer() as producer:
            await asyncio.gather(*(producer.send(WATCHED_TOPIC, b"one", partition=n) for n in range(WATCHED)))

    def _scrape_s(self, cluster: Cluster) -> float:
        begun_s = time.perf_counter()
        AdminPort(cluster.brokers.running[0]).metrics()
        return time.perf_counter() - begun_s

    def _memory(self, when: str, cluster: Cluster, empty: int) -> None:
        self._add(memory(when), "KiB", (cluster.rss_bytes() - empty) / KIB / self._topics / PARTITIONS)

    def _add(self, what: str, unit: str, value: float) -> None:
        self._results.add("S4", what, subject(self._topics), unit, value)
