"""Producers and consumers of the SDK on a cluster under random faults, by a seed, in virtual time.

Brokers are killed, stopped gracefully, paused and started; the store fails before and after effect,
late, and throttles. In every run each acknowledged record is at its acknowledged offset, once, in
the order of sending by key; a reader that runs all the time reads the same.
"""

from __future__ import annotations

import asyncio
import random

import pytest

import ledgermq
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import LedgerMQError, OutcomeUnknown
from ledgermq_broker.ports.in_process import InProcessConnector
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import virtual, virtual_sources

PARTITIONS = 4
SEEDS = range(1)
"""Level *cluster* of the simulation judges the same on as many seeds as one likes."""
SLOW = Faults(delay_s_max=0.1)
"""A put takes effect some time before its answer: kills fall between the two."""
FAULTS = Faults(before=0.02, after=0.02, late=0.01, throttle=0.02, delay_s_max=0.1)


class Chaos:
    def __init__(self, cluster: Cluster, store: FaultyStore, seed: int) -> None:
        self.cluster = cluster
        self.store = store
        self.random = random.Random(seed)
        self.sent: dict[bytes, tuple[bytes, ledgermq.Delivery]] = {}
        self.read: list[ledgermq.Message] = []
        self.started = 0
        self.client = ledgermq.Client(
            InProcessConnector(cluster.network),
            list(cluster.brokers),
            ClientSettings(attempt_timeout_s=3),
            virtual_sources(seed + 1),
        )

    async def disturb(self) -> None:
        """One trouble after the other; two brokers at least stay."""
        for _ in range(8):
            await asyncio.sleep(self.random.uniform(0.2, 4))
            address = self.random.choice(list(self.cluster.brokers))
            trouble = self.random.choice(["kill", "stop", "pause", "store"])
            if trouble == "pause":
                self.cluster.views[address].pause()
                await asyncio.sleep(self.random.uniform(1, 12))
                self.cluster.views[address].resume()
            elif trouble == "store":
                self.store.faults = FAULTS
                await asyncio.sleep(self.random.uniform(1, 5))
                self.store.faults = SLOW
            else:
                self.started += 1
                await self.cluster.start(f"new-{self.started}:1")
                await self.cluster.stop(address, graceful=trouble == "stop")

    async def produce(self, name: str, until: asyncio.Event) -> None:
        producer = self.client.producer(
            linger_ms=self.random.choice([0, 5, 50]), batch_bytes_max=200, request_timeout_s=5
        )
        number = 0
        while not until.is_set():
            for _ in range(self.random.randint(1, 20)):
                value = f"{name}/{number}".encode()
                key = f"{name}/{number % 5}".encode()
                self.sent[value] = key, producer.send("t", value, key=key)
                number += 1
            await asyncio.sleep(self.random.uniform(0, 0.3))
        try:
            await producer.close()
        except OutcomeUnknown:
            pass  # looked at below, record by record

    async def consume(self, until: asyncio.Event) -> None:
        async with self.client.consumer("t", request_timeout_s=200) as consumer:
            while not until.is_set() or consumer.positions() != await consumer.end_offsets():
                self.read += await consumer.fetch(100, timeout=1)

    async def run(self) -> None:
        await self.client.create_topic("t", PARTITIONS)
        quiet, produced = asyncio.Event(), asyncio.Event()
        async with self.client, asyncio.TaskGroup() as group:
            group.create_task(self.consume(produced))
            async with asyncio.TaskGroup() as producing:
                for name in ("p", "q"):
                    producing.create_task(self.produce(name, quiet))
                await self.disturb()
                quiet.set()
            produced.set()

    def check(self) -> None:
        places: dict[bytes, tuple[int, int]] = {}
        ends = [0] * PARTITIONS
        for message in self.read:
            assert message.value is not None
            assert message.offset == ends[message.partition], "offsets are dense, and read once"
            ends[message.partition] += 1
            assert message.value not in places, "no record is stored twice"
            places[message.value] = message.partition, message.offset
        last: dict[bytes, int] = {}
        for value, (key, delivery) in self.sent.items():
            error = delivery.exception()
            assert error is None or isinstance(error, LedgerMQError)
            assert (value in places) or error is not None, "what was acknowledged is there"
            assert not (value in places and error is not None and not isinstance(error, OutcomeUnknown)), (
                "what was refused is not"
            )
            if error is None:
                result = delivery.result()
                assert places[value] == (result.partition, result.offset), "each is where its answer said"
                assert result.offset > last.get(key, -1), "in the order of sending"
                last[key] = result.offset


@pytest.mark.parametrize("seed", SEEDS)
@virtual
async def test_each_record_is_there_once_in_order_after_every_fault(seed: int) -> None:
    store = FaultyStore(MemoryStore("", virtual_sources(1000 + seed)), virtual_sources(2000 + seed), SLOW)
    async with cluster_of("a:1", "b:1", "c:1", store=store) as cluster:
        chaos = Chaos(cluster, store, seed)
        async with asyncio.timeout(3600):
            await chaos.run()
        chaos.check()
        assert len(chaos.sent) > 100
