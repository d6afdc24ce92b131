"""Handlers of batches while the group's members change, and while settings of brokers and of the topic change; on
brokers in virtual time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import ledgermq
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import committed, fill
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until

PARTITIONS = 4
COUNT = 1200
SETTLED_S_MAX = 600.0


class Worker:
    """Runs a handler of batches in its own client until it is stopped."""

    def __init__(self, client: ledgermq.Client, handler: ledgermq.Handler | ledgermq.QueueHandler) -> None:
        self.handler = handler
        self._stop = asyncio.Event()
        self._running = asyncio.create_task(client.run_handlers(handler, stop=self._stop))

    async def stop(self) -> None:
        self._stop.set()
        await self._running


class Ledger:
    """What the workers have been given. No batch mixes partitions, or leaves the order of its partition."""

    def __init__(self) -> None:
        self.values: Counter[bytes] = Counter()
        self.workers: dict[str, int] = {}

    def batches_of(self, name: str) -> Callable[[list[ledgermq.GroupMessage]], object]:
        async def store(messages: list[ledgermq.GroupMessage]) -> None:
            assert len({message.partition for message in messages}) == 1
            offsets = [message.offset for message in messages]
            assert offsets == sorted(set(offsets))
            await asyncio.sleep(0.2)
            self.values.update(message.value for message in messages)
            self.workers[name] = self.workers.get(name, 0) + len(messages)

        return store


@in_cluster("a:1")
async def test_batches_that_are_handled_while_members_come_and_go(cluster: Cluster) -> None:
    """Partitions change hands between batches: what a worker has begun it finishes and commits first, so that nothing
    is handled twice. A worker that is killed repeats at most what it had not committed.
    """
    ledger = Ledger()
    async with client_of(cluster) as first, client_of(cluster) as second, client_of(cluster) as third:
        await first.create_topic("t", PARTITIONS)
        values = await fill(first, "t", COUNT)

        def worker(name: str, client: ledgermq.Client) -> Worker:
            declare = client.handler("t", group="g", batch=True, batch_records_max=10, concurrency=2)
            return Worker(client, declare(ledger.batches_of(name)))

        one = worker("one", first)
        await until(lambda: ledger.workers.get("one", 0) >= 50, SETTLED_S_MAX)
        two, three = worker("two", second), worker("three", third)
        await until(lambda: min(ledger.workers.get(name, 0) for name in ("two", "three")) >= 20, SETTLED_S_MAX)
        await one.stop()
        assert ledger.workers["one"] == one.handler.handled
        await until(lambda: ledger.values.keys() == set(values), SETTLED_S_MAX)
        await two.stop()
        await three.stop()
        assert set(ledger.values.values()) == {1}, "nothing was handled twice"
        assert await committed(cluster, "g", "t") == dict.fromkeys(range(PARTITIONS), COUNT // PARTITIONS)


@in_cluster("a:1", "b:1")
async def test_batches_of_both_kinds_go_on_while_settings_change(cluster: Cluster) -> None:
    ledger, worked = Ledger(), Counter[bytes]()
    async with client_of(cluster) as client:
        await client.create_topic("t", PARTITIONS)
        values = await fill(client, "t", COUNT)

        @client.queue_handler("t", group="q", batch=True, batch_records_max=10, concurrency=2)
        async def work(messages: list[ledgermq.QueueMessage]) -> None:
            await asyncio.sleep(0.2)
            worked.update(message.value for message in messages)

        declare = client.handler("t", group="g", batch=True, batch_records_max=10, concurrency=2)
        batches, queue = Worker(client, declare(ledger.batches_of("one"))), Worker(client, work)
        for step in range(1, 9):
            await until(lambda step=step: ledger.values.total() >= step * 100, SETTLED_S_MAX)  # type: ignore[misc]
            for broker in cluster.brokers.values():  # as `reload` does at SIGHUP
                broker.apply(
                    cluster.settings.model_copy(
                        update={
                            "fetch_wait_ms_max": 50 * step,
                            "cache_bytes_max": 2**20 * step,
                            "answer_memory_bytes_max": 2**20 * (10 - step),
                            "flush_spacing_ms": step,
                            "holding_ms": 3000 + step,
                        }
                    )
                )
            await client.alter_topic("t", settings={"retention.ms": 3_600_000 * step})
            if step == 4:
                await client.alter_topic("t", partitions=PARTITIONS + 2)
        values += await fill(client, "t", 40, name="later")
        await until(lambda: ledger.values.keys() == worked.keys() == set(values), SETTLED_S_MAX)
        await batches.stop()
        await queue.stop()
        assert set(ledger.values.values()) == set(worked.values()) == {1}
        assert sum((await committed(cluster, "g", "t")).values()) == COUNT + 40
