"""Q1: members of a queue group on one partition: 1, 4 and 16 of them, each with one message at work at a time.

*10 ms of work* waits that long for each message, as a call of another system does, and acknowledges it; so one
member does at most 100 a second, and the others show whether sharing one partition costs anything. *No work*
acknowledges at once, 500 messages a fetch: the rate of leases and acknowledgements themselves. The members are
tasks of one process, each with a client of its own. A run counts from the first fetch until the last
acknowledgement is durable; before it each member has fetched and acknowledged.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack, closing
from pathlib import Path

import ledgermq
from bench.measures import Results
from bench.ours import Cluster

MEMBERS = (1, 4, 16)
WORK_S, WORKING_S = 0.010, 10.0
BARE_RECORDS, BARE_FETCH = 100_000, 500
VALUE_BYTES = 100
WORKING, BARE = "10 ms of work a message", "no work"


def members(count: int) -> str:
    return f"{count} member{'s' if count > 1 else ''}"


class Sharing:
    """`scale`: a quick run takes a fraction of the messages."""

    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results = results
        self._rounds = rounds
        self._scale = scale

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            with closing(Cluster(root, (root / "root").as_uri())) as cluster:
                for _ in range(self._rounds):
                    for count in MEMBERS:
                        asyncio.run(self._round(cluster, count))

    async def _round(self, cluster: Cluster, count: int) -> None:
        working = round(WORKING_S * self._scale * count / WORK_S)
        per_s = await measure(cluster, count, working, WORK_S, 10)
        self._results.add("Q1", WORKING, members(count), "messages/s", per_s)
        per_s = await measure(cluster, count, round(BARE_RECORDS * self._scale), 0.0, BARE_FETCH)
        self._results.add("Q1", BARE, members(count), "messages/s", per_s)


async def measure(cluster: Cluster, count: int, records: int, work_s: float, at_once: int) -> float:
    """Return messages a second."""
    topic, address = cluster.new_topic(1), cluster.brokers.addresses
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(ledgermq.connect(address)) for _ in range(count)]
        async with clients[0].producer() as producer:
            await producer.send_many(topic, [b"%100d" % number for number in range(count)])
        queues = [
            await stack.enter_async_context(client.queue(topic, group="bench", dead_letters=False))
            for client in clients
        ]
        for queue in queues:
            for message in await queue.fetch(1, timeout=30):
                await message.ack()
        async with clients[0].producer(batch_bytes_max=16 * 1024) as producer:
            await producer.send_many(topic, [b"%100d" % number for number in range(records)])
        left = records

        async def member(queue: ledgermq.Queue) -> None:
            nonlocal left
            while left > 0:
                for message in await queue.fetch(at_once, timeout=0.2):
                    if work_s:
                        await asyncio.sleep(work_s)
                    message.ack()
                    left -= 1
            await queue.flush()

        begun_s = time.perf_counter()
        await asyncio.gather(*map(member, queues))
        return records / (time.perf_counter() - begun_s)
