"""Attack transactions of Kafka clients by what else can name their producers, and by brokers that know different
parts of them; in virtual time.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.methods import Method
from ledgermq.protocol.naming.producer_ids import kafka_producer_id, producer_bytes
from ledgermq.protocol.status import error_from_proto, error_to_proto
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.ports.in_process import InProcessConnection
from tests.broker.kafka_producer import KafkaProducer
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster
from tests.broker.test_kafka_transactions import shows
from tests.broker.transaction_calls import Producer, stage_frame, stage_once


@in_kafka_cluster("a:1")
async def test_a_client_of_ours_cannot_end_what_a_kafka_client_does_later(cluster: KafkaCluster) -> None:
    """A bundle stages nothing of a producer at or below the last transaction that ended there. A stranger that names
    the producer beside its own id, in an epoch far ahead, must not end one: the producer could never stage again.
    """
    await cluster.create("t", partitions=1)
    victim = KafkaProducer(cluster)
    await victim.init()
    hostile = Producer(cluster, "y")
    await hostile.init()
    hostile.begin()
    hostile.ref.producer_id, hostile.ref.epoch = producer_bytes(victim.id), 2**31
    [result] = await stage_once(cluster, "a:1", stage_frame(hostile.ref, ("t", 0, 0, [b"never"])))
    assert result.error.code == InvalidRequest.code
    with pytest.raises(InvalidRequest):
        await hostile.stage_offset("g", "t", 0, 1)
    await asyncio.sleep(60.0)
    await victim.init()
    await victim.transaction({("t", 0): b"a"})
    await shows(cluster, "t", 0, b"a")


@in_kafka_cluster("a:1")
async def test_an_id_of_a_kafka_client_goes_on_in_ours_and_back(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    before = KafkaProducer(cluster)
    await before.init()
    await before.add(("t", 0))
    assert await before.send("t", 0, b"never") == 0
    ours = Producer(cluster, "x")
    await ours.init()
    assert kafka_producer_id(ours.ref.producer_id) is None
    for value in (b"a", b"b"):
        ours.begin()
        await ours.send("t", 0, value)
        assert await ours.end(pb.COMMITTED) == pb.COMMITTED
    assert await before.end() == Code.INVALID_PRODUCER_ID_MAPPING
    await shows(cluster, "t", 0, b"a", b"b")
    after = KafkaProducer(cluster)
    await after.init()
    await after.transaction({("t", 0): b"c"})
    await shows(cluster, "t", 0, b"a", b"b", b"c")


@in_kafka_cluster("a:1", "b:1", "c:1")
async def test_a_leader_beside_the_coordinator_says_that_nothing_was_added(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator's answer to the leader is one between brokers, which has no codes of Kafka."""
    real = InProcessConnection.ask

    async def over_the_wire(self: InProcessConnection, method: Method, request: Any) -> Any:
        try:
            return await real(self, method, request)
        except LedgerMQError as error:
            raise error_from_proto(error_to_proto(error)) from error

    monkeypatch.setattr(InProcessConnection, "ask", over_the_wire)
    await cluster.create("t", partitions=6)
    producer = KafkaProducer(cluster)
    await producer.init()
    coordinator = (await producer.coordinator()).address
    owners = [await cluster.owner_of("t", number) for number in range(6)]
    assert any(owner != coordinator for owner in owners)
    for number in range(6):
        assert await producer.send("t", number, b"never") == Code.INVALID_TXN_STATE, owners[number]
    for group in "ghijkl":
        assert await producer.send_offsets(group, 1) == Code.INVALID_TXN_STATE, group
