"""The latest offset that programs of the Kafka protocol ask for counts every transaction whose offsets they may go on
from (X25); in virtual time, byte by byte.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.transactions.participating.settling import SETTLE_S_MAX
from ledgermq_broker.transactions.partition import TransactionPartition
from ledgermq_broker.transactions.peers import Peers
from ledgermq_broker.transactions.state.types import Transaction
from tests.broker.kafka_producer import KafkaProducer
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster

LATEST = -1
UNCOMMITTED, COMMITTED = 0, 1


async def latest(cluster: KafkaCluster, isolation: int = UNCOMMITTED) -> Any:
    client = await cluster.leader_client("t", 0)
    return await client.list_offset("t", 0, LATEST, isolation=isolation)


class Held:
    """Bundles complete nothing until `release` is called."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._is_free = asyncio.Event()
        complete = TransactionPartition.complete

        async def late(partition: TransactionPartition, *asked: Any) -> bool:
            await self._is_free.wait()
            return await complete(partition, *asked)

        patch.setattr(TransactionPartition, "complete", late)

    def release(self) -> None:
        self._is_free.set()


@in_kafka_cluster("a:1", "b:1")
async def test_it_waits_for_a_commit_that_is_not_complete(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    await producer.init()
    with pytest.MonkeyPatch.context() as patch:
        held = Held(patch)
        await producer.add(("t", 0))
        await producer.send("t", 0, b"a", b"b")
        assert (await latest(cluster)).offset == 0  # nothing is decided
        assert await producer.end() == 0
        asking = asyncio.create_task(latest(cluster))
        await asyncio.sleep(5)
        assert not asking.done()
        assert (await latest(cluster, COMMITTED)).offset == 0  # readers of what is committed do not wait
        held.release()
        found = await asking
    assert (found.error_code, found.offset) == (0, 2)


@in_kafka_cluster("a:1", "b:1")
async def test_it_waits_for_an_open_transaction_only_if_this_commits_offsets(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    await producer.init()
    await producer.add(("t", 0))
    await producer.send("t", 0, b"a")
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert (await latest(cluster)).offset == 0
    assert loop.time() - began_s < 1
    await producer.add_group("g")
    assert await producer.send_offsets("g", 1) == 0
    asking = asyncio.create_task(latest(cluster))
    await asyncio.sleep(5)
    assert not asking.done()
    assert await producer.end() == 0
    found = await asking
    assert (found.error_code, found.offset) == (0, 1)
    await producer.add(("t", 0))
    await producer.send("t", 0, b"never")
    await producer.add_group("g")
    asking = asyncio.create_task(latest(cluster))
    await asyncio.sleep(1)
    assert not asking.done()
    assert await producer.end(commit=False) == 0
    assert (await asking).offset == 1


@in_kafka_cluster("a:1", "b:1")
async def test_after_a_while_it_says_that_it_is_to_be_asked_again(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    await producer.init(60_000)
    await producer.add(("t", 0))
    await producer.send("t", 0, b"a")
    await producer.add_group("g")
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    found = await latest(cluster)
    assert SETTLE_S_MAX <= loop.time() - began_s < SETTLE_S_MAX + 5
    assert (found.error_code, found.offset) == (Code.NOT_LEADER_OR_FOLLOWER, -1)
    async with asyncio.timeout(120):  # its time-out ends it
        while (found := await latest(cluster)).error_code:
            assert found.error_code == Code.NOT_LEADER_OR_FOLLOWER
    assert found.offset == 0


@in_kafka_cluster("a:1", "b:1")
async def test_another_owner_waits_too(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    await producer.init()
    with pytest.MonkeyPatch.context() as patch:
        held = Held(patch)
        await producer.add(("t", 0))
        await producer.send("t", 0, b"a")
        assert await producer.end() == 0
        owner = await cluster.owner_of("t", 0)
        await cluster.stop(owner, graceful=False)
        await asyncio.sleep(30)
        asking = asyncio.create_task(latest(cluster))
        await asyncio.sleep(3)
        assert not asking.done()
        held.release()
        found = await asking
    assert (found.error_code, found.offset) == (0, 1)


@in_kafka_cluster("a:1")
async def test_a_call_waits_once_for_all_its_partitions(cluster: KafkaCluster) -> None:
    """And asks the coordinator seldom."""
    count = 50
    await cluster.create("t", partitions=count)
    producer = KafkaProducer(cluster)
    await producer.init(60_000)
    await producer.add(*(("t", number) for number in range(count)))
    for number in range(count):
        await producer.send("t", number, b"a")
    await producer.add_group("g")
    loop = asyncio.get_running_loop()
    began_s, asked = loop.time(), 0
    is_settled = Peers.is_settled

    async def counted(peers: Peers, transaction: Transaction) -> bool:
        nonlocal asked
        asked += 1
        return await is_settled(peers, transaction)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Peers, "is_settled", counted)
        found = await cluster.connect("a:1").list_offsets("t", range(count), LATEST)
    assert loop.time() - began_s < SETTLE_S_MAX + 5
    assert {one.error_code for one in found} == {Code.NOT_LEADER_OR_FOLLOWER}
    assert asked < 20 * count
    assert await producer.end() == 0
