"""G9: what a producer notices of readers over HTTP whose event streams are at the gateway's bound.

One broker on local files with fsync, and a gateway before it. The producer is a process with the SDK, and sends 100
records of 100 B a second to its own topic; each counts from the time at which it was to be sent until its
acknowledgement. *Beside streams* there are 400 event streams at the gateway, which is its bound by default
(`--streams-max`). They start at the first record of another topic, so none shares a read with another one: each takes a
connection and a call of the broker, and waits at the end of the topic. *Beside streams that read*, each of them also
gets a record a second: 400 events a second, for which gateway and listeners take processor time of the same cores.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack, closing
from pathlib import Path

import aiohttp

import ledgermq
from bench.gateway import gateway_of
from bench.http_load import Served
from bench.measures import Results
from bench.ours import Cluster, stop_client, wait_until_warm
from bench.percentiles import at, latencies_within

ROW = "G9"
ALONE, BESIDE, BESIDE_READING = "alone", "beside streams", "beside streams that read"
LATENCY = {part: f"acknowledgement at 100/s, {name}" for part, name in ((0.5, "p50"), (0.99, "p99"))}
P99 = LATENCY[0.99]
STREAMS, RATE, PARTITIONS, SECONDS, SETTLE_S, READ_S = 400, 100.0, 8, 20.0, 2.0, 1.0


class StreamsBeside:
    """`scale`: a quick run takes a fraction of the streams and of the time."""

    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds = results, rounds
        self._streams, self._seconds = int(STREAMS * scale), max(3.0, SECONDS * scale)

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
            folder = Path(name)
            (folder / "root").mkdir()
            options = (f"--streams-max={STREAMS}", f"--streams-per-principal-max={STREAMS}")
            with (
                closing(Cluster(folder, (folder / "root").as_uri(), 1)) as cluster,
                gateway_of(folder, cluster.brokers.addresses, *options) as gateway,
            ):
                for number in range(self._rounds):
                    for subject in (ALONE, BESIDE, BESIDE_READING)[:: 1 if number % 2 == 0 else -1]:
                        asyncio.run(self._measured(cluster, gateway, subject))

    async def _measured(self, cluster: Cluster, gateway: Served, subject: str) -> None:
        async with AsyncExitStack() as stack:
            topic = await asyncio.to_thread(cluster.new_topic, 1)
            if subject != ALONE:
                await stack.enter_async_context(Listeners(cluster, gateway, topic, self._streams))
            if subject == BESIDE_READING:
                written = asyncio.create_task(_written(cluster, topic))
                stack.callback(written.cancel)
            latencies = await asyncio.to_thread(self._latencies, cluster)
        for part, what in LATENCY.items():
            self._results.add(ROW, what, subject, "ms", at(latencies, part))

    def _latencies(self, cluster: Cluster) -> list[float]:
        producer = cluster.start_client("live", cluster.new_topic(PARTITIONS), rate=RATE)
        wait_until_warm(producer)
        time.sleep(SETTLE_S)
        begin_s = time.time()
        time.sleep(self._seconds)
        end_s = time.time()
        return latencies_within(stop_client(producer)["latencies"], begin_s, end_s)


class Listeners:
    """So many event streams of a topic from its begin, for the block; it begins when each has got the first record, and
    ends with RuntimeError if one of them has ended before.
    """

    def __init__(self, cluster: Cluster, gateway: Served, topic: str, count: int) -> None:
        self._target, self._gateway, self._topic, self._count = cluster.brokers.addresses, gateway, topic, count
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        async with ledgermq.connect(self._target) as client, client.producer() as producer:
            await producer.send(self._topic, b"first")
        begun = [asyncio.get_running_loop().create_future() for _ in range(self._count)]
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._count), timeout=aiohttp.ClientTimeout(total=None)
        )
        self._tasks = [asyncio.create_task(self._listen(each)) for each in begun]
        async with asyncio.timeout(120):
            await asyncio.gather(*begun)

    async def __aexit__(self, *failed: object) -> None:
        ended = [task for task in self._tasks if task.done()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.close()
        if ended:
            raise RuntimeError(f"{len(ended)} of {self._count} streams ended before the end of the measurement")

    async def _listen(self, begun: asyncio.Future[None]) -> None:
        url = f"{self._gateway.url}/v1/topics/{self._topic}/events?from=earliest"
        try:
            async with self._http.get(url, headers={"Accept": "text/event-stream"}) as found:
                async for line in found.content:
                    if line.startswith(b"data:") and not begun.done():
                        begun.set_result(None)
        finally:
            if not begun.done():
                begun.set_exception(RuntimeError("a stream ended before its first record"))


async def _written(cluster: Cluster, topic: str) -> None:
    """Write a record a second, until it is cancelled."""
    async with ledgermq.connect(cluster.brokers.addresses) as client, client.producer() as producer:
        while True:
            await producer.send(topic, b"x")
            await asyncio.sleep(READ_S)
