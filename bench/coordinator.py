"""What groups cost, measured on one broker in this process, without gRPC.

    python -m bench.coordinator [--commits 1000000] [--root URL]

1. commits: many of them on a thousand keys (ten groups, a hundred partitions), a hundred in a request; and one in a
   request
2. takeover: another broker, with nothing in memory, tells all offsets; its time, its GETs and their bytes
3. rebalance: five hundred members join a group of five thousand partitions at once; then fifty of them leave
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence

from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.root.open import open_store
from tests.broker.cluster import Cluster, cluster_of, until
from tests.broker.groups import Member, Outsider, committed
from tests.stores.counting import CountingStore

GROUPS, PARTITIONS = 10, 100
MEMBERS, TOPICS, TOPIC_PARTITIONS = 500, 5, 1000


def say(what: str, value: str) -> None:
    print(f"{what:<58} {value}", flush=True)


async def measure_commits(cluster: Cluster, store: CountingStore, commits: int) -> None:
    await cluster.create("t", PARTITIONS)
    rounds = commits // (GROUPS * PARTITIONS)
    for partition in range(PARTITIONS):
        await cluster.produce("t", partition, *[b"x"] * rounds)
    groups = [Outsider(cluster, f"g{i}") for i in range(GROUPS)]

    async def keep_committing(group: Outsider) -> None:
        for i in range(1, rounds + 1):
            codes = await group.commit(*(("t", p, i) for p in range(PARTITIONS)))
            assert not any(codes), codes

    slots = _slots(cluster)
    begun, cpu_s = time.monotonic(), time.process_time()
    await asyncio.gather(*(keep_committing(group) for group in groups))
    seconds, cpu_s = time.monotonic() - begun, time.process_time() - cpu_s
    total = rounds * GROUPS * PARTITIONS
    say(
        f"{total:,} commits, {PARTITIONS} a request, {GROUPS} at once",
        f"{seconds:.1f} s ({cpu_s:.1f} s CPU), {total / seconds:,.0f}/s, {_slots(cluster) - slots} segments",
    )
    reads = sum(store.reads.values())
    say("  reads meanwhile, for cleaning by key", f"{reads:,} GETs, {store.bytes / 1e6:.1f} MB")


async def measure_single_commits(cluster: Cluster, count: int = 20_000, at_once: int = 200) -> None:
    lanes = [Outsider(cluster, f"single{i}") for i in range(at_once)]
    await asyncio.gather(*(lane.commit(("t", 0, 0)) for lane in lanes))

    async def keep_committing(lane: Outsider) -> None:
        for _ in range(count // at_once):
            assert await lane.commit(("t", 0, 1)) == [""]

    slots = _slots(cluster)
    begun, cpu_s = time.monotonic(), time.process_time()
    await asyncio.gather(*(keep_committing(lane) for lane in lanes))
    seconds, cpu_s = time.monotonic() - begun, time.process_time() - cpu_s
    say(
        f"{count:,} commits, one a request, {at_once} at once",
        f"{seconds:.1f} s ({cpu_s:.1f} s CPU), {count / seconds:,.0f}/s, {_slots(cluster) - slots} segments",
    )


async def measure_takeover(cluster: Cluster, store: CountingStore, commits: int) -> None:
    await cluster.stop("a:1", graceful=False)
    store.forget()
    begun, cpu_s = time.monotonic(), time.process_time()
    await cluster.start("b:1")
    await cluster.settled()
    opened = time.monotonic()
    rounds = commits // (GROUPS * PARTITIONS)
    for i in range(GROUPS):
        found = await committed(cluster, f"g{i}")
        assert [part.offset for part in found] == [rounds] * PARTITIONS
    answered = time.monotonic()
    say("takeover: bundles open", f"{opened - begun:.2f} s")
    say("takeover: all offsets returned", f"{answered - begun:.2f} s ({time.process_time() - cpu_s:.2f} s CPU)")
    say("  read for it", f"{sum(store.reads.values()):,} GETs {dict(store.reads)}, {store.bytes / 1e6:.2f} MB")


async def measure_rebalance(cluster: Cluster) -> None:
    for i in range(TOPICS):
        await cluster.create(f"many{i}", TOPIC_PARTITIONS)
    partitions = TOPICS * TOPIC_PARTITIONS
    members = [Member(cluster, "crowd", f"m{i:03}", [f"many{j}" for j in range(TOPICS)]) for i in range(MEMBERS)]
    begun = time.monotonic()
    await asyncio.gather(*(member.join() for member in members))
    await _until_all_is_held(members)
    say(f"{MEMBERS} members join, {partitions:,} partitions: all held", f"{time.monotonic() - begun:.2f} s")
    begun = time.monotonic()
    await asyncio.gather(*(member.leave() for member in members[:50]))
    await _until_all_is_held(members[50:])
    say("50 of them leave: all held", f"{time.monotonic() - begun:.2f} s")


async def _until_all_is_held(members: Sequence[Member]) -> None:
    stopping = False
    everything = sorted((f"many{i}", p) for i in range(TOPICS) for p in range(TOPIC_PARTITIONS))

    async def keep_beating(member: Member) -> None:
        while not stopping:
            await member.beat(500)

    tasks = [asyncio.create_task(keep_beating(member)) for member in members]
    await until(lambda: sorted(key for member in members for key in member.owned) == everything)
    stopping = True
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _slots(cluster: Cluster) -> int:
    return sum(
        owner.opened_slot() for broker in cluster.brokers.values() for owner in broker.ownership.terms.opened.values()
    )


async def main(commits: int, root: str | None) -> None:
    inner: ObjectStore = await open_store(root, sources=Sources()) if root else MemoryStore("bench")
    store = CountingStore(inner)
    say("store", root or "memory")
    say("cores, load", f"{os.cpu_count()}, {os.getloadavg()[0]:.1f}")
    settings = {"background_compaction": True, "bundles": 5, "log_level": "error"}
    async with cluster_of("a:1", store=store, **settings) as cluster:
        await measure_commits(cluster, store, commits)
        await measure_takeover(cluster, store, commits)
        await measure_single_commits(cluster)
        await measure_rebalance(cluster)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=1_000_000)
    parser.add_argument("--root", help="a fresh root, file:///…; memory if not given")
    given = parser.parse_args()
    asyncio.run(main(given.commits, given.root))
