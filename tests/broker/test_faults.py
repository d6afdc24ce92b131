"""Brokers survive a failing store, damaged objects, jumping clocks and settings of another
version; in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ledgermq.errors import DataDamaged, FormatNotSupported, StoreUnusable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto
from ledgermq.sources import Sources
from ledgermq_broker.broker import Broker
from ledgermq_broker.cluster.membership import Superseded
from ledgermq_broker.ports.in_process import InProcessConnector
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of, frame_of, in_cluster
from tests.stores.faulty import Faults, FaultyStore
from tests.stores.one_put import OnePut
from tests.virtual_time import EPOCH_US, virtual, virtual_sources
from tests.waiting import until
from tests.worlds.roots import cluster_with


async def overwrite(store: ObjectStore, key: str, change: int = 20) -> None:
    """Damage the end of an object, where its index is."""
    data = await store.get(key)
    await store.delete([key])
    await store.put(key, data[: len(data) - change] + bytes(change))


async def last_key(store: ObjectStore, prefix: str) -> str:
    return [info.key async for info in store.list(prefix)][-1]


@in_cluster("a:1", checkpoint_slots=4)
async def test_a_damaged_bundle_says_which_object_it_is_while_others_go_on_and_recovers_when_it_is_restored(
    cluster: Cluster,
) -> None:
    await cluster.create("t", 2)
    for i in range(10):
        await cluster.produce("t", 0, b"%d" % i)
        await cluster.produce("t", 1, b"%d" % i)
    await cluster.stop("a:1", graceful=False)
    key = await last_key(cluster.store, keys.segments(1))
    good = await cluster.store.get(key)
    await overwrite(cluster.store, key)
    await cluster.start("b:1")
    await until(lambda: len(cluster.brokers["b:1"].ownership.terms.opened) == 2)
    [result] = (await cluster.line("b:1").produce_once(frame_of("t", 0, b"x"))).results
    error = error_from_proto(result.error)
    assert isinstance(error, DataDamaged)
    assert error.object_key == key
    assert await cluster.read_all("t", 1) == [b"%d" % i for i in range(10)]
    described = await cluster.line("b:1").describe_cluster(pb.DescribeClusterRequest())
    assert [info.bundle for info in described.bundles if key in info.trouble] == [1]
    await cluster.store.put(key, good)
    assert (await cluster.produce("t", 1, b"10"))[0] == 10
    await until(lambda: 1 in cluster.brokers["b:1"].ownership.terms.opened)
    assert await cluster.read_all("t", 0) == [b"%d" % i for i in range(10)]


@in_cluster("a:1", "b:1")
async def test_everybody_knows_of_a_bundles_trouble(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await asyncio.sleep(10)
    await cluster.produce("t", 0, b"x")
    await overwrite(cluster.store, await last_key(cluster.store, keys.segments(1)))
    owner = await cluster.owner_of("t", 0)
    await cluster.stop(owner, graceful=False)
    await cluster.start("c:1")
    for address in cluster.brokers:
        await until(lambda address=address: 1 in cluster.brokers[address].directory.troubles)  # type: ignore[misc]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": "other"}', b'{"format": "ledgermq"}'])
@virtual
async def test_a_root_that_is_not_ours_is_refused(damage: bytes) -> None:
    store = MemoryStore("", virtual_sources())
    await store.put(keys.CLUSTER, damage)
    with pytest.raises(DataDamaged) as refused:
        async with cluster_of("a:1", store=store):
            pass
    assert refused.value.object_key == keys.CLUSTER


@virtual
async def test_a_root_of_another_format_version_is_refused_and_left_alone() -> None:
    store = MemoryStore("", virtual_sources())
    async with cluster_of("a:1", store=store):
        pass
    await store.put(keys.CLUSTER, cluster_with(await store.get(keys.CLUSTER), format_version=4))
    before = [info async for info in store.list("")]
    with pytest.raises(FormatNotSupported, match="version 4"):
        async with cluster_of("b:1", store=store):
            pass
    assert [info async for info in store.list("")] == before


@pytest.mark.parametrize("seed", range(5))
@virtual
async def test_a_store_that_fails_now_and_then_loses_and_doubles_nothing(seed: int) -> None:
    store = FaultyStore(MemoryStore("", virtual_sources()), virtual_sources(seed))
    async with cluster_of("a:1", "b:1", store=store) as cluster:
        await cluster.create("t", 2)
        store.faults = Faults(before=0.03, after=0.03, late=0.02, throttle=0.03, delay_s_max=0.02)
        produced: dict[int, list[bytes]] = {0: [], 1: []}
        sessions = {}
        for partition in produced:
            line = cluster.line(await cluster.owner_of("t", partition))
            wanted = pb.OpenProducerRequest(partitions=[pb.TopicPartition(topic="t", partition=partition)])
            [opened] = (await line.open_producer(wanted)).partitions
            sessions[partition] = pb.ProducerSession(id=bytes([partition]) * 16, opened_slot=opened.opened_slot)
        for i in range(60):
            for partition, session in sessions.items():
                offset, _ = await cluster.produce("t", partition, b"%d" % i, session=session)
                assert offset == i
                session.sequence += 1
                produced[partition].append(b"%d" % i)
        store.faults = Faults()
        await store.settled()
        await cluster.settled()
        for partition, values in produced.items():
            assert await cluster.read_all("t", partition) == values


@virtual
async def test_an_outage_of_the_store_kills_no_broker() -> None:
    store = FaultyStore(MemoryStore("", virtual_sources()), virtual_sources(3))
    async with cluster_of("a:1", "b:1", store=store) as cluster:
        await cluster.create("t", 2)
        await cluster.produce("t", 0, b"before")
        store.faults = Faults(before=1.0)
        waiting = asyncio.create_task(cluster.produce("t", 1, b"during"))
        await asyncio.sleep(40)
        assert not waiting.done()
        store.faults = Faults()
        await waiting
        assert await cluster.read_all("t", 0) == [b"before"]
        assert not any(broker.failed.done() for broker in cluster.brokers.values())


@virtual
async def test_wrong_clocks_change_nothing() -> None:
    """One broker lives a day ahead, and its clock jumps back by two days in the middle."""
    shift_us = 86_400_000_000

    def now_us() -> int:
        return EPOCH_US + shift_us + round(asyncio.get_running_loop().time() * 1e6)

    async with cluster_of("a:1") as cluster:
        sources = Sources(now_us, virtual_sources(9).random)
        connector = InProcessConnector(cluster.network)
        broker = await Broker.start(cluster.store, sources, cluster.settings, "ahead:1", connector)
        cluster.network.listen("ahead:1", broker.service)
        cluster.brokers["ahead:1"] = broker
        await cluster.create("t", 2)
        await asyncio.sleep(10)
        assert {len(cluster.serving("t", 0)), len(cluster.serving("t", 1))} == {1}
        assert cluster.serving("t", 0) != cluster.serving("t", 1), "both brokers have their share"
        for i in range(20):
            if i == 10:
                shift_us = -86_400_000_000
            for partition in (0, 1):
                assert (await cluster.produce("t", partition, b"%d" % i))[0] == i
            await asyncio.sleep(1)
        assert await cluster.read_all("t", 0) == await cluster.read_all("t", 1) == [b"%d" % i for i in range(20)]
        assert all(len(b.membership.live()) == 2 for b in cluster.brokers.values())


@in_cluster("a:1")
async def test_a_broker_whose_address_is_taken_stops_serving_and_says_why(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await cluster.produce("t", 0, b"x")
    first = cluster.brokers.pop("a:1")
    cluster.network.stop_listening("a:1")
    await cluster.start("a:1")
    assert isinstance(await first.failed, Superseded)
    await first.stop()
    await cluster.settled()
    assert await cluster.read_all("t", 0) == [b"x"]


@in_cluster("a:1", "b:1")
async def test_the_catalog_is_followed_without_the_controller(cluster: Cluster) -> None:
    """The controller is silent: the other brokers know the topics that it had acknowledged."""
    await cluster.create("t", 2)
    controller = next(address for address, broker in cluster.brokers.items() if 0 in broker.ownership.terms.opened)
    other = next(address for address in cluster.brokers if address != controller)
    await cluster.line(controller).create_topic(pb.CreateTopicRequest(name="last", partitions=2))
    await cluster.stop(controller, graceful=False)
    [found] = (await cluster.line(other).describe_topics(pb.DescribeTopicsRequest(topics=["last"]))).topics
    assert not found.HasField("error")
    await cluster.produce("last", 1, b"x")
    assert await cluster.read_all("last", 1) == [b"x"]


class FullStore(OnePut):
    """No room for segments of bundle 1 while `full`."""

    full = False

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if self.full and key.startswith(keys.segments(1)):
            raise StoreUnusable("no space left on device", object_key=key)
        await super().put_if_absent(key, buffers)


@virtual
async def test_a_full_disk_is_told_to_producers_and_forgotten_once_there_is_room() -> None:
    store = FullStore(MemoryStore("", virtual_sources()))
    async with cluster_of("a:1", store=store) as cluster:
        await cluster.create("t", 2)
        await cluster.produce("t", 0, b"0")
        store.full = True
        for _ in range(3):
            [result] = (await cluster.line("a:1").produce_once(frame_of("t", 0, b"lost"))).results
            assert result.error.code == "STORE_UNUSABLE", result.error
            assert (await cluster.produce("t", 1, b"x"))[1] == 0, "no other bundle is disturbed"
            assert await cluster.read_all("t", 0) == [b"0"], "only writing is impossible"
            await asyncio.sleep(0.5)
            described = await cluster.line("a:1").describe_cluster(pb.DescribeClusterRequest())
            assert [info.bundle for info in described.bundles if "no space" in info.trouble] == [1]
            await asyncio.sleep(1)
        store.full = False
        await until(lambda: cluster.brokers["a:1"].ownership.write_refusal is None, 10)
        assert (await cluster.produce("t", 0, b"1"))[0] == 1
        assert await cluster.read_all("t", 0) == [b"0", b"1"]
