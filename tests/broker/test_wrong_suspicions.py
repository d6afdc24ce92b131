"""A minute of random faults, by seed, in virtual time: brokers report living ones as lost, brokers die,
leave, or are paused until others have replaced them; the store fails. Level *cluster* of the
simulation has all of that but reports of a living broker as one whose address refuses connections.

Idempotent producers and a reader run all the while. At the end each partition holds every
acknowledged record, once, in order; an unacknowledged record may be there or not, but at most once
and in its place. The seed is printed, and repeats the run.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from ledgermq.errors import LedgerMQError, NotOwner, RetriableError, UnknownProducer
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.resilient import ResilientStore
from tests.broker.cluster import Cluster, cluster_of, fetch_of, values_of
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import virtual, virtual_sources
from tests.waiting import until
from tests.worlds.roots import parquet_keys

PARTITIONS = 3
DAY_S = 60.0
CALM_S = 90.0


class Day:
    def __init__(self, cluster: Cluster, store: FaultyStore, seed: int) -> None:
        self.cluster = cluster
        self.store = store
        self.random = random.Random(seed)
        self.over = False
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        """By offset."""
        self.in_doubt: list[set[bytes]] = [set() for _ in range(PARTITIONS)]
        self.seen: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        self._names = 0

    async def chaos(self) -> None:
        while not self.over:
            await asyncio.sleep(self.random.uniform(0.5, 6))
            answering = self.cluster.network.addresses()
            victim = self.random.choice(answering)
            deed = self.random.choice(("kill", "leave", "pause", "faults", "calm", "suspect"))
            if deed == "kill" and len(answering) > 1:
                await self.cluster.stop(victim, graceful=False)
            elif deed == "leave" and len(answering) > 1:
                await self.cluster.stop(victim)
            elif deed == "pause":
                asyncio.get_running_loop().call_later(self.random.uniform(0.1, 20), self.cluster.views[victim].resume)
                self.cluster.views[victim].pause()
            elif deed == "faults":
                self.store.faults = Faults(before=0.05, after=0.05, late=0.03, throttle=0.03, delay_s_max=0.05)
            elif deed == "calm":
                self.store.faults = Faults(delay_s_max=0.01)
            elif deed == "suspect":
                accuser = self.cluster.brokers[self.random.choice(answering)]
                accuser.ownership.report_lost(self.cluster.brokers[victim].broker_id, self.random.random() < 0.5)
            if len(self.cluster.brokers) < 3:
                await self.start()

    async def start(self) -> None:
        self._names += 1
        try:
            await self.cluster.start(f"new{self._names}:1")
        except LedgerMQError:
            pass  # the store fails just now

    async def produce(self, partition: int) -> None:
        """One batch after the other; after UNKNOWN_PRODUCER, or when in doubt too long, as a new
        producer.
        """
        number = 0
        session: pb.ProducerSession | None = None
        while not self.over:
            await asyncio.sleep(self.random.uniform(0, 0.3))
            value = b"%d/%d" % (partition, number)
            number += 1
            self.in_doubt[partition].add(value)
            try:
                if session is None:
                    session = await self.open(partition)
                async with asyncio.timeout(30):
                    offset, _ = await self.cluster.produce("t", partition, value, session=session)
            except (UnknownProducer, TimeoutError):
                session = None
                continue
            session.sequence += 1
            self.in_doubt[partition].discard(value)
            assert offset not in self.acknowledged[partition], (
                f"offset {offset} of partition {partition} was given out twice"
            )
            self.acknowledged[partition][offset] = value

    async def open(self, partition: int) -> pb.ProducerSession:
        wanted = pb.OpenProducerRequest(partitions=[pb.TopicPartition(topic="t", partition=partition)])
        while not self.over:
            for address in self.cluster.network.addresses():
                try:
                    async with asyncio.timeout(3):
                        [opened] = (await self.cluster.line(address).open_producer(wanted)).partitions
                except (RetriableError, TimeoutError):
                    continue
                if not opened.HasField("error"):
                    return pb.ProducerSession(id=self.random.randbytes(16), opened_slot=opened.opened_slot)
            await asyncio.sleep(0.1)
        raise TimeoutError

    async def read(self, partition: int) -> None:
        """Follow the partition from wherever it is served; one offset must never show two values."""
        offset = 0
        while not self.over:
            await asyncio.sleep(self.random.uniform(0, 1))
            address = self.random.choice(self.cluster.network.addresses())
            try:
                async with asyncio.timeout(5):
                    frame = await self.cluster.line(address).fetch_once(
                        fetch_of("t", partition, offset, max_wait_ms=500)
                    )
            except (RetriableError, TimeoutError):
                continue
            [part] = frame.header.partitions
            if part.HasField("error"):
                error = error_from_proto(part.error)
                assert isinstance(error, NotOwner | RetriableError), error
                continue
            for i, value in enumerate(values_of(frame)):
                at = part.batches[0].base_offset + i
                assert self.seen[partition].setdefault(at, value) == value, (
                    f"offset {at} of partition {partition} has two values"
                )
                offset = at + 1

    async def check(self) -> None:
        for partition in range(PARTITIONS):
            stored = await self.cluster.read_all("t", partition)
            assert len(set(stored)) == len(stored), "a record is stored twice"
            for offset, value in self.acknowledged[partition].items():
                assert stored[offset] == value, f"partition {partition}, offset {offset}"
            for offset, value in self.seen[partition].items():
                assert stored[offset] == value, f"partition {partition}, offset {offset} was shown with another value"
            assert set(stored) - set(self.acknowledged[partition].values()) <= self.in_doubt[partition]
            numbers = [int(value.split(b"/")[1]) for value in stored]
            assert numbers == sorted(numbers)


async def has_files(store: ObjectStore) -> bool:
    """Whether each partition has Parquet files."""
    found = [await parquet_keys(store, keys.parquet_partition("t", partition)) for partition in range(PARTITIONS)]
    return all(found)


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("compaction", [False, True], ids=["segments", "parquet"])
@virtual
async def test_a_bad_day(seed: int, compaction: bool) -> None:
    store = FaultyStore(MemoryStore("", virtual_sources()), virtual_sources(seed))
    settings = {"background_compaction": compaction, "checkpoint_slots": 8 if compaction else 256}
    resilient = ResilientStore(store, virtual_sources(seed + 500))
    async with cluster_of("a:1", "b:1", "c:1", store=resilient, bundles=4, **settings) as cluster:
        await cluster.create("t", PARTITIONS, parquet_max_lag_ms="4000", parquet_target_bytes="3000")
        day = Day(cluster, store, seed)
        async with asyncio.TaskGroup() as group:
            for partition in range(PARTITIONS):
                group.create_task(day.produce(partition))
                group.create_task(day.read(partition))
            group.create_task(day.chaos())
            await asyncio.sleep(DAY_S)
            day.over = True
        store.faults = Faults()
        for view in cluster.views.values():
            view.resume()
        await store.settled()
        await until(lambda: all(len(cluster.serving("t", p)) == 1 for p in range(PARTITIONS)), CALM_S)
        await day.check()
        assert sum(map(len, day.acknowledged)) > 30, "the day was too bad to prove anything"
        assert not any(broker.failed.done() for broker in cluster.brokers.values())
        if compaction:
            await until(lambda: has_files(store.inner), CALM_S)
