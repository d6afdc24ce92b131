"""Committed offsets are kept for their retention time by the store's clock, however wrong the
clocks of the coordinators are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ledgermq.errors import Unavailable
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.root.two_clocks import TwoClocks
from tests.broker.cluster import Cluster, cluster_of
from tests.broker.groups import Member, Outsider, committed_offset, settled
from tests.virtual_time import EPOCH_US, run_virtual, virtual, virtual_sources

HOUR_S = 3600.0
RETENTION_S = 1.5 * HOUR_S
LOOK_S = 61.0
"""Coordinators look every minute for what has expired."""
SETTINGS = {
    "offsets_retention_ms": round(RETENTION_S * 1000),
    "heartbeat_interval_ms": 30_000,
    "bundles": 2,
    "offsets_partitions": 1,
}


async def group_that_is_empty(cluster: Cluster, skew_s: float) -> None:
    """A member commits offset 5 and leaves; then another broker coordinates the group.

    The clock of the first is `skew_s` ahead.
    """
    await cluster.start("a:1", skew_s)
    await cluster.settled()
    await cluster.create("t", 1)
    await cluster.produce("t", 0, *[b"x"] * 9)
    member = Member(cluster, "g", "m", ["t"])
    await member.join()
    await settled([member])
    assert await member.commit("t", 0, 5) == ""
    await member.leave()
    await cluster.stop("a:1")


async def take_over(cluster: Cluster, skew_s: float) -> None:
    await cluster.start("b:1", skew_s)
    await cluster.settled()


@pytest.mark.parametrize("first_s", [-HOUR_S, 0.0])
@pytest.mark.parametrize("second_s", [HOUR_S, 1000 * HOUR_S])
@virtual
async def test_no_clock_takes_offsets_early(first_s: float, second_s: float) -> None:
    """One is behind when the group becomes empty, the next is ahead: every one of their 90 minutes
    counts.
    """

    async with cluster_of(**SETTINGS) as cluster:
        await group_that_is_empty(cluster, first_s)
        emptied_s = asyncio.get_running_loop().time()
        await take_over(cluster, second_s)
        for left_s in (RETENTION_S - 200, 60):
            await asyncio.sleep(emptied_s + RETENTION_S - left_s - asyncio.get_running_loop().time())
            assert await committed_offset(cluster, "g", "t", 0) == 5
        await asyncio.sleep(60 + 2 * LOOK_S)
        assert await committed_offset(cluster, "g", "t", 0) is None, "by the store's clock it is time"


@virtual
async def test_what_is_committed_without_members_is_stamped_alike() -> None:
    async with cluster_of(**SETTINGS) as cluster:
        await cluster.start("a:1", -HOUR_S)
        await cluster.settled()
        await cluster.create("t", 1)
        await cluster.produce("t", 0, *[b"x"] * 9)
        assert await Outsider(cluster, "g").commit(("t", 0, 5)) == [""]
        await cluster.stop("a:1")
        await take_over(cluster, HOUR_S)
        await asyncio.sleep(RETENTION_S - 120)
        assert await committed_offset(cluster, "g", "t", 0) == 5
        await asyncio.sleep(120 + 2 * LOOK_S)
        assert await committed_offset(cluster, "g", "t", 0) is None


class TimelessStore(StoreWrapper):
    """While `silent`, no coordinator gets the time."""

    silent = True

    async def store_time_ms(self) -> int:
        if self.silent:
            raise Unavailable("the store does not tell the time")
        return await self.inner.store_time_ms()


@virtual
async def test_nothing_is_forgotten_while_the_store_does_not_tell_the_time() -> None:
    store = TimelessStore(MemoryStore("", virtual_sources(1000)))
    async with cluster_of(store=store, **SETTINGS) as cluster:
        await group_that_is_empty(cluster, 0.0)
        await take_over(cluster, HOUR_S)
        await asyncio.sleep(2 * RETENTION_S)
        assert await committed_offset(cluster, "g", "t", 0) == 5
        store.silent = False
        await asyncio.sleep(2 * LOOK_S)
        assert await committed_offset(cluster, "g", "t", 0) is None


def in_virtual_time(skew_s: float, check: Callable[[TwoClocks, int], None], learned: bool = True) -> None:
    """`check(clocks, true_ms)`, ten minutes after something was learned of the store."""

    async def main() -> None:
        clocks = TwoClocks(MemoryStore("", virtual_sources(1)), virtual_sources(2, round(skew_s * 1e6)))
        if learned:
            clocks.learn(EPOCH_US // 1000, asyncio.get_running_loop().time())
        await asyncio.sleep(600)
        check(clocks, EPOCH_US // 1000 + 600_000)

    run_virtual(main)


def test_a_stamp_is_of_the_later_clock() -> None:
    def expect(stamp_ms: int) -> Callable[[TwoClocks, int], None]:
        def check(clocks: TwoClocks, true_ms: int) -> None:
            assert clocks.stamp_ms() - true_ms == stamp_ms

        return check

    in_virtual_time(-HOUR_S, expect(0))
    in_virtual_time(HOUR_S, expect(3_600_000))
    in_virtual_time(-HOUR_S, expect(-3_600_000), learned=False)
