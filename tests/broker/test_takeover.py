"""Ownership of bundles when brokers join, leave, die and resume; in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from ledgermq.errors import NotOwner, TopicExists
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import FetchFrame
from ledgermq_broker.cluster.terms import Trouble
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.object_store.contract import StoreUncertain
from tests.broker.cluster import Cluster, fetch_of, frame_of, in_cluster, read_all, values_of
from tests.virtual_time import virtual_sources
from tests.waiting import until
from tests.worlds.ledgers import ledger_of, take_over


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + count)]


@in_cluster("a:1", "b:1", "c:1", bundles=7)
async def test_a_young_cluster_spreads_its_bundles(cluster: Cluster) -> None:
    await until(
        lambda: sorted(sum(1 for x in b.ownership.terms.opened if x) for b in cluster.brokers.values()) == [2, 2, 2], 10
    )
    described = await cluster.line("b:1").describe_cluster(pb.DescribeClusterRequest())
    assert [(info.address, info.alive) for info in described.brokers] == [
        (address, True) for _, address in sorted((b.broker_id, a) for a, b in cluster.brokers.items())
    ]
    await until(lambda: cluster.brokers["b:1"].directory.owners.keys() == set(range(7)))


@in_cluster("a:1", "b:1", "c:1")
async def test_a_dead_brokers_bundles_are_taken_within_moments_and_nothing_is_lost(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await asyncio.sleep(10)
    for i, value in enumerate(numbered(0, 5)):
        assert await cluster.produce("t", 0, value) == (i, 0) or i == 0
    dead = await cluster.owner_of("t", 0)
    await cluster.stop(dead, graceful=False)
    before = asyncio.get_running_loop().time()
    offset, _ = await cluster.produce("t", 0, b"5")
    assert offset == 5
    assert asyncio.get_running_loop().time() - before < 1.0, (
        "a refused connection is enough: no heartbeat has to be missed"
    )
    assert await cluster.read_all("t", 0) == numbered(0, 6)


@in_cluster("a:1", "b:1", "c:1")
async def test_kills_and_hand_overs_in_a_row_are_no_fight(cluster: Cluster) -> None:
    await cluster.create("t", 4)
    await asyncio.sleep(70)  # what was claimed side by side at the start is forgotten
    epochs = sum(claims.epoch for claims in cluster.brokers["a:1"].directory.claims.values())
    for killed, begun in (("b:1", "d:1"), ("c:1", "e:1"), ("d:1", "f:1")):
        await cluster.stop(killed, graceful=False)
        await cluster.start(begun)
        await asyncio.sleep(15)  # it is given its share
    now = asyncio.get_running_loop().time()
    for broker in cluster.brokers.values():
        assert {
            bundle: claims.recent(now) for bundle, claims in broker.directory.claims.items() if claims.recent(now)
        } == {}
    assert sum(claims.epoch for claims in cluster.brokers["a:1"].directory.claims.values()) >= epochs + 4, (
        "they were claimed all the same"
    )


@in_cluster("a:1", "b:1")
async def test_a_broker_that_hands_over_costs_a_client_one_retry_at_most(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await asyncio.sleep(10)
    retries: list[int] = []
    count = 0

    async def keep_producing() -> None:
        nonlocal count
        while count < 400:
            offset, tries = await cluster.produce("t", 0, b"%d" % count)
            assert offset == count
            retries.append(tries)
            count += 1
            await asyncio.sleep(0.005)

    task = asyncio.create_task(keep_producing())
    await until(lambda: count > 100)
    leaving = await cluster.owner_of("t", 0)
    await cluster.stop(leaving)
    await task
    # The scenario's client begins each call at the first broker that listens; one redirect is its
    # ordinary way, one more the hand-over.
    assert max(retries) <= 2
    assert await cluster.read_all("t", 0) == numbered(0, 400)
    assert [info.key async for info in cluster.store.list(keys.BROKERS)] == [
        keys.broker(next(iter(cluster.brokers.values())).broker_id)
    ]


@in_cluster("a:1", "b:1")
async def test_a_paused_zombie_never_acknowledges_and_comes_back_as_a_good_citizen(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await cluster.produce("t", 0, b"before")
    zombie = await cluster.owner_of("t", 0)
    other = next(address for address in cluster.brokers if address != zombie)
    cluster.views[zombie].pause()
    hanging = asyncio.create_task(cluster.line(zombie).produce_once(frame_of("t", 0, b"zombie's")))
    cluster.brokers[other].ownership.report_lost(cluster.brokers[zombie].broker_id, False)  # what a lost ping says
    await until(lambda: other in cluster.serving("t", 0), 5)
    produced = await cluster.line(other).produce_once(frame_of("t", 0, b"after"))
    assert produced.results[0].base_offset == 1
    assert not hanging.done()
    cluster.views[zombie].resume()
    result = (await hanging).results[0]
    assert result.error.code == "NOT_OWNER"
    assert result.error.owner == other
    assert await cluster.read_all("t", 0) == [b"before", b"after"]
    await cluster.settled()
    assert await cluster.produce("t", 1, b"all is well")


@in_cluster("a:1", "b:1")
async def test_an_idle_zombie_learns_from_heartbeats_that_its_term_is_over(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    zombie = await cluster.owner_of("t", 0)
    other = next(address for address in cluster.brokers if address != zombie)
    cluster.views[zombie].pause()
    await until(lambda: other in cluster.serving("t", 0), 30)
    assert zombie in cluster.serving("t", 0)
    cluster.views[zombie].resume()
    await until(lambda: zombie not in cluster.serving("t", 0), 5)
    assert await cluster.owner_of("t", 0) == other


@in_cluster("a:1", "b:1")
async def test_a_broker_that_lost_a_term_does_not_fight_for_it(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    bundle = 1
    await asyncio.sleep(10)
    owner = await cluster.owner_of("t", 0)
    epoch = cluster.brokers[owner].ownership.terms.opened[bundle].epoch
    for _ in range(3):
        for address in cluster.brokers:  # both believe that the other is gone, again and again
            cluster.brokers[address].ownership.report_lost(
                next(b.broker_id for a, b in cluster.brokers.items() if a != address), True
            )
            await asyncio.sleep(0.7)
    await asyncio.sleep(20)
    owner = await cluster.owner_of("t", 0)
    assert cluster.brokers[owner].ownership.terms.opened[bundle].epoch <= epoch + 4
    assert await cluster.produce("t", 0, b"x")


@in_cluster("a:1", "b:1")
async def test_two_controllers_that_race_make_one_catalog(cluster: Cluster) -> None:
    old = next(a for a, b in cluster.brokers.items() if 0 in b.ownership.terms.opened)
    new = next(address for address in cluster.brokers if address != old)
    cluster.views[old].pause()
    late = asyncio.create_task(cluster.line(old).create_topic(pb.CreateTopicRequest(name="raced", partitions=1)))
    await until(lambda: 0 in cluster.brokers[new].ownership.terms.opened, 30)
    created = await cluster.line(new).create_topic(pb.CreateTopicRequest(name="raced", partitions=3))
    assert len(created.topic.partitions) == 3
    cluster.views[old].resume()
    with pytest.raises((NotOwner, TopicExists)):
        await late
    await until(lambda: "raced" in cluster.brokers[old].metadata.catalog.topics_by_name, 10)
    topics = [broker.metadata.catalog.topics_by_name["raced"] for broker in cluster.brokers.values()]
    assert topics[0] == topics[1]
    assert topics[0].partitions == 3


@in_cluster("a:1", "b:1")
async def test_a_restart_of_everything_finds_everything(cluster: Cluster) -> None:
    created = await cluster.create("t", 3, retention_ms="1234")
    for partition in range(3):
        await cluster.produce("t", partition, *numbered(partition, 3))
    for address in list(cluster.brokers):
        await cluster.stop(address, graceful=False)
    await cluster.start("c:1")
    await cluster.settled()
    described = (await cluster.line("c:1").describe_topics(pb.DescribeTopicsRequest(topics=["t"]))).topics[0]
    assert (described.topic_id, dict(described.settings)) == (created.topic_id, {"retention.ms": "1234"})
    for partition in range(3):
        assert await cluster.read_all("t", partition) == numbered(partition, 3)


@in_cluster("a:1", "b:1")
async def test_a_long_poll_ends_when_the_partition_moves_and_a_stream_says_where_it_went(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    await asyncio.sleep(10)
    owner = await cluster.owner_of("t", 0)
    line = cluster.line(owner)
    poll = asyncio.create_task(line.fetch_once(fetch_of("t", 0, max_wait_ms=30_000)))
    stream = line.fetch(fetch_of("t", 0))
    first = await anext(stream)
    assert first.header.partitions[0].high_watermark == 0
    assert not values_of(first)
    rest: asyncio.Future[FetchFrame] = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(1)
    await cluster.stop(owner)
    assert (await poll).header.partitions[0].error.code == "NOT_OWNER"
    assert (await rest).header.partitions[0].error.owner in cluster.brokers
    assert await read_all(cluster.line(await cluster.owner_of("t", 0)), "t", 0) == []


@in_cluster("a:1", "b:1")
async def test_an_idle_zombie_whose_successor_died_does_not_hide_what_the_successor_stored(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    await cluster.produce("t", 0, b"before")
    zombie = await cluster.owner_of("t", 0)
    other = next(address for address in cluster.brokers if address != zombie)
    cluster.views[zombie].pause()
    await until(lambda: other in cluster.serving("t", 0), 30)
    result = (await cluster.line(other).produce_once(frame_of("t", 0, b"after"))).results[0]
    assert result.base_offset == 1
    await cluster.stop(other, graceful=False)
    cluster.views[zombie].resume()
    await asyncio.sleep(5)
    assert await read_all(cluster.line(zombie), "t", 0) == [b"before", b"after"]


@in_cluster("a:1", "b:1", "c:1")
async def test_an_owner_that_was_robbed_by_a_broker_that_died_at_once_finds_out(cluster: Cluster) -> None:
    """The robber never got to announce its claim."""
    await cluster.create("t", 1)
    await cluster.produce("t", 0, b"before")
    owner = await cluster.owner_of("t", 0)
    robber = next(address for address in cluster.brokers if address != owner)
    epoch = cluster.brokers[owner].ownership.terms.opened[1].epoch
    stolen = await take_over(
        ledger_of(cluster.store, 1, cluster=ClusterSettings(producer_states_max=1000), sources=virtual_sources(77)),
        "robber",
    )
    await stolen.close()
    await asyncio.sleep(5)
    assert cluster.brokers[owner].ownership.terms.opened[1].epoch == epoch, "it cannot know"
    await cluster.stop(robber, graceful=False)
    await until(
        lambda: any(
            b.ownership.terms.opened.get(1) and b.ownership.terms.opened[1].epoch > epoch + 1
            for b in cluster.brokers.values()
        ),
        20,
    )


@in_cluster("a:1", "b:1")
async def test_a_rebalance_costs_one_retry_at_most_and_other_bundles_cost_no_wait(
    cluster: Cluster,
) -> None:
    await cluster.create("t", 2)
    await asyncio.sleep(10)
    owner = await cluster.owner_of("t", 0)
    await cluster.stop(next(address for address in cluster.brokers if address != owner))
    await cluster.settled()
    loop = asyncio.get_running_loop()
    retries: dict[int, list[int]] = {0: [], 1: []}
    done = asyncio.Event()

    async def keep_producing(partition: int) -> None:
        """At the owner, as a client that knows it; one redirect is a retry."""
        address, offset = owner, 0
        while not done.is_set():
            attempt = 0
            while True:
                begun = loop.time()
                result = (await cluster.line(address).produce_once(frame_of("t", partition, b"%d" % offset))).results[0]
                if not result.HasField("error"):
                    break
                assert loop.time() - begun < 1.0, "an answer, not a wait"
                assert result.error.code == "NOT_OWNER"
                address = result.error.owner or address
                await asyncio.sleep(result.error.retry_after_ms / 1000)
                attempt += 1
            assert result.base_offset == offset
            retries[partition].append(attempt)
            offset += 1
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for partition in retries:
            group.create_task(keep_producing(partition))
        await asyncio.sleep(1)
        newcomer = await cluster.start("new:1")
        await until(lambda: len(newcomer.ownership.terms.opened) == 1)
        await asyncio.sleep(2)
        done.set()
    assert max(retries[0] + retries[1]) == 1


@in_cluster("a:1", "b:1")
async def test_what_went_wrong_with_a_bundle_is_forgotten_once_another_serves_it(cluster: Cluster) -> None:
    """Otherwise clients that still use this broker would receive an old error forever, and never
    be sent to the owner.
    """
    await cluster.create("t", 4)
    for address, other in (("a:1", "b:1"), ("b:1", "a:1")):
        ownership = cluster.brokers[address].ownership
        [bundle, *_] = cluster.brokers[other].ownership.terms.opened
        ownership.terms.troubles[bundle] = Trouble(StoreUncertain("long ago"), retry_at=0.0, pause_s=1.0)
        await asyncio.sleep(5)
        assert bundle not in ownership.terms.troubles
        with pytest.raises(NotOwner):
            await ownership.owner(bundle)
        described = await cluster.line(address).describe_cluster(pb.DescribeClusterRequest())
        assert [info.trouble for info in described.bundles if info.trouble] == []
