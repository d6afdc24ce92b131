"""The cluster survives damage to any one object of bundle 0. If both of a pair are damaged,
brokers that know the topics still serve them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ledgermq.errors import DataDamaged, LedgerMQError, RetriableError, Unauthenticated
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.bundle.upkeep import upkeep
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.check import check_root
from ledgermq_ledger.fsck.problem import Severity
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.root.copies import CopyingStore
from ledgermq_ledger.rounds.runner import compact_root
from tests.broker.cluster import Cluster, cluster_of, read_all
from tests.virtual_time import virtual, virtual_sources

Find = Callable[[CopyingStore], Awaitable[str]]
Harm = Callable[[ObjectStore, str], Awaitable[None]]


async def newest(store: CopyingStore) -> str:
    return keys.checkpoint(0, (await newest_checkpoint(store, 0)).number)


async def snapshot(store: CopyingStore) -> str:
    return keys.snapshot(0, (await newest_checkpoint(store, 0)).snapshot_plan)


async def in_tail(store: CopyingStore, place: int) -> str:
    slot = (await newest_checkpoint(store, 0)).state.slot
    tail = [key async for key in _keys(store, keys.segments(0)) if keys.number(key) > slot]
    return tail[place]


async def _keys(store: ObjectStore, prefix: str) -> AsyncIterator[str]:
    async for info in store.list(prefix):
        yield info.key


OBJECTS: dict[str, Find] = {
    "checkpoint": newest,
    "snapshot": snapshot,
    "first segment of the tail": lambda store: in_tail(store, 0),
    "last segment of the tail": lambda store: in_tail(store, -1),
}


async def flip(store: ObjectStore, key: str) -> None:
    data = bytearray(await store.get(key))
    data[len(data) // 3] ^= 4
    await store.put(key, bytes(data))


async def cut(store: ObjectStore, key: str) -> None:
    await store.put(key, (await store.get(key))[:-9])


async def take_away(store: ObjectStore, key: str) -> None:
    await store.delete([key])


async def grow(cluster: Cluster) -> None:
    """Topics in the snapshot, topics behind it, records in all of them."""
    sources = virtual_sources(5)
    for name in ("early", "gone"):
        await cluster.create(name)
    await cluster.produce("early", 0, b"0")
    await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name="gone"))
    await compact_root(cluster.store, sources, LocalEngine(sources, run_inline))
    for name in ("late", "latest"):
        await cluster.create(name)
        await cluster.produce(name, 1, b"1")


def over_copies() -> CopyingStore:
    return CopyingStore(MemoryStore("", virtual_sources(1000)), mends=True)


@pytest.mark.parametrize("harm", [flip, cut, take_away])
@pytest.mark.parametrize("what", OBJECTS)
@pytest.mark.parametrize("copy", ["", keys.COPY])
@virtual
async def test_one_damaged_object_of_bundle_0_stops_nothing_and_is_mended(what: str, harm: Harm, copy: str) -> None:
    store = over_copies()
    async with cluster_of("a:1", "b:1", store=store) as cluster:
        await grow(cluster)
        for address in ("a:1", "b:1"):
            await cluster.stop(address, graceful=False)
        await harm(store.inner, await OBJECTS[what](store) + copy)
        for address in ("c:1", "d:1"):
            await cluster.start(address)
        await cluster.settled()
        await _everything_works(cluster, "after")
        await cluster.stop("c:1", graceful=False)
        await cluster.settled()
        await _everything_works(cluster, "later")
        await cluster.stop("d:1")
        checked = await check_root(store, await read_cluster(store), run_blocking=run_inline)
    assert [problem for problem in checked.problems if problem.severity is Severity.DAMAGE] == []
    assert store.damaged == {}


async def _everything_works(cluster: Cluster, new: str) -> None:
    await _until_created(cluster, new)  # brokers that start together may still exchange bundles
    assert (await cluster.produce(new, 0, b"x"))[0] == 0
    for name, partition, values in (("early", 0, [b"0"]), ("late", 1, [b"1"]), ("latest", 1, [b"1"]), (new, 0, [b"x"])):
        assert await cluster.read_all(name, partition) == values
    listed = await cluster.line(next(iter(cluster.brokers))).describe_topics(pb.DescribeTopicsRequest())
    assert {"early", "late", "latest", new} <= {topic.name for topic in listed.topics}
    assert "gone" not in {topic.name for topic in listed.topics}


@pytest.mark.parametrize("what", OBJECTS)
@virtual
async def test_brokers_that_know_the_topics_serve_them_while_bundle_0_cannot_be_read_at_all(what: str) -> None:
    """Both of a pair are damaged, and no broker owns bundle 0: records go in and out, changes of
    topics wait, and new brokers refuse.
    """

    store = over_copies()
    async with cluster_of("a:1", "b:1", "c:1", store=store) as cluster:
        await grow(cluster)
        key = await OBJECTS[what](store)
        good = await store.inner.get(key)
        for each in (key, key + keys.COPY):
            await store.inner.put(each, good[:-30] + bytes([good[-30] ^ 1]) + good[-29:])  # the index of a segment, too
        owner = next(address for address, broker in cluster.brokers.items() if 0 in broker.ownership.terms.opened)
        await cluster.stop(owner, graceful=False)
        await asyncio.sleep(20)
        others = list(cluster.brokers)
        assert len(others) == 2
        for i in range(1, 4):
            assert (await cluster.produce("early", 0, b"%d" % i))[0] == i
        assert await cluster.read_all("early", 0) == [b"0", b"1", b"2", b"3"]
        for address in others:
            line = cluster.line(address)
            [found] = (await line.describe_topics(pb.DescribeTopicsRequest(topics=["late"]))).topics
            assert not found.HasField("error"), found
        assert await read_all(cluster.line(await cluster.owner_of("late", 1)), "late", 1) == [b"1"]
        if what == "snapshot":  # who knows the topics needs none, even as the controller
            await cluster.create("unhindered")
        else:
            with pytest.raises((DataDamaged, RetriableError)):
                await cluster.line(others[0]).create_topic(pb.CreateTopicRequest(name="waits", partitions=1))
        await cluster.start("new:1")
        assert cluster.brokers["new:1"].metadata.catalog.offset == 0, "it does not serve half of the topics"
        assert store.damaged[key]
        await store.inner.put(key, good)
        await asyncio.sleep(10)
        await cluster.settled()
        await _until_created(cluster, "waits")
        assert (await cluster.produce("waits", 0, b"at last"))[0] == 0


@virtual
async def test_a_broker_that_cannot_read_the_rules_serves_no_caller_until_it_can() -> None:
    """With `security = auto` it cannot tell yet whether the root holds rules."""
    store = over_copies()
    async with cluster_of("a:1", store=store) as cluster:
        await grow(cluster)
        key = await newest(store)
        good = await store.inner.get(key)
        await cluster.stop("a:1", graceful=False)
        for each in (key, key + keys.COPY):
            await store.inner.put(each, good[:-30] + bytes([good[-30] ^ 1]) + good[-29:])
        broker = await cluster.start("b:1")
        assert broker.rules.enforced
        with pytest.raises(Unauthenticated):
            await cluster.line("b:1").list_rules(pb.ListRulesRequest())
        await store.inner.put(key, good)
        await asyncio.sleep(60)
        assert not broker.rules.enforced, "the root holds none"
        await _until_created(cluster, "served")


async def _until_created(cluster: Cluster, name: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await cluster.create(name)
                return
            except LedgerMQError:
                await asyncio.sleep(0.5)


@virtual
async def test_the_owner_of_bundle_0_mends_snapshots_and_copies_that_are_damaged_or_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "MEND_EVERY_S", 30.0)
    store = over_copies()
    async with cluster_of("a:1", "b:1", store=store) as cluster:
        await grow(cluster)
        key = await snapshot(store)
        good = await store.inner.get(key)
        for harm, victim in ((flip, key + keys.COPY), (flip, key), (take_away, key + keys.COPY), (take_away, key)):
            await harm(store.inner, victim)
            await asyncio.sleep(35)
            assert await store.inner.get(victim) == good, (harm, victim)
        await take_away(store.inner, key)
        assert await store.get(key) == good
        await asyncio.sleep(3)
        assert await store.inner.get(key) == good, "a reader had noticed"
        assert store.damaged == {}
