"""Timestamps of a partition with LogAppendTime never decrease: whatever the clocks of its owners show,
whoever takes over, whichever puts the store refuses, and whatever has become Parquet meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgermq.errors import StoreFull
from ledgermq.protocol.batches.records import decode_batch
from ledgermq.sources import Sources
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_bundle
from ledgermq_ledger.topics.settings import parse_settings
from ledgermq_ledger.topics.topic import Topic
from tests.stores.full import RefusingStore
from tests.virtual_time import run_virtual, virtual_sources
from tests.worlds.bundles import TOPIC, bundle_context
from tests.worlds.ledgers import batch

SECOND_US = 1_000_000
PRODUCED_MS = 4_000_000_000_000
"""A producer's timestamp, which is far ahead of all brokers' clocks."""
RAW = {"message.timestamp.type": "LogAppendTime"}
STAMPED = Topic(TOPIC.id + 1, "stamped", (1, 1), RAW, parse_settings(RAW))


@dataclass
class Clock:
    """A store's clock as a broker estimates it. It may be wrong by any amount."""

    now_us: int

    def store_us(self) -> int:
        return self.now_us


@dataclass(frozen=True)
class Step:
    what: str
    clock_s: int
    partition: int = 0


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["send"] * 6 + ["take over", "take over", "refuse", "compact"]),
        st.integers(-3600, 3600),
        st.integers(0, 1),
    ),
    min_size=2,
    max_size=25,
)


def context_of(store: RefusingStore, sources: Sources, clock: Clock) -> BundleContext:
    context = replace(bundle_context(store, sources), run_blocking=run_inline, store_us=clock.store_us)
    catalog = context.catalog()
    catalog.topics_by_name[STAMPED.name] = catalog.topics_by_id[STAMPED.id] = STAMPED
    catalog.offset = STAMPED.id + 1
    return context


async def times_of(owner: BundleOwner, partition: int) -> list[int]:
    times: list[int] = []
    while batches := (await owner.fetch(STAMPED, partition, len(times), 1 << 20)).batches:
        for stored in batches:
            rows = decode_batch(stored.data).slice(len(times) - stored.base_offset)
            times += [moment.value for moment in rows.column("timestamp")]
            assert set(rows.column("timestampType").to_pylist()) == {1}
    return times


async def live(wanted: list[Step]) -> None:
    sources = virtual_sources(1)
    store = RefusingStore()
    begun_us = sources.now_us()
    clock = Clock(begun_us)
    context = context_of(store, sources, clock)
    owner = await BundleOwner.open(1, context)
    sent = [0, 0]
    latest_us = begun_us
    for step in wanted:
        clock.now_us = begun_us + step.clock_s * SECOND_US
        latest_us = max(latest_us, clock.now_us)
        match step.what:
            case "send":
                records = batch(b"a", b"b", topic_id=STAMPED.id, partition=step.partition, timestamp_ms=PRODUCED_MS)
                [done] = owner.produce([records], durable=True)
                assert await done == sent[step.partition]
                sent[step.partition] += 2
            case "take over":
                await owner.close()
                context = context_of(store, sources, clock)
                owner = await BundleOwner.open(1, context)
            case "refuse":
                store.refusal = StoreFull("full")
                try:
                    [done] = owner.produce([batch(b"c", topic_id=STAMPED.id, partition=step.partition)], durable=True)
                    await done
                except StoreFull:
                    pass
                store.refusal = None
                await owner.close()
                context = context_of(store, sources, clock)
                owner = await BundleOwner.open(1, context)
            case "compact":
                engine = LocalEngine(sources, run_inline)
                rounds = Compaction(store, context.cluster, sources, engine)
                await compact_bundle(rounds, 1, context.catalog(), everything=True)
    for partition in range(2):
        times = await times_of(owner, partition)
        assert len(times) == sent[partition]
        assert times == sorted(times)
        assert all(begun_us - 3600 * SECOND_US <= moment <= latest_us for moment in times)
    await owner.close()


@given(steps)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_timestamps_never_decrease(wanted: list[Step]) -> None:
    run_virtual(lambda: live(wanted))
