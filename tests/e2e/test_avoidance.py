"""Records without a key avoid partitions whose owner stores nothing, in virtual time. The owner lives, so no other
broker takes over: only its puts of segments hang.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import pytest

import ledgermq
from ledgermq_ledger.object_store.contract import Buffer, ObjectStore
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.test_client_takeover import client_of
from tests.stores.one_put import OnePut

PARTITIONS = 8


class HangingSegments(OnePut):
    """Puts of segments hang while it is paused."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._running = asyncio.Event()
        self._running.set()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if "/segments/" in key:
            await self._running.wait()
        await self.inner.put_if_absent(key, buffers)


class HangingCluster(Cluster):
    def view_of_store(self, address: str) -> ObjectStore:
        view = self.hanging[address] = HangingSegments(super().view_of_store(address))
        return view

    @cached_property
    def hanging(self) -> dict[str, HangingSegments]:
        """By address, what makes the puts of a broker hang."""
        return {}


HANGING = {"kind": HangingCluster, "bundles": 5}


async def owners_of(cluster: Cluster) -> dict[int, str]:
    return {partition: await cluster.owner_of("t", partition) for partition in range(PARTITIONS)}


async def sent_meanwhile(producer: ledgermq.Producer, count: int, key: bytes | None = None) -> list[ledgermq.Delivery]:
    sent = []
    for number in range(count):
        sent.append(producer.send("t", b"%d" % number, key=key))
        await asyncio.sleep(0.05)
    return sent


def partitions_of(deliveries: list[ledgermq.Delivery]) -> Counter[int]:
    return Counter(delivery.place.at.partition for delivery in deliveries)


@pytest.mark.parametrize("partitioner", ["sticky", "round_robin", "random"])
def test_they_go_elsewhere_and_come_back(partitioner: str) -> None:
    @in_cluster("a:1", "b:1", **HANGING)
    async def run(cluster: HangingCluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", PARTITIONS)
            owners = await owners_of(cluster)
            silent = {partition for partition, owner in owners.items() if owner == "a:1"}
            assert 0 < len(silent) < PARTITIONS
            async with client.producer(partitioner=partitioner) as producer:
                await asyncio.gather(*await sent_meanwhile(producer, 100))
                cluster.hanging["a:1"].pause()
                stuck = [delivery for delivery in await sent_meanwhile(producer, 100) if not delivery.done()]
                assert stuck
                assert partitions_of(stuck).keys() <= silent
                later = await sent_meanwhile(producer, 100)
                assert not partitions_of(later).keys() & silent
                await asyncio.sleep(1)
                assert all(delivery.done() for delivery in later)
                cluster.hanging["a:1"].resume()
                await asyncio.gather(*stuck)
                await asyncio.sleep(1)
                again = await sent_meanwhile(producer, 100)
                assert partitions_of(again).keys() & silent
                await asyncio.gather(*again)

    run()


@in_cluster("a:1", "b:1", **HANGING)
async def test_keys_partitions_and_zero_seconds_avoid_nothing(cluster: HangingCluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", PARTITIONS)
        owners = await owners_of(cluster)
        silent = {partition for partition, owner in owners.items() if owner == "a:1"}
        keys = [b"%d" % number for number in range(40)]
        async with (
            client.producer() as producer,
            client.producer(availability_timeout_s=0, partitioner="round_robin") as stubborn,
        ):
            before = [producer.send("t", b"v", key=key) for key in keys]
            await asyncio.gather(*before)
            cluster.hanging["a:1"].pause()
            stuck = [producer.send("t", b"v", key=keys[0], partition=min(silent))]
            stuck += [stubborn.send("t", b"v") for _ in range(PARTITIONS)]
            await asyncio.sleep(5)
            after = [producer.send("t", b"v", key=key) for key in keys]
            assert [each.place.at for each in after] == [each.place.at for each in before]
            named = producer.send("t", b"v", partition=min(silent))
            assert partitions_of([stubborn.send("t", b"v") for _ in range(PARTITIONS)]).keys() >= silent
            await asyncio.sleep(1)
            assert not named.done()
            cluster.hanging["a:1"].resume()
            await asyncio.gather(named, *after, *stuck)


@in_cluster("a:1", "b:1", **HANGING)
async def test_where_all_are_silent_none_is_avoided(cluster: HangingCluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", PARTITIONS)
        async with client.producer(partitioner="round_robin") as producer:
            await asyncio.gather(*[producer.send("t", b"v") for _ in range(PARTITIONS)])
            for view in cluster.hanging.values():
                view.pause()
            first = [producer.send("t", b"v") for _ in range(PARTITIONS)]
            await asyncio.sleep(5)
            then = [producer.send("t", b"v") for _ in range(PARTITIONS)]
            assert len(partitions_of(then)) == PARTITIONS
            for view in cluster.hanging.values():
                view.resume()
            await asyncio.gather(*first, *then)
