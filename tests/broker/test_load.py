"""Bundles move to the broker that has less to do, while programs go on, and then nothing moves. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

import ledgermq
from ledgermq.buffers import KIB
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_status
from ledgermq_broker.broker import Broker
from ledgermq_broker.bundle.loads import LoadTimes
from ledgermq_broker.bundle.shared.context import BundleMetrics
from ledgermq_broker.cluster.heartbeat import LOADS, decode_heartbeat
from ledgermq_broker.features import ANNOUNCED
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, cluster_of
from tests.virtual_time import VirtualTest, virtual_in, virtual_sources
from tests.waiting import until

EVERY_S = 0.5
"""Each busy partition gets two records a second, each in its own request."""
CONSTANTS = BrokerConstants(damaged_retry_s=5, loads=LoadTimes(quiet=64 * KIB))
TEN_MINUTES_S = 600
PARTITIONS = 6


class Claims(BundleMetrics):
    def __init__(self) -> None:
        self.won = 0

    def claimed(self, bundle: int, epoch: int, seconds: float) -> None:
        self.won += 1


class Watched(Cluster):
    """Counts the claims of its brokers, and the heartbeats that they change."""

    def observers(self, address: str) -> dict[str, object]:
        return super().observers(address) | {"metrics": self.metrics.setdefault(address, Claims())}

    def claims(self) -> int:
        return sum(claims.won for claims in self.metrics.values() if isinstance(claims, Claims))

    def changed_heartbeats(self) -> int:
        return sum(broker.membership.me.counter for broker in self.brokers.values())

    def owned(self, address: str) -> list[int]:
        return sorted(bundle for bundle in self.brokers[address].ownership.opened if bundle)

    def busy(self, bundles: list[int]) -> dict[str, int]:
        """How many of the bundles each broker owns."""
        return {address: len({*self.owned(address)} & {*bundles}) for address in self.brokers}


def in_watched(*addresses: str) -> VirtualTest:
    def world() -> object:
        store: ObjectStore = MemoryStore("", virtual_sources(1000))
        return cluster_of(*addresses, store=store, constants=CONSTANTS, kind=Watched, bundles=PARTITIONS + 1)

    return virtual_in(world, "cluster")  # type: ignore[arg-type]


async def spread(cluster: Watched) -> list[int]:
    """Create topic t; return the bundles of one broker once each has its share."""
    await cluster.create("t", PARTITIONS)
    share = PARTITIONS // len(cluster.brokers)
    await until(lambda: all(len(cluster.owned(address)) == share for address in cluster.brokers), 60)
    return cluster.owned("b:1")


def partitions_in(cluster: Watched, bundles: list[int]) -> list[int]:
    topic = cluster.brokers["a:1"].metadata.catalog.topics_by_name["t"]
    return [partition for partition, bundle in enumerate(topic.bundles) if bundle in bundles]


@asynccontextmanager
async def busy(cluster: Cluster, partitions: list[int]) -> AsyncIterator[dict[int, int]]:
    """Produce to each of the partitions, and let a group read them. Yield how many records are acknowledged by
    partition; at the end each has been read once, in its order.
    """
    sent = dict.fromkeys(partitions, 0)
    seen: dict[int, list[int]] = {partition: [] for partition in partitions}
    has_ended = asyncio.Event()
    async with cluster.client() as client:

        async def produce(partition: int) -> None:
            async with client.producer() as producer:
                while not has_ended.is_set():
                    await producer.send("t", b"%d" % sent[partition], partition=partition)
                    sent[partition] += 1
                    await asyncio.sleep(EVERY_S)

        async def consume() -> None:
            async with client.consumer("t", group="g", start="earliest") as consumer:
                while not has_ended.is_set() or any(len(seen[each]) < sent[each] for each in partitions):
                    for message in await consumer.fetch(100, timeout=1.0):
                        seen[message.partition].append(int(message.value or b"-1"))

        async with asyncio.TaskGroup() as group:
            producers = [group.create_task(produce(partition)) for partition in partitions]
            reader = group.create_task(consume())
            yield sent
            has_ended.set()
            await asyncio.wait([*producers, reader], timeout=60)
    assert seen == {partition: list(range(sent[partition])) for partition in partitions}


@pytest.mark.slow
@in_watched("a:1", "b:1", "c:1")
async def test_busy_bundles_are_shared_and_then_nothing_moves(cluster: Watched) -> None:
    bundles = await spread(cluster)
    async with busy(cluster, partitions_in(cluster, bundles)):
        assert max(cluster.busy(bundles).values()) == len(bundles) == 2
        await until(lambda: max(cluster.busy(bundles).values()) == 1, 600)
        await asyncio.sleep(120)
        claims, changed = cluster.claims(), cluster.changed_heartbeats()
        await asyncio.sleep(TEN_MINUTES_S)
        assert cluster.claims() == claims, "takeovers at rest"
        assert cluster.changed_heartbeats() - changed <= 3, "a steady load is not announced at each beat"


@pytest.mark.slow
@in_watched("a:1", "b:1")
async def test_one_bundle_at_a_time_moves_after_a_minute(cluster: Watched) -> None:
    bundles = await spread(cluster)
    assert len(bundles) == 3
    claims = cluster.claims()
    async with busy(cluster, partitions_in(cluster, bundles)):
        await asyncio.sleep(CONSTANTS.loads.wait_s)
        assert cluster.claims() == claims, "the imbalance has not lasted yet"
        await until(lambda: sorted(cluster.busy(bundles).values()) == [1, 2], 600)
        assert cluster.claims() == claims + 1
        await asyncio.sleep(TEN_MINUTES_S)
        assert sorted(cluster.busy(bundles).values()) == [1, 2]
        assert cluster.claims() <= claims + 2, "an idle bundle goes back, so that the counts are even"


@in_watched("a:1", "b:1")
async def test_idle_clusters_change_no_heartbeat(cluster: Watched) -> None:
    await spread(cluster)
    await asyncio.sleep(60)
    changed, claims = cluster.changed_heartbeats(), cluster.claims()
    await asyncio.sleep(TEN_MINUTES_S)
    assert (cluster.changed_heartbeats(), cluster.claims()) == (changed, claims)


def as_before(broker: Broker) -> None:
    """Let the broker announce what the release before did."""
    me = broker.membership.me
    broker.membership.me = replace(me, features=tuple(feature for feature in ANNOUNCED if feature != LOADS))


@pytest.mark.slow
@in_watched("a:1", "b:1")
async def test_beside_a_broker_of_the_release_before_bundles_are_placed_by_count(cluster: Watched) -> None:
    """It places by count alone, and would not take what is promised to it."""
    bundles = await spread(cluster)
    as_before(cluster.brokers["a:1"])
    await asyncio.sleep(5)
    claims = cluster.claims()
    async with busy(cluster, partitions_in(cluster, bundles)):
        await asyncio.sleep(TEN_MINUTES_S)
        assert cluster.claims() == claims


@in_watched("a:1", "b:1")
async def test_the_next_owner_goes_on_with_the_load_of_the_last(cluster: Watched) -> None:
    bundles = await spread(cluster)
    async with busy(cluster, partitions_in(cluster, bundles[:1])):
        await asyncio.sleep(300)
        known = cluster.brokers["b:1"].membership.me.loads[bundles[0]]
        await cluster.stop("b:1")
        await until(lambda: bundles[0] in cluster.owned("a:1"))
        await until(lambda: bundles[0] in cluster.brokers["a:1"].membership.me.bundles)
        assert cluster.brokers["a:1"].membership.me.loads[bundles[0]] == known
        async with cluster.client() as client:
            shown = {bundle.bundle: bundle.load for bundle in (await client.describe_cluster()).bundles}
        assert shown == {bundle: known if bundle == bundles[0] else 0 for bundle in range(PARTITIONS + 1)}


@in_watched("a:1", "b:1")
async def test_the_heartbeat_names_the_broker_that_is_to_take_a_bundle(cluster: Watched) -> None:
    bundles = await spread(cluster)
    a, b = cluster.brokers["a:1"], cluster.brokers["b:1"]
    promised: list[dict[int, str]] = []
    async with busy(cluster, partitions_in(cluster, bundles)):

        async def is_promised() -> bool:
            found = decode_heartbeat(await cluster.store.get(keys.broker(b.broker_id)))
            assert found is not None
            promised.append(found.promised)
            return bool(found.promised)

        await until(is_promised, 600, every_s=0.05)
        [(bundle, broker)] = promised[-1].items()
        assert broker == a.broker_id
        await until(lambda: bundle in cluster.owned("a:1"))
        await until(lambda: not b.membership.me.promised)


@in_watched("a:1", "b:1")
async def test_owners_tell_what_each_partition_costs(cluster: Watched) -> None:
    await spread(cluster)
    bundles = [cluster.owned("a:1")[0], cluster.owned("b:1")[0]]  # nothing moves
    [first, second] = partitions_in(cluster, bundles)
    async with busy(cluster, [first, second]), cluster.client() as client:
        await asyncio.sleep(120)
        found = {loads.bundle: loads for loads in await client.describe_loads()}
        assert list(found) == list(range(PARTITIONS + 1))
        topic = await client.describe_topic("t")
        for partition in topic.partitions:
            loads = found[partition.bundle]
            assert loads.measured_s >= 60
            key = ledgermq.TopicPartition("t", partition.partition)
            if partition.partition in (first, second):
                # Two records a second, each produced and fetched; and a look from time to time.
                assert 3.9 <= loads.partitions[key] / (64 * KIB) <= 5, "in requests"
            else:
                assert key not in loads.partitions
            assert loads.others <= 64 * KIB, "what the system writes about the group"
        assert sum(loads.others for loads in found.values()) > 0
        announced = {bundle.bundle: bundle.load for bundle in (await client.describe_cluster()).bundles}
        for bundle in bundles:
            total = sum(found[bundle].partitions.values()) + found[bundle].others
            assert abs(announced[bundle] - total) <= 0.5 * total


@in_watched("a:1", "b:1")
async def test_loads_are_waited_for_while_a_bundle_has_no_owner(cluster: Watched) -> None:
    bundles = await spread(cluster)
    async with cluster.client() as client:
        await cluster.stop("b:1", graceful=False)
        found = {loads.bundle: loads for loads in await client.describe_loads()}
        assert list(found) == list(range(PARTITIONS + 1))
        assert {found[bundle].measured_s for bundle in bundles} == {0.0}, "its new owner has just begun"


@in_watched("a:1", "b:1")
async def test_a_broker_that_cannot_tell_loads_is_named(cluster: Watched) -> None:
    """As one of an earlier release answers."""
    await spread(cluster)

    async def no_such_call(request: pb.ListLoadsRequest) -> pb.ListLoadsResponse:
        raise error_from_status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!", (), "b:1")

    cluster.brokers["b:1"].service.list_loads = no_such_call
    async with cluster.client() as client:
        with pytest.raises(InvalidRequest, match=r"b:1 .* its release is older and has no such call"):
            await client.describe_loads()
