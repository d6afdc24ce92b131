"""Random lives of producers with a spill, on brokers that die, stop and are cut off, in virtual time.

What was answered, as stored or as spilled, is stored in the end: once, and for each partition in the order of
`send`. A process that is killed may lose records that were not answered yet. A seed repeats the run.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import ledgermq
from ledgermq import Spill, Spilled
from ledgermq.client.producing.spilling.spilling import Spilling
from ledgermq.errors import LedgerMQError
from ledgermq.runtime.tasks import end
from tests.broker.cluster import Cluster, cluster_of
from tests.e2e.own_network import OwnNetwork
from tests.virtual_time import virtual
from tests.waiting import until
from tests.worlds.consumed import read_values

PARTITIONS = 4
TROUBLE_S = 80.0
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))]


async def kill(producer: ledgermq.Producer) -> None:
    """As SIGKILL does: nothing is written, no broker is notified, and the lock of the file goes."""
    producer._keeps = True
    await end(producer._background)
    producer.closed = True
    spilling = producer._spilling
    assert isinstance(spilling, Spilling)
    spilling._is_finished = True
    spilling._lanes.file._file._close()


class Storm:
    def __init__(self, cluster: Cluster, seed: int, path: Path) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.own = OwnNetwork(cluster)
        self.path = path
        self.next = Counter[int]()
        self.deliveries: dict[int, list[tuple[int, ledgermq.Delivery]]] = defaultdict(list)
        self.kinds: Counter[str] = Counter()

    async def produce(self, client: ledgermq.Client, until_s: float) -> None:
        """One process after the other, on the same file."""
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            spill = Spill(self.path, records_max=self.random.choice((50, 100_000)))
            producer = client.producer(
                spill=spill,
                delivery_timeout_s=self.random.choice((1, 3, 10)),
                request_timeout_s=self.random.choice((1, 5)),
                buffer_bytes_max=self.random.choice((5_000, 1_000_000)),
                batch_bytes_max=self.random.choice((50, 1_000_000)),
                window_batches=self.random.choice((1, 5)),
            )
            await producer.open_spill()
            life_s = loop.time() + self.random.uniform(0, 30)
            while loop.time() < min(life_s, until_s):
                self.send(producer)
                await asyncio.sleep(self.random.choice((0, 0, 0.01, 0.1, 0.5)))
            if self.random.random() < 0.4:
                self.kinds["killed"] += 1
                await kill(producer)
            else:
                self.kinds["closed"] += 1
                await self.close(producer, self.random.choice((0, 1, None)))
            assert producer.spilled is not None
            self.kinds["maybe twice"] += producer.spilled.maybe_twice

    async def close(self, producer: ledgermq.Producer, timeout_s: float | None) -> None:
        try:
            await producer.close(timeout_s)
        except LedgerMQError as error:
            self.kinds[type(error).__name__] += 1

    def send(self, producer: ledgermq.Producer) -> None:
        for _ in range(self.random.choice((1, 1, 20))):
            partition = self.random.randrange(PARTITIONS)
            number = self.next[partition]
            try:
                delivery = producer.send("t", b"%d" % number, partition=partition)
            except LedgerMQError as error:
                self.kinds[type(error).__name__] += 1
                return
            self.next[partition] += 1
            self.deliveries[partition].append((number, delivery))

    async def trouble(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.1, 5))
            address = self.random.choice(list(self.cluster.brokers))
            kind = self.random.random()
            if kind < 0.5:
                self.own.cut(*self.random.choice(((), (address,))))
                await asyncio.sleep(self.random.uniform(0, 20))
                self.own.heal()
            elif kind < 0.8:
                self.cluster.views[address].pause()
                await asyncio.sleep(self.random.uniform(0.1, 5))
                if self.random.random() < 0.5:
                    self.own.cut()
                    await asyncio.sleep(0.1)
                self.cluster.views[address].resume()
            else:
                self.own.cut(address)
                await self.cluster.stop(address, graceful=False)
                await self.cluster.start(address)
                self.own.heal()

    async def run(self) -> None:
        async with self.own.client(attempt_timeout_s=2, timeout_s=5) as client:
            await client.create_topic("t", PARTITIONS)
            trouble = asyncio.create_task(self.trouble())
            await self.produce(client, asyncio.get_running_loop().time() + TROUBLE_S)
            await end(trouble)
            for view in self.cluster.views.values():
                view.resume()
            self.own.heal()
            async with client.producer(spill=Spill(self.path)) as producer:
                await until(lambda: producer.spilled is not None and producer.spilled.records == 0, 300)
                assert producer.spilled is not None
                self.kinds["maybe twice"] += producer.spilled.maybe_twice
            self.judge(await read_values(client))

    def judge(self, stored: dict[int, list[bytes | None]]) -> None:
        for partition, deliveries in self.deliveries.items():
            found = [int(value or b"") for value in stored[partition]]
            answered = [number for number, delivery in deliveries if delivery.done() and not _error(delivery)]
            lost = sorted(set(answered) - set(found))
            assert not lost, f"partition {partition} lost {lost[:5]}: {dict(deliveries)[lost[0]].result()}"
            assert max(Counter(found).values(), default=1) == 1, f"partition {partition} has a record twice"
            among = set(answered)
            assert [number for number in found if number in among] == answered, f"partition {partition}"
            for _, delivery in deliveries:
                if delivery.done() and not _error(delivery):
                    self.kinds[type(delivery.result()).__name__] += 1


def _error(delivery: ledgermq.Delivery) -> LedgerMQError | None:
    return delivery.exception()


@pytest.mark.parametrize("seed", SEEDS)
@virtual
async def test_what_was_answered_is_stored_once_and_in_order(seed: int, tmp_path: Path) -> None:
    async with cluster_of("b1:1", "b2:1") as cluster:
        storm = Storm(cluster, seed, tmp_path / "t.spill")
        await storm.run()
    assert storm.kinds[Spilled.__name__] > 10, storm.kinds
    assert storm.kinds["SendResult"] > 10, storm.kinds
    assert storm.kinds["maybe twice"] == 0, storm.kinds
