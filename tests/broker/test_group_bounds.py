"""Bound the cost of groups: large rebalances, and reads of a takeover; in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.log.internal_topic import INTERNAL_SEGMENTS
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.broker.groups import Member, Outsider, ask, committed, coordinator_of
from tests.stores.counting import CountingStore
from tests.virtual_time import virtual, virtual_sources
from tests.waiting import until


async def take_over(cluster: Cluster, store: CountingStore, groups: Sequence[str]) -> dict[str, list[int | None]]:
    """Start a broker anew, with nothing in memory; what it tells of each group's offsets.

    The store counts from the start on.
    """
    await cluster.stop("a:1", graceful=False)
    store.forget()
    await cluster.start("b:1")
    await cluster.settled()
    return {group: [part.offset for part in await committed(cluster, group)] for group in groups}


@pytest.mark.slow
@virtual
async def test_a_takeover_reads_what_is_alive_and_not_what_was_ever_committed() -> None:
    store = CountingStore(MemoryStore("", virtual_sources(1000)))
    async with cluster_of("a:1", store=store, background_compaction=True, bundles=2) as cluster:
        await cluster.create("t", 10)
        for partition in range(10):
            await cluster.produce("t", partition, *[b"x"] * 1000)
        groups = [Outsider(cluster, f"g{i}") for i in range(3)]
        rounds = 3 * INTERNAL_SEGMENTS
        for i in range(rounds):  # each round is one segment with thirty commits
            await asyncio.gather(*(group.commit(*(("t", p, i // 2) for p in range(10))) for group in groups))
            await asyncio.sleep(0.1)
        found = await take_over(cluster, store, [group.group for group in groups])
        assert found == {group.group: [(rounds - 1) // 2] * 10 for group in groups}
        # The owner looks every ten seconds, a hundred segments, whether a snapshot is due, and
        # making one takes a moment.
        assert store.reads["get_range"] <= INTERNAL_SEGMENTS + 130, store.reads
        assert sum(store.reads.values()) < 3 * INTERNAL_SEGMENTS, (rounds, store.reads)
        assert store.bytes < 5 * 1024 * 1024
        await _go_to_parquet(cluster, store)
        assert [part.offset for part in await committed(cluster, "g0")] == [(rounds - 1) // 2] * 10


async def _go_to_parquet(cluster: Cluster, store: ObjectStore) -> None:
    """What plans of internal topics alone have named is still written to Parquet by later ones;
    nothing is wrong before or after.
    """
    root = await read_cluster(store)
    assert not (await check_root(store, root, run_blocking=run_inline)).problems
    sources = virtual_sources(7)
    report = await compact_root(store, sources, LocalEngine(sources, run_inline))
    assert not report.failures
    assert sum(done.records for done in report.rounds) == 10_000
    assert not [
        p for p in (await check_root(store, root, run_blocking=run_inline)).problems if p.severity is Severity.DAMAGE
    ]
    assert await cluster.read_all("t", 3) == [b"x"] * 1000


@virtual
async def test_half_a_thousand_members_share_five_thousand_partitions() -> None:
    async with cluster_of("a:1", "b:1") as cluster:
        for i in range(5):
            await cluster.create(f"t{i}", 1000)
        members = [Member(cluster, "g", f"m{i:03}", [f"t{j}" for j in range(5)]) for i in range(500)]
        begun = asyncio.get_running_loop().time()
        await asyncio.gather(*(member.join() for member in members))
        await _beat_until(members, lambda: all(len(member.owned) == 10 for member in members))
        _check(members, 5000)
        for member in members[:50]:
            await member.leave()
        rest = members[50:]
        await _beat_until(rest, lambda: sum(len(member.owned) for member in rest) == 5000)
        _check(rest, 5000)
        assert {len(member.owned) for member in rest} <= {11, 12}
        await cluster.stop(await coordinator_of(cluster, "g"), graceful=False)
        before = [dict(member.owned) for member in rest]
        await asyncio.gather(*(member.beat() for member in rest))
        assert [member.owned for member in rest] == before
        assert asyncio.get_running_loop().time() - begun < 60
        described = await ask(cluster, lambda line: line.describe_group(pb.DescribeGroupRequest(group="g")))
        assert described.group.member_count == 450


async def _beat_until(members: Sequence[Member], condition) -> None:  # type: ignore[no-untyped-def]
    for _ in range(40):
        await asyncio.gather(*(member.beat(1000) for member in members))
        if condition():
            return
    raise AssertionError("the group does not come to rest")


def _check(members: Sequence[Member], partitions: int) -> None:
    owned = Counter(key for member in members for key in member.owned)
    assert len(owned) == partitions
    assert set(owned.values()) == {1}


@in_cluster("a:1", "b:1")
async def test_a_waiting_group_costs_no_requests(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    member = Member(cluster, "g", "m", ["t"])
    await member.join()
    await member.beat()
    slots = {
        b: o.opened_slot() for broker in cluster.brokers.values() for b, o in broker.ownership.terms.opened.items()
    }
    for _ in range(30):
        await member.beat(3000)
    await until(lambda: True)
    later = {
        b: o.opened_slot() for broker in cluster.brokers.values() for b, o in broker.ownership.terms.opened.items()
    }
    assert later.keys() == slots.keys()
    assert sum(later.values()) - sum(slots.values()) <= 1, "heartbeats are not written"
