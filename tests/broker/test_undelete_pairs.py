"""Topics that come back, beside what else happens: takeovers, moves, twins, cuts, copies, old processes."""

from __future__ import annotations

import asyncio

import pytest

import ledgermq
from ledgermq.errors import LedgerMQError, UnknownTopic
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.broker.test_copied_cuts import copy_of
from tests.broker.test_undelete import GRACE, send, values_of
from tests.virtual_time import virtual_sources
from tests.waiting import until

VALUES = [b"1", b"2", b"3"]


def controller(cluster: Cluster) -> str:
    [found] = [a for a, broker in cluster.brokers.items() if keys.METADATA_BUNDLE in broker.ownership.opened]
    return found


async def a_topic(client: ledgermq.Client, name: str = "t", grace_ms: int | None = None) -> None:
    await client.create_topic(name, 1, GRACE if grace_ms is None else {"topic.delete.grace.ms": grace_ms})
    await send(client, name, *VALUES)


async def rounds(cluster: Cluster) -> None:
    sources = virtual_sources(31)
    await compact_root(cluster.store, sources, LocalEngine(sources, run_inline))


async def check(cluster: Cluster) -> None:
    checked = await check_root(cluster.store, await read_cluster(cluster.store), run_blocking=run_inline)
    assert checked.worst in (None, Severity.NOTE, Severity.UNTIDY), checked.problems


@in_cluster("a:1", "b:1", "c:1")
async def test_a_takeover_while_it_is_brought_back(cluster: Cluster) -> None:
    """The controller dies with the call under way: the next one brings the topic back, once."""
    async with cluster.client(timeout_s=90) as client:
        await a_topic(client)
        await client.delete_topic("t")
        dying = controller(cluster)
        cluster.views[dying].pause()
        call = asyncio.create_task(client.undelete_topic("t"))
        await asyncio.sleep(1)
        assert not call.done()
        await cluster.stop(dying, graceful=False)
        assert (await call).name == "t"
        assert await values_of(client, "t") == VALUES
        assert await client.list_topics(deleted=True) == []


@in_cluster("a:1", "b:1")
async def test_a_controller_that_was_replaced_does_not_remove_what_came_back(cluster: Cluster) -> None:
    """R3, an old process: it sleeps while the grace is not over and the topic comes back, and wakes long after."""
    async with cluster.client(timeout_s=120) as client:
        await a_topic(client, grace_ms=120_000)
        await client.delete_topic("t")
        old = controller(cluster)
        cluster.views[old].pause()
        await until(lambda: other_has_it(cluster, old), 90)
        await client.undelete_topic("t")
        await asyncio.sleep(180)
        cluster.views[old].resume()
        await asyncio.sleep(180)
        assert await values_of(client, "t") == VALUES
        await send(client, "t", b"4")
    await check(cluster)


async def other_has_it(cluster: Cluster, old: str) -> bool:
    return any(
        keys.METADATA_BUNDLE in broker.ownership.opened for address, broker in cluster.brokers.items() if address != old
    )


@in_cluster("a:1", "b:1", bundles=4)
async def test_a_partition_that_moves_when_its_topic_is_deleted(cluster: Cluster) -> None:
    """The deletion waits for the end of the move, and the topic comes back in its new bundle."""
    async with cluster.client(timeout_s=60) as client:
        await a_topic(client)
        broker = cluster.brokers[controller(cluster)]
        source = broker.metadata.catalog.topics_by_name["t"].bundles[0]
        target = next(bundle for bundle in range(1, 4) if bundle != source)
        await broker.controller.move_partition("t", 0, target, dry_run=False)
        call = asyncio.create_task(client.delete_topic("t"))
        while not call.done():
            await rounds(cluster)
            await asyncio.sleep(2)
        assert await call is not None
        catalog = cluster.brokers[controller(cluster)].metadata.catalog
        assert not list(catalog.moving())
        await rounds(cluster)
        await client.undelete_topic("t")
        assert catalog.topics_by_name["t"].bundles[0] == target
        assert await values_of(client, "t") == VALUES
        await send(client, "t", b"4")
        assert (await client.read_arrow("t")).column("value").to_pylist() == [*VALUES, b"4"]
    await check(cluster)


@in_cluster("a:1", "b:1")
async def test_twins_delete_and_one_brings_back(cluster: Cluster) -> None:
    """A second deletion does not begin the grace anew; one call brings back what two have deleted."""
    async with cluster.client() as client, cluster.client() as twin:
        await a_topic(client)
        ends = await asyncio.gather(client.delete_topic("t"), twin.delete_topic("t"))
        assert ends[0] == ends[1]
        await asyncio.sleep(30)
        assert await twin.delete_topic("t") == ends[0]
        await client.undelete_topic("t")
        assert await values_of(twin, "t") == VALUES
        back = await asyncio.gather(client.undelete_topic("t"), twin.undelete_topic("t"))
        assert back[0].topic_id == back[1].topic_id


@in_cluster("a:1")
async def test_a_cut_of_before_the_deletion_has_the_topic_until_it_is_dropped(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await a_topic(client, grace_ms=60_000)
        await client.cuts.take("c", keep_s=None)
        await client.delete_topic("t")
        assert (await client.read_arrow("t", cut="c")).column("value").to_pylist() == VALUES
        for _ in range(20):
            await rounds(cluster)
            await asyncio.sleep(10)
        with pytest.raises(UnknownTopic):
            await client.undelete_topic("t")
        assert (await client.read_arrow("t", cut="c")).column("value").to_pylist() == VALUES
        await client.create_topic("t", 2)
        await send(client, "t", b"of the new topic")
        assert (await client.read_arrow("t", cut="c")).column("value").to_pylist() == VALUES
    await check(cluster)


@in_cluster("a:1")
async def test_a_topic_that_is_deleted_at_a_cut_can_be_brought_back_in_a_copy_of_it(cluster: Cluster) -> None:
    """Restore: what waits for the end of its grace is in a cut, its records too, but no reader of the cut sees it."""
    async with cluster.client() as client:
        await a_topic(client)
        await client.delete_topic("t")
        await client.cuts.take("c")
        with pytest.raises(LedgerMQError, match="has no topic 't'"):
            await client.read_arrow("t", cut="c")
        await client.delete_topic("t", now=True)
        copy = await copy_of(cluster, "c")
    async with cluster_of(store=copy) as other:
        other._started = 70  # its brokers draw other ids than those of the root
        await other.start("c:1")
        await other.settled()
        await bring_back_in(other)


async def bring_back_in(other: Cluster) -> None:
    async with other.client() as client:
        assert [topic.name for topic in await client.list_topics(deleted=True)] == ["t"]
        await client.undelete_topic("t")
        assert await values_of(client, "t") == VALUES
    await check(other)
