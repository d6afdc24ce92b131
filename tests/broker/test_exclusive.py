"""Exclusive producers in brokers: who may write to a partition, owners that change, former owners, and calls that are
refused; in virtual time.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from ledgermq.errors import (
    InvalidRequest,
    LedgerMQError,
    NotOwner,
    PartitionHeld,
    ProducerFenced,
    PublishNotAccepted,
    RetriableError,
    Unavailable,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.naming.exclusive_ids import exclusive_id
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.exclusive.holders import EXCLUSIVE
from ledgermq_broker.features import ANNOUNCED
from ledgermq_ledger import keys
from ledgermq_ledger.object_store.memory import MemoryStore
from tests.broker.cluster import Cluster, batch_header, cluster_of, encoded, frame_of, in_cluster
from tests.broker.groups import ask
from tests.broker.timer_calls import deliver_later, timed_frame
from tests.virtual_time import virtual, virtual_sources

TOPIC = "orders"
LEASE_MS = 15_000


def new_id(seed: int) -> bytes:
    return exclusive_id(random.Random(seed).randbytes(16))


A, B, C = new_id(1), new_id(2), new_id(3)


class Producer:
    """Numbers its batches as a client does."""

    def __init__(self, cluster: Cluster, producer_id: bytes) -> None:
        self.cluster, self.id, self.sequence, self.slot = cluster, producer_id, 0, 0

    async def open(self) -> Producer:
        async def call(line: Connection) -> int:
            request = pb.OpenProducerRequest(partitions=[pb.TopicPartition(topic=TOPIC, partition=0)])
            [opened] = (await line.open_producer(request)).partitions
            if opened.HasField("error"):
                raise error_from_proto(opened.error)
            return opened.opened_slot

        self.slot = await ask(self.cluster, call)
        return self

    def session(self, sequence: int | None = None) -> pb.ProducerSession:
        number = self.sequence if sequence is None else sequence
        return pb.ProducerSession(id=self.id, epoch=0, sequence=number, opened_slot=self.slot)

    async def send(self, value: bytes) -> int:
        offset, _ = await self.cluster.produce(TOPIC, 0, value, session=self.session())
        self.sequence += 1
        return offset


def wanted(number: int | None = None, topic: str = TOPIC, partition: int = 0, topic_id: int = 0) -> pb.WantedPartition:
    return pb.WantedPartition(topic=topic, partition=partition, topic_id=topic_id, number=number)


async def hold(
    cluster: Cluster, producer_id: bytes = b"", number: int | None = None, *, fences: bool = False, name: str = ""
) -> pb.PartitionHolder:
    request = pb.HoldPartitionsRequest(producer_id=producer_id, name=name, fences=fences, partitions=[wanted(number)])

    async def call(line: Connection) -> pb.PartitionHolder:
        [holder] = (await line.hold_partitions(request)).holders
        if holder.HasField("error"):
            raise error_from_proto(holder.error)
        return holder

    return await ask(cluster, call)


async def release(cluster: Cluster, producer_id: bytes) -> bool:
    request = pb.ReleasePartitionsRequest(producer_id=producer_id, partitions=[wanted()])

    async def call(line: Connection) -> bool:
        [released] = (await line.release_partitions(request)).partitions
        if released.HasField("error"):
            raise error_from_proto(released.error)
        return released.released

    return await ask(cluster, call)


@in_cluster("a:1")
async def test_one_producer_has_a_partition_for_itself(cluster: Cluster) -> None:
    await cluster.create(TOPIC, 1)
    assert not (await hold(cluster)).is_held
    held = await hold(cluster, A, 0, name="writer-1")
    assert (held.is_caller, held.is_held, held.number, held.lease_ms) == (True, True, 1, LEASE_MS)
    one = await Producer(cluster, A).open()
    assert await one.send(b"of a") == 0
    with pytest.raises(PartitionHeld, match="orders/0: exclusive producer 'writer-1' has the partition"):
        await cluster.produce(TOPIC, 0, b"without a session")
    with pytest.raises(PartitionHeld):
        await (await Producer(cluster, b"s" * 16).open()).send(b"shared")
    seen = await hold(cluster, B, 1)
    assert (seen.is_caller, seen.is_held, seen.name, seen.number) == (False, True, "writer-1", 1)
    with pytest.raises(ProducerFenced):
        await (await Producer(cluster, B).open()).send(b"of b")
    assert await release(cluster, A)
    assert not await release(cluster, A), "it has left"
    assert await cluster.produce(TOPIC, 0, b"shared again") == (1, 0)
    with pytest.raises(ProducerFenced):
        await one.send(b"late")
    assert await cluster.read_all(TOPIC, 0) == [b"of a", b"shared again"]


@in_cluster("a:1")
async def test_fencing_takes_the_partition_from_its_holder(cluster: Cluster) -> None:
    await cluster.create(TOPIC, 1)
    assert (await hold(cluster, A, 0)).is_caller
    one, two = await Producer(cluster, A).open(), await Producer(cluster, B).open()
    assert await one.send(b"0") == 0
    taken = await hold(cluster, B, 1, fences=True)
    assert (taken.is_caller, taken.number) == (True, 2)
    with pytest.raises(ProducerFenced, match="lost the partition to an exclusive producer"):
        await one.send(b"late")
    assert await two.send(b"1") == 1
    assert not (await hold(cluster, A)).is_caller
    assert not await release(cluster, A)
    late = await hold(cluster, A, 0, fences=True)
    assert not late.is_caller, "a late double of the first call"
    assert await cluster.produce(TOPIC, 0, b"0", session=one.session(0)) == (0, 0), "it is stored, and told again"


@in_cluster("a:1")
async def test_a_holder_that_renews_nothing_may_be_replaced(cluster: Cluster) -> None:
    await cluster.create(TOPIC, 1)
    await hold(cluster, A, 0)
    one = await Producer(cluster, A).open()
    await asyncio.sleep(LEASE_MS / 1000 - 1)
    assert not (await hold(cluster, B, 1)).is_caller
    assert (await hold(cluster, A)).is_caller, "a renewal"
    await asyncio.sleep(LEASE_MS / 1000 - 1)
    assert not (await hold(cluster, B, 1)).is_caller
    await asyncio.sleep(2)
    assert await one.send(b"0") == 0, "it writes until it is replaced"
    assert (await hold(cluster, B, 1)).is_caller
    with pytest.raises(ProducerFenced):
        await one.send(b"1")


@in_cluster("a:1")
async def test_a_shared_producer_waits_for_the_lease_of_a_dead_holder_only(cluster: Cluster) -> None:
    await cluster.create(TOPIC, 1)
    await hold(cluster, A, 0)
    one = await Producer(cluster, A).open()
    with pytest.raises(PartitionHeld):
        await cluster.produce(TOPIC, 0, b"shared")
    await asyncio.sleep(LEASE_MS / 1000 + 1)
    offset, retries = await cluster.produce(TOPIC, 0, b"shared")
    assert (offset, retries > 0) == (0, True)
    with pytest.raises(ProducerFenced):
        await one.send(b"0")
    looked = await hold(cluster)
    assert (looked.is_held, looked.number) == (False, 2)


@in_cluster("a:1")
async def test_batches_that_are_answered_on_receipt_are_refused_too(cluster: Cluster) -> None:
    await cluster.create(TOPIC, 1)
    await hold(cluster, A, 0)
    data = encoded([b"value"])
    frame = Frame(pb.ProduceHeader(acks=pb.RECEIVED, batches=[batch_header(TOPIC, 0, data, 1)]), [data])
    line = cluster.line(await cluster.owner_of(TOPIC, 0))
    [result] = (await line.produce_once(frame)).results
    assert result.error.code == PartitionHeld.code


@in_cluster("a:1", "b:1")
async def test_the_next_owner_knows_who_has_the_partition(cluster: Cluster) -> None:
    await cluster.create(TOPIC, 1)
    await hold(cluster, A, 0, name="first")
    one = await Producer(cluster, A).open()
    await one.send(b"0")
    await asyncio.sleep(LEASE_MS / 1000 - 1)
    await cluster.stop(await cluster.owner_of(TOPIC, 0), graceful=False)
    looked = await hold(cluster, B, 1)
    assert (looked.is_caller, looked.name, looked.number) == (False, "first", 1)
    assert looked.lease_ms > LEASE_MS - 1000, "a whole lease: the former owner may have renewed it just now"
    with pytest.raises(PartitionHeld):
        await cluster.produce(TOPIC, 0, b"shared")
    assert await one.send(b"1") == 1
    assert (await hold(cluster, B, 1, fences=True)).is_caller
    await cluster.stop(await cluster.owner_of(TOPIC, 0), graceful=False)
    await cluster.start("c:1")
    with pytest.raises(ProducerFenced):
        await one.send(b"2")
    assert await (await Producer(cluster, B).open()).send(b"2") == 2
    assert await cluster.read_all(TOPIC, 0) == [b"0", b"1", b"2"]


@in_cluster("a:1", "b:1")
async def test_nothing_is_written_before_an_owner_knows_the_holders(cluster: Cluster) -> None:
    """A takeover while the partition of `__holders` cannot be read: batches wait, also those of the holder."""
    made = await cluster.create(TOPIC, 1)
    await hold(cluster, A, 0)
    former = await cluster.owner_of(TOPIC, 0)
    await cluster.stop(former, graceful=False)
    owner = await cluster.owner_of(TOPIC, 0)
    broker = cluster.brokers[owner]
    exclusive = broker.ownership.terms.opened[made.partitions[0].bundle].exclusive
    asks, exclusive.asks = exclusive.asks, None
    [result] = (await cluster.line(owner).produce_once(frame_of(TOPIC, 0, b"shared"))).results
    assert result.error.code == Unavailable.code
    exclusive.asks = asks
    [result] = (await cluster.line(owner).produce_once(frame_of(TOPIC, 0, b"shared"))).results
    assert result.error.code in (PartitionHeld.code, Unavailable.code)
    assert await cluster.read_all(TOPIC, 0) == []


@in_cluster("a:1", "b:1")
async def test_a_former_owner_tells_no_producer_that_it_is_fenced_or_has_the_partition(cluster: Cluster) -> None:
    await cluster.create(TOPIC, 1)
    await hold(cluster, A, 0)
    one = await Producer(cluster, A).open()
    former = await cluster.owner_of(TOPIC, 0)
    cluster.views[former].pause()
    line = cluster.line(former)
    others = [address for address in cluster.brokers if address != former]
    assert others
    await asyncio.sleep(20)
    cluster.views[former].resume()
    for request in (
        pb.HoldPartitionsRequest(producer_id=A, partitions=[wanted()]),
        pb.HoldPartitionsRequest(producer_id=B, partitions=[wanted(1)]),
    ):
        [holder] = (await line.hold_partitions(request)).holders
        assert holder.error.code == NotOwner.code
    [result] = (await line.produce_once(frame_of(TOPIC, 0, b"x", session=one.session()))).results
    assert result.error.code == NotOwner.code


@in_cluster("a:1")
async def test_timed_and_staged_messages_are_refused_beside_an_exclusive_producer(cluster: Cluster) -> None:
    await cluster.create(TOPIC, 1)
    due_s = asyncio.get_running_loop().time() + 30
    await deliver_later(cluster, timed_frame(TOPIC, 0, [(b"before", due_s)]))
    await hold(cluster, A, 0)
    with pytest.raises(PartitionHeld):
        await deliver_later(cluster, timed_frame(TOPIC, 0, [(b"after", due_s)]))
    one = await Producer(cluster, A).open()
    assert await one.send(b"exclusive") == 0
    for _ in range(5):
        await asyncio.sleep(10)
        await hold(cluster, A)
    assert await cluster.read_all(TOPIC, 0) == [b"exclusive", b"before"], "it was accepted before"


@in_cluster("a:1")
async def test_a_removed_topic_leaves_no_holder(cluster: Cluster) -> None:
    await cluster.create(TOPIC, 1)
    await hold(cluster, A, 0)
    line = cluster.line("a:1")
    await line.delete_topic(pb.DeleteTopicRequest(name=TOPIC))
    with pytest.raises(LedgerMQError):
        await hold(cluster, A)
    async with asyncio.timeout(600):
        while True:
            try:
                await cluster.create(TOPIC, 1)
                break
            except RetriableError:
                await asyncio.sleep(1)
    looked = await hold(cluster)
    assert (looked.is_held, looked.number) == (False, 0)
    [broker] = cluster.brokers.values()
    assert [held for each in broker.holders.served() for held in each.held()] == []


@in_cluster("a:1")
async def test_calls_that_are_refused(cluster: Cluster) -> None:
    await cluster.create(TOPIC, 1)
    line = cluster.line("a:1")

    async def refused(request: pb.HoldPartitionsRequest) -> str:
        [holder] = (await line.hold_partitions(request)).holders
        return str(holder.error.code)

    with pytest.raises(InvalidRequest, match="1 to 4096 partitions, not 0"):
        await line.hold_partitions(pb.HoldPartitionsRequest(producer_id=A))
    with pytest.raises(InvalidRequest, match="not the id of an exclusive producer"):
        await line.hold_partitions(pb.HoldPartitionsRequest(producer_id=b"s" * 16, partitions=[wanted(0)]))
    with pytest.raises(InvalidRequest, match="not the id of an exclusive producer"):
        await line.release_partitions(pb.ReleasePartitionsRequest(partitions=[wanted()]))
    with pytest.raises(InvalidRequest, match="up to 200 characters"):
        await line.hold_partitions(pb.HoldPartitionsRequest(producer_id=A, name="x" * 201, partitions=[wanted(0)]))
    assert await refused(pb.HoldPartitionsRequest(producer_id=A, partitions=[wanted(0, "no")])) == UnknownTopic.code
    internal = pb.HoldPartitionsRequest(producer_id=A, partitions=[wanted(0, keys.METADATA_TOPIC)])
    assert await refused(internal) == PublishNotAccepted.code
    other = pb.HoldPartitionsRequest(producer_id=A, partitions=[wanted(0, topic_id=2**40)])
    assert await refused(other) == UnknownTopic.code
    assert (await hold(cluster, A, 2**63)).is_held is False
    assert not (await hold(cluster)).is_held


@virtual
async def test_the_topic_waits_until_every_broker_knows_exclusive_producers() -> None:
    store = MemoryStore("", virtual_sources(1000))
    async with cluster_of("a:1", "b:1", store=store) as cluster:
        await cluster.create(TOPIC, 1)
        old = cluster.brokers["b:1"].membership
        old.me = replace(old.me, features=tuple(each for each in ANNOUNCED if each != EXCLUSIVE.announced))
        await asyncio.sleep(3)
        request = pb.HoldPartitionsRequest(producer_id=A, partitions=[wanted(0)])
        line = cluster.line(await cluster.owner_of(TOPIC, 0))
        [holder] = (await line.hold_partitions(request)).holders
        assert "exclusive producers need every broker" in holder.error.message
        assert keys.HOLDERS_TOPIC not in cluster.brokers["a:1"].metadata.catalog.topics_by_name
