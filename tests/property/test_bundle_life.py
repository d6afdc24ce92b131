"""Random lives of a bundle: producers with retries, faults of the store, takeovers, trims, zombies;
and what has to hold at the end.

Safety invariants 1 to 6 of the design, as a client can see them: every acknowledged record is
there, at the offset that was answered; offsets are dense; each record is there once, whatever was
retried; records of one producer stand in the order in which it sent them; no consumer reads what is
not durable. All in virtual time, from one seed, so a failure replays.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgermq.errors import LedgerMQError, OffsetOutOfRange, RetriableError, StoreError
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext, BundleLimits
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.log.partitions.producers import ProducerSession
from ledgermq_ledger.log.segments.segment import Batch
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.resilient import ResilientStore
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_bundle
from tests.stores.faulty import Faults, FaultyStore
from tests.virtual_time import virtual, virtual_sources
from tests.worlds.bundles import TOPIC, bundle_context, fetch_values
from tests.worlds.ledgers import batch, read_values

PARTITIONS = 2
GROUPS_EACH = 15
LIMITS = BundleLimits(
    flush_spacing_s=0.02,
    puts_in_flight_max=3,
    flush_batches=4,
    cache_bytes_max=3000,
    index_batches_max=60,
    checkpoint_slots=7,
    look_interval_s=1.0,
    background_compaction=False,
)


@dataclass
class Cluster:
    """Owners come and go; the one at the end of `owners` was opened last, older ones may be zombies
    that do not know it.
    """

    store: FaultyStore
    sources: Sources
    owners: list[BundleOwner] = field(default_factory=list)
    acknowledged: dict[tuple[int, bytes], int] = field(default_factory=dict)
    in_doubt: set[tuple[int, bytes]] = field(default_factory=set)

    def context(self, name: str) -> BundleContext:
        resilient = ResilientStore(self.store, self.sources)
        return replace(bundle_context(resilient, self.sources, LIMITS, broker=name), run_blocking=run_inline)

    async def take_over(self) -> None:
        try:
            self.owners.append(await BundleOwner.open(1, self.context(f"broker-{len(self.owners)}")))
        except (RetriableError, StoreError):
            pass

    async def owner(self) -> BundleOwner:
        """Mostly the newest one, sometimes a zombie."""
        while True:
            for owner in [self.sources.random.choice(self.owners), *reversed(self.owners)] if self.owners else []:
                if not owner.ended.is_set():
                    return owner
            await self.take_over()
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        for owner in self.owners:
            await owner.close()


async def producing(cluster: Cluster, number: int) -> None:
    """A well-behaved idempotent producer: up to three batches under way in a partition, all of them
    sent again, in order, until known.
    """
    random = cluster.sources.random
    for partition in range(PARTITIONS):
        producer_id = cluster.sources.new_id()
        opened = await opened_slot(cluster)
        sequence = 0
        for i in range(GROUPS_EACH):
            group = []
            for j in range(random.randint(1, 3)):
                values = [b"%d/%d/%d/%d" % (number, i, j, k) for k in range(random.randint(1, 3))]
                session = ProducerSession(producer_id, 0, sequence, opened)
                group.append((values, batch(*values, partition=partition, producer=session)))
                sequence += len(values)
            await send(cluster, partition, group)
            await asyncio.sleep(random.uniform(0, 0.5))


async def opened_slot(cluster: Cluster) -> int:
    while True:
        try:
            return (await cluster.owner()).opened_slot()
        except LedgerMQError:
            await asyncio.sleep(0.05)


async def send(cluster: Cluster, partition: int, group: list[tuple[list[bytes], Batch]]) -> None:
    """Until all is acknowledged.

    ProducerError is a bug here: no session is forgotten, and a zombie must not judge by its old
    state.
    """
    cluster.in_doubt |= {(partition, value) for values, _ in group for value in values}
    while True:
        owner = await cluster.owner()
        try:
            waiting = owner.produce([request for _, request in group], durable=True)
            async with asyncio.timeout(cluster.sources.random.choice([0.05, 5.0])):
                bases = await asyncio.gather(*waiting)
        except (RetriableError, StoreError, TimeoutError):
            await asyncio.sleep(cluster.sources.random.uniform(0.01, 0.2))
            continue
        for (values, _), base in zip(group, bases, strict=True):
            for i, value in enumerate(values):
                known = cluster.acknowledged.setdefault((partition, value), base + i)
                assert known == base + i
        return


async def disturbing(cluster: Cluster) -> None:
    """Takeovers without a word to the former owner, graceful ones, crashes, compaction by others."""
    random = cluster.sources.random
    while True:
        await asyncio.sleep(random.uniform(0.02, 0.3))
        what = random.choice(["take over", "take over", "crash", "release", "compact"])
        try:
            if what == "take over":
                await cluster.take_over()
            elif what == "compact":
                await compact(cluster)
            elif cluster.owners:
                owner = random.choice(cluster.owners)
                await (owner.close() if what == "crash" else owner.release("x"))
        except (RetriableError, StoreError):
            pass


async def compact(cluster: Cluster) -> None:
    context = cluster.context("compactor")
    engine = LocalEngine(cluster.sources, run_inline)
    await compact_bundle(
        Compaction(context.store, context.cluster, cluster.sources, engine), 1, context.catalog(), everything=True
    )


async def reading(cluster: Cluster, seen: list[dict[int, bytes]]) -> None:
    """Follows each partition by offset, through zombies too; what it saw once must be there at the
    end, unchanged.
    """
    positions = [0] * PARTITIONS
    while True:
        await asyncio.sleep(0.03)
        for partition in range(PARTITIONS):
            try:
                owner = await cluster.owner()
                found = await owner.fetch(TOPIC, partition, positions[partition], 200)
            except OffsetOutOfRange:
                continue  # a zombie that has not heard of the newest records
            except (RetriableError, StoreError):
                continue
            for stored in found.batches:
                for i, value in enumerate(decode_batch(stored.data).column("value").to_pylist()):
                    assert seen[partition].setdefault(stored.base_offset + i, value) == value
                positions[partition] = stored.end


async def live(seed: int, faults: Faults) -> None:
    sources = virtual_sources(seed)
    cluster = Cluster(FaultyStore(MemoryStore("life", sources), sources, faults), sources)
    seen: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
    await cluster.take_over()
    async with asyncio.TaskGroup() as others:
        disturbers = [others.create_task(disturbing(cluster)) for _ in range(3)]
        background = [*disturbers, others.create_task(reading(cluster, seen))]
        async with asyncio.TaskGroup() as producers:
            for number in range(3):
                producers.create_task(producing(cluster, number))
        for task in background:
            task.cancel()
    cluster.store.faults = Faults()
    await cluster.store.settled()
    await cluster.close()
    await check(cluster, seen)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left


async def check(cluster: Cluster, seen: list[dict[int, bytes]]) -> None:
    owner = await BundleOwner.open(1, cluster.context("judge"))
    for partition in range(PARTITIONS):
        values = await fetch_values(owner, partition)
        assert len(set(values)) == len(values), "a record is there twice"
        for (where, value), offset in cluster.acknowledged.items():
            assert where != partition or values[offset] == value, f"{value!r} was acknowledged at {offset}"
        for offset, value in seen[partition].items():
            assert values[offset] == value, "what was read once has changed"
        assert {(partition, value) for value in values} <= cluster.in_doubt
        for number in range(3):
            mine = [tuple(map(int, value.split(b"/"))) for value in values if value.startswith(b"%d/" % number)]
            assert mine == sorted(mine), "order within a producer"
        end = await owner.list_offset(TOPIC, partition, "latest")
        assert end == len(values)
        in_segments = await read_values(cluster.store.inner, partition)
        assert all(values[offset] == value for offset, value in in_segments.items())
    await owner.close()


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.sampled_from(["calm", "slow", "uncertain", "storm"]))
@virtual
async def test_a_life(seed: int, weather: str) -> None:
    faults = {
        "calm": Faults(delay_s_max=0.001),
        "slow": Faults(delay_s_max=0.3),
        "uncertain": Faults(before=0.05, after=0.1, late=0.1, delay_s_max=0.05),
        "storm": Faults(before=0.1, after=0.15, late=0.15, throttle=0.1, delay_s_max=0.2),
    }
    await live(seed, faults[weather])
