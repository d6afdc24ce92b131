"""A producer's id is a secret, and a program that learns it makes no acknowledged record vanish."""

from __future__ import annotations

import pytest

from ledgermq.errors import OutOfOrderSequence
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.producer_ids import shown_producer_id
from ledgermq.protocol.status import error_from_proto
from ledgermq_ledger.keys import PartitionId
from tests.broker.cluster import Cluster, fetch_of, frame_of, in_cluster, read_all, values_of

VICTIM = b"v" * 16


def session(sequence: int, opened_slot: int, epoch: int = 0) -> pb.ProducerSession:
    return pb.ProducerSession(id=VICTIM, epoch=epoch, sequence=sequence, opened_slot=opened_slot)


async def produced(cluster: Cluster, value: bytes, sequence: int, opened_slot: int, topic: str = "orders") -> int:
    line = cluster.line(await cluster.owner_of(topic, 0))
    [result] = (await line.produce_once(frame_of(topic, 0, value, session=session(sequence, opened_slot)))).results
    if result.HasField("error"):
        raise error_from_proto(result.error)
    return result.base_offset


async def opened(cluster: Cluster, topic: str = "orders") -> int:
    request = pb.OpenProducerRequest(partitions=[pb.TopicPartition(topic=topic, partition=0)])
    [found] = (await cluster.line(await cluster.owner_of(topic, 0)).open_producer(request)).partitions
    return found.opened_slot


@pytest.mark.parametrize("stamps", [False, True])
@in_cluster("a:1", "b:1")
async def test_a_batch_is_no_repetition_of_another_one(cluster: Cluster, stamps: bool) -> None:
    """Not even after a takeover and a checkpoint, nor where the broker writes its time into the batches."""
    settings = {"message_timestamp_type": "LogAppendTime"} if stamps else {}
    await cluster.create("orders", 1, **settings)
    slot = await opened(cluster)
    assert await produced(cluster, b"order 0", 0, slot) == 0
    assert await produced(cluster, b"forged", 1, slot) == 1
    for _ in range(2):
        with pytest.raises(OutOfOrderSequence, match="with other content"):
            await produced(cluster, b"order 1", 1, slot)
        assert await produced(cluster, b"forged", 1, slot) == 1, "the same batch is a repetition"
        assert await produced(cluster, b"order 0", 0, slot) == 0
        await cluster.stop(await cluster.owner_of("orders", 0), graceful=False)
        await cluster.start("c:1")
        await cluster.settled()
    line = cluster.line(await cluster.owner_of("orders", 0))
    assert await read_all(line, "orders", 0) == [b"order 0", b"forged"]


@in_cluster("a:1")
async def test_no_answer_shows_the_id_of_a_producer(cluster: Cluster) -> None:
    await cluster.create("orders", 1)
    await produced(cluster, b"order 0", 0, await opened(cluster))
    line = cluster.line("a:1")
    found = await line.find_messages(pb.FindMessagesRequest(topic="orders", partition=0, offset=0))
    assert found.messages[0].stored_by.producer_id == shown_producer_id(VICTIM)
    assert VICTIM not in found.SerializeToString()
    frame = await line.fetch_once(fetch_of("orders", 0))
    assert values_of(frame) == [b"order 0"]
    assert VICTIM not in frame.header.SerializeToString()


@in_cluster("a:1")
async def test_a_client_whose_id_was_stolen_loses_nothing_that_is_acknowledged(cluster: Cluster) -> None:
    await cluster.create("orders", 1)
    async with cluster.client() as client, client.producer() as producer:
        await producer.send("orders", b"order 0", partition=0)
        [(id_, epoch)] = _sessions(cluster)
        stolen = pb.ProducerSession(id=id_, epoch=epoch, sequence=1)
        await cluster.line("a:1").produce_once(frame_of("orders", 0, b"forged", session=stolen))
        results = [await producer.send("orders", b"order %d" % number, partition=0) for number in (1, 2)]
    values = await read_all(cluster.line("a:1"), "orders", 0)
    assert [values[result.offset] for result in results] == [b"order 1", b"order 2"]
    assert values == [b"order 0", b"forged", b"order 1", b"order 2"], "the producer goes on under a new id"


def _sessions(cluster: Cluster) -> list[tuple[bytes, int]]:
    """The sessions that the owner remembers: (producer id, epoch)."""
    [broker] = cluster.brokers.values()
    topic = broker.metadata.catalog.topics_by_name["orders"]
    owner = broker.ownership.terms.opened[topic.bundles[0]]
    states = owner._writer.durable.producers.states_of(PartitionId(topic.id, 0))
    return [(state.producer_id, state.epoch) for state in states]
