"""A producer's id is a secret, and a program that learns it makes no acknowledged record vanish."""

from __future__ import annotations

import pytest

from ledgermq.errors import OutOfOrderSequence
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.exclusive_ids import exclusive_id
from ledgermq.protocol.naming.producer_ids import shown_producer_id
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.access.state.rules import hash_of
from ledgermq_ledger.keys import PartitionId
from tests.broker.access import RULES, change, token
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


# The principal whose id it is


RIGHTS = [
    f"allow user:{name} {what}"
    for name in ("victim", "thief")
    for what in ("produce,describe orders", "consume orders")
]


async def _principals(cluster: Cluster) -> tuple[str, str]:
    """Make the topic, and two principals with the same rights; return a token of each."""
    await cluster.create("orders", 2, (await token(cluster, "root")).text)
    await change(cluster, grant=RIGHTS)
    return (await token(cluster, "victim")).text, (await token(cluster, "thief")).text


async def _sent(cluster: Cluster, who: str, value: bytes, stated: pb.ProducerSession, partition: int = 0) -> str:
    """Send a batch; return the code of its error, or where it is stored."""
    line = cluster.line(await cluster.owner_of("orders", partition), who)
    [result] = (await line.produce_once(frame_of("orders", partition, value, session=stated))).results
    return result.error.code if result.HasField("error") else str(result.base_offset)


async def _opened(cluster: Cluster, who: str, producer_id: bytes = b"") -> pb.OpenedPartition:
    request = pb.OpenProducerRequest(
        partitions=[pb.TopicPartition(topic="orders", partition=0)], producer_id=producer_id
    )
    [found] = (await cluster.line(await cluster.owner_of("orders", 0), who).open_producer(request)).partitions
    return found


@pytest.mark.parametrize("epoch", [0, 1])
@in_cluster("a:1", "b:1", **RULES)
async def test_an_id_is_that_of_the_principal_which_used_it_first(cluster: Cluster, epoch: int) -> None:
    """In every term, and for every sequence and epoch that another principal states; other tokens of the same
    principal, and brokers, go on.
    """
    victim, thief = await _principals(cluster)
    slot = (await _opened(cluster, victim)).opened_slot
    assert await _sent(cluster, victim, b"order 0", session(0, slot)) == "0"
    for turn in range(1, 3):
        for sequence in (0, turn) if not epoch else (0,):
            assert await _sent(cluster, thief, b"forged", session(sequence, slot, epoch)) == "UNKNOWN_PRODUCER"
        assert (await _opened(cluster, thief, VICTIM)).next_sequence == 0, "a stranger learns no sequence"
        assert (await _opened(cluster, victim, VICTIM)).next_sequence == turn
        assert await _sent(cluster, victim, b"order 0", session(0, slot)) == "0", "a repetition of its own"
        rotated = (await token(cluster, "victim")).text
        assert await _sent(cluster, rotated, b"order %d" % turn, session(turn, slot)) == str(turn)
        await cluster.stop(await cluster.owner_of("orders", 0), graceful=turn == 1)
        await cluster.start("c:1" if turn == 1 else "d:1")
        await cluster.settled()
    root = (await token(cluster, "root")).text
    line = cluster.line(await cluster.owner_of("orders", 0), root)
    assert await read_all(line, "orders", 0) == [b"order 0", b"order 1", b"order 2"]


@in_cluster("a:1", **RULES)
async def test_what_a_caller_states_as_its_principal_never_counts(cluster: Cluster) -> None:
    victim, thief = await _principals(cluster)
    slot = (await _opened(cluster, victim)).opened_slot
    assert await _sent(cluster, victim, b"order 0", session(0, slot)) == "0"
    request = pb.OpenProducerRequest(
        partitions=[pb.TopicPartition(topic="orders", partition=0)], producer_id=VICTIM, caller=hash_of("user:victim")
    )
    [found] = (await cluster.line("a:1", thief).open_producer(request)).partitions
    assert found.next_sequence == 0
    assert request.caller == hash_of("user:victim"), "the caller's own request is left as it is"


@in_cluster("a:1", **RULES)
async def test_a_client_whose_id_was_used_first_by_another_principal_loses_nothing(cluster: Cluster) -> None:
    victim, thief = await _principals(cluster)
    slot = (await _opened(cluster, thief)).opened_slot
    async with cluster.client(victim) as client, client.producer() as producer:
        await producer.send("orders", b"order 0", partition=0)
        [(id_, epoch)] = _sessions(cluster)
        stolen = pb.ProducerSession(id=id_, epoch=epoch, sequence=0, opened_slot=slot)
        assert await _sent(cluster, thief, b"forged", stolen, partition=1) == "0", "nothing is known of the id there"
        results = [await producer.send("orders", b"order %d" % number, partition=1) for number in (1, 2)]
        assert (await producer.send("orders", b"order 3", partition=0)).offset == 1
    assert [result.offset for result in results] == [1, 2]
    root = (await token(cluster, "root")).text
    assert await read_all(cluster.line("a:1", root), "orders", 1) == [b"forged", b"order 1", b"order 2"]


@in_cluster("a:1")
async def test_an_open_cluster_stores_no_principal(cluster: Cluster) -> None:
    await cluster.create("orders", 1)
    await produced(cluster, b"order 0", 0, await opened(cluster))
    [broker] = cluster.brokers.values()
    topic = broker.metadata.catalog.topics_by_name["orders"]
    owner = broker.ownership.terms.opened[topic.bundles[0]]
    [state] = owner._writer.durable.producers.states_of(PartitionId(topic.id, 0))
    assert not state.principal


@in_cluster("a:1", **RULES)
async def test_only_its_principal_speaks_for_an_exclusive_producer(cluster: Cluster) -> None:
    """Another one neither writes, nor renews, nor releases under its id; the holder keeps the partition."""
    victim, thief = await _principals(cluster)
    holder = exclusive_id(b"v" * 16)
    wanted = pb.WantedPartition(topic="orders", partition=0, number=0)
    claim = pb.HoldPartitionsRequest(producer_id=holder, name="v", partitions=[wanted])
    [held] = (await cluster.line("a:1", victim).hold_partitions(claim)).holders
    assert held.is_caller
    slot = (await _opened(cluster, victim)).opened_slot
    stolen = pb.ProducerSession(id=holder, sequence=0, opened_slot=slot)
    release = pb.ReleasePartitionsRequest(producer_id=holder, partitions=[wanted])
    for number in (0, held.number):
        wanted.number = number
        again = pb.HoldPartitionsRequest(producer_id=holder, name="v", partitions=[wanted])
        [found] = (await cluster.line("a:1", thief).hold_partitions(again)).holders
        assert (found.is_held, found.is_caller) == (True, False)
    assert await _sent(cluster, thief, b"forged", stolen) == "PRODUCER_FENCED"
    assert not (await cluster.line("a:1", thief).release_partitions(release)).partitions[0].released
    assert await _sent(cluster, victim, b"order 0", stolen) == "0"
    assert (await cluster.line("a:1", victim).release_partitions(release)).partitions[0].released
