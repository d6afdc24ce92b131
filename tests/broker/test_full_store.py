"""Brokers on a store that refuses writes: each bundle keeps its owner and is read, and no broker
has died when there is room again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ledgermq.errors import LedgerMQError, StoreFull, StoreUnusable
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.segments.segment import decode_tail
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of
from tests.broker.groups import Outsider, committed_offset
from tests.stores.full import RefusingStore
from tests.stores.one_put import OnePut
from tests.virtual_time import virtual, virtual_sources
from tests.waiting import until

BUNDLES = {0, 1, 2}


class NoReleaseStore(OnePut):
    """Has room for all but RELEASE segments, and takes its time to say so; `refused` of them so
    far.
    """

    def __init__(self) -> None:
        super().__init__(MemoryStore("", virtual_sources()))
        self.has_room = False
        self.refused = 0

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if not self.has_room and any(key.startswith(keys.segments(bundle)) for bundle in BUNDLES):
            bundle = next(bundle for bundle in BUNDLES if key.startswith(keys.segments(bundle)))
            if decode_tail(bytes(buffers[-1]), bundle, keys.number(key)).index.kind == fmt.RELEASE:
                await asyncio.sleep(0.3)
                self.refused += 1
                raise StoreFull("no space is left", object_key=key)
        await super().put_if_absent(key, buffers)


def terms(cluster: Cluster) -> dict[int, list[tuple[str, int]]]:
    """By bundle: which brokers serve it, in which epoch."""
    found: dict[int, list[tuple[str, int]]] = {}
    for name, broker in cluster.brokers.items():
        for bundle, owner in broker.ownership.terms.opened.items():
            found.setdefault(bundle, []).append((name, owner.epoch))
    return found


@virtual
async def test_no_bundle_is_handed_over_while_the_store_is_full() -> None:
    """The successor could not claim it, so no broker would serve its readers until there is room."""
    store = RefusingStore()
    async with cluster_of("a:1", store=store, holding_ms=8000) as cluster:
        await cluster.create("t", 2)
        for partition in (0, 1):
            await cluster.produce("t", partition, b"x")
        await asyncio.sleep(5)
        await cluster.start("b:1")
        await asyncio.sleep(1)
        store.refusal = StoreFull("no space is left")
        for _ in range(20):
            await asyncio.sleep(1)
            assert terms(cluster).keys() == BUNDLES
            assert [await cluster.read_all("t", partition) for partition in (0, 1)] == [[b"x"], [b"x"]]
        store.refusal = None
        await until(lambda: len(cluster.brokers["b:1"].ownership.terms.opened) == 1)
        assert await cluster.produce("t", 0, b"y")


@virtual
async def test_a_bundle_whose_release_is_refused_is_served_on() -> None:
    """Only the RELEASE tells the broker that the store is full.

    Meanwhile producers and members of groups are sent to the successor.
    """

    store = NoReleaseStore()
    async with cluster_of("a:1", store=store) as cluster:
        await cluster.create("t", 2)
        groups = [Outsider(cluster, f"g{i}") for i in range(4)]
        for group in groups:  # their logs are in all bundles
            assert await group.commit(("t", 0, 0)) == [""]
        await asyncio.sleep(5)
        before = terms(cluster)
        await cluster.start("b:1")
        began = asyncio.get_running_loop().time()
        written = 0
        while asyncio.get_running_loop().time() < began + 10:
            for partition in (0, 1):
                assert (await cluster.produce("t", partition, b"x"))[0] == written
            written += 1
            await asyncio.sleep(0.05)
            codes = await asyncio.gather(*(group.commit(("t", 0, written)) for group in groups))
            assert codes == [[""]] * len(groups)
            assert terms(cluster) == before
        assert 1 <= store.refused <= 10 * len(BUNDLES), (
            "each try disturbs those who write, so there is a pause before the next"
        )
        assert await cluster.read_all("t", 0) == [b"x"] * written
        store.has_room = True
        await until(lambda: len(cluster.brokers["b:1"].ownership.terms.opened) == 1)
        for group in groups:
            assert await committed_offset(cluster, group.group, "t", 0) == written


@virtual
async def test_a_broker_stops_though_its_releases_are_refused() -> None:
    store = RefusingStore()
    async with cluster_of("a:1", "b:1", store=store) as cluster:
        await cluster.create("t", 2)
        await cluster.settled()
        store.refusal = StoreFull("no space is left")
        async with asyncio.timeout(60):
            await cluster.stop("a:1")
        store.refusal = None
        await until(lambda: terms(cluster).keys() == BUNDLES)


@pytest.mark.parametrize("refusal", [StoreFull("no space is left"), StoreUnusable("read-only file system")])
@pytest.mark.parametrize("seconds", [60.0, 60.2, 60.4])
@virtual
async def test_when_there_is_room_again_each_bundle_is_where_it_was(refusal: LedgerMQError, seconds: float) -> None:
    """The first broker that beats finds heartbeats of the others that are a minute old: they could
    not be written.
    """

    store = RefusingStore()
    async with cluster_of("a:1", store=store, holding_ms=8000, bundles=7, heartbeat_interval_ms=3000) as cluster:
        for name in ("b:1", "c:1"):  # their heartbeats fall into different parts of the interval
            await asyncio.sleep(1.2)
            await cluster.start(name)
        await cluster.create("t", 2)
        await asyncio.sleep(120)
        before = terms(cluster)
        assert len({name for served in before.values() for name, _ in served}) == 3
        store.refusal = refusal
        await asyncio.sleep(seconds)
        assert terms(cluster) == before
        store.refusal = None
        await asyncio.sleep(60)
        assert terms(cluster) == before
