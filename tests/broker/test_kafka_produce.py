"""Batches of Kafka clients: what is stored once, what is refused how, and what ends a connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.errors import ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import produce_request as p
from ledgermq_broker.kafka.wire.messages import PRODUCE
from tests.broker.kafka_world import (
    Ended,
    KafkaCluster,
    batch_of,
    in_kafka_cluster,
    produce_request,
    records_of,
)
from tests.waiting import until


@in_kafka_cluster("a:1")
async def test_batches_are_stored_in_order_and_read_back(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    client = cluster.connect("a:1")
    answers = await asyncio.gather(*(client.produce("t", 0, batch_of(b"%d" % n, b"x")) for n in range(20)))
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 2 * n) for n in range(20)]
    assert client.order == list(range(20))
    part = await client.fetch("t", 0, 0)
    assert records_of(part) == [(n, b"%d" % (n // 2) if n % 2 == 0 else b"x") for n in range(40)]
    assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (40, 40, 0)
    assert await cluster.read_all("t", 0) == [value for _, value in records_of(part)]


@in_kafka_cluster("a:1")
async def test_an_idempotent_batch_that_is_sent_again_is_stored_once(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    client = cluster.connect("a:1")
    producer = (await client.producer_id()).producer_id
    batches = [batch_of(b"a", b"b", producer_id=producer, epoch=0, sequence=2 * n) for n in range(8)]
    for n, batch in enumerate(batches):
        assert (await client.produce("t", 0, batch)).base_offset == 2 * n
    other = cluster.connect("a:1")  # after a lost connection
    for line in (client, other):
        again = await line.produce("t", 0, batches[7])
        assert (again.error_code, again.base_offset) == (0, 14)
    assert (await client.produce("t", 0, batches[0])).error_code == Code.DUPLICATE_SEQUENCE_NUMBER
    gap = batch_of(b"c", producer_id=producer, epoch=0, sequence=99)
    assert (await client.produce("t", 0, gap)).error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(await cluster.read_all("t", 0)) == 16


@in_kafka_cluster("a:1")
async def test_a_former_epoch_is_fenced_and_an_unknown_producer_is_unknown(cluster: KafkaCluster) -> None:
    """Two codes: a client that was fenced must stop, one that is unknown begins again."""
    await cluster.create("t", partitions=1)
    client = cluster.connect("a:1")
    for epoch in (0, 1):
        assert not (await client.produce("t", 0, batch_of(b"x", producer_id=7, epoch=epoch, sequence=0))).error_code
    late = batch_of(b"y", producer_id=7, epoch=0, sequence=1)
    assert (await client.produce("t", 0, late)).error_code == Code.INVALID_PRODUCER_EPOCH
    unknown = batch_of(b"y", producer_id=8, epoch=0, sequence=5)
    assert (await client.produce("t", 0, unknown)).error_code == Code.UNKNOWN_PRODUCER_ID


@in_kafka_cluster("a:1")
async def test_ids_of_producers_differ(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    found = [(await client.producer_id(version)).producer_id for version in (0, 1, 2, 3, 4, 5)]
    assert len(set(found)) == 6
    assert all(producer >= 0 for producer in found)


@in_kafka_cluster("a:1")
async def test_what_came_compressed_is_read_back(cluster: KafkaCluster) -> None:
    """By gzip, which is Python's; tests/kafka has real clients with all others."""
    await cluster.create("t", partitions=1)
    client = cluster.connect("a:1")
    values = [b"%d" % n * 100 for n in range(200)]
    assert not (await client.produce("t", 0, batch_of(*values, codec=1))).error_code
    assert [value for _, value in records_of(await client.fetch("t", 0, 0))] == values


@in_kafka_cluster("a:1")
async def test_what_is_wrong_with_a_batch_gets_the_code_that_ends_it(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1, max_message_bytes="1000")
    await cluster.create("keyed", partitions=1, cleanup_policy="compact")
    client = cluster.connect("a:1")
    good = batch_of(b"x")
    wrong_crc = good[:-1] + bytes([good[-1] ^ 1])
    cases: list[tuple[str, int, Any, Code]] = [
        ("t", 0, wrong_crc, Code.CORRUPT_MESSAGE),
        ("t", 0, None, Code.INVALID_RECORD),
        ("t", 0, good + good, Code.INVALID_RECORD),
        ("t", 0, good[:16] + b"\x01" + good[17:], Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ("t", 0, batch_of(bytes(2000)), Code.MESSAGE_TOO_LARGE),
        ("t", 9, good, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, good, Code.INVALID_RECORD),
        ("nowhere", 0, good, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("__metadata", 0, good, Code.POLICY_VIOLATION),
        ("keyed", 0, good, Code.INVALID_RECORD),
        ("t", 0, batch_of(b"x", timestamp_ms=2**62), Code.INVALID_TIMESTAMP),
    ]
    for topic, partition, records, code in cases:
        answer = await client.produce(topic, partition, records)
        assert Code(answer.error_code) == code, (topic, partition, code.name)
        assert answer.base_offset == -1
        assert answer.error_message
    assert Code((await client.produce("t", 0, good, acks=2)).error_code) == Code.INVALID_RECORD
    assert await cluster.read_all("t", 0) == []


@in_kafka_cluster("a:1")
async def test_a_batch_that_never_fits_into_memory_is_refused_at_once(cluster: KafkaCluster) -> None:
    """Converting takes five times the batch: one that cannot have that would be sent again without end."""
    await cluster.create("t", partitions=1)
    client = cluster.connect("a:1")
    big = bytes(33 * 1024 * 1024)
    assert (await client.produce("t", 0, big)).error_code == Code.MESSAGE_TOO_LARGE
    assert not client.is_over


@in_kafka_cluster("a:1", "b:1")
async def test_no_acknowledgement_from_a_former_owner_ends_the_connection(cluster: KafkaCluster) -> None:
    """A client that waits for no answer learns of the new leader only by a connection that ends."""
    await cluster.create("t", partitions=1)
    owner = await cluster.owner_of("t", 0)
    [other] = {"a:1", "b:1"} - {owner}
    right, wrong = cluster.connect(owner), cluster.connect(other)
    right.send(PRODUCE, 9, produce_request("t", 0, batch_of(b"x"), acks=0))
    wrong.send(PRODUCE, 9, produce_request("t", 0, batch_of(b"y"), acks=0))
    await until(lambda: wrong.is_over)
    assert (await right.metadata("t")).topics[0].error_code == 0  # and an answer that nobody asked for would be seen
    assert right.order == [1]
    assert await cluster.read_all("t", 0) == [b"x"]


@in_kafka_cluster("a:1")
async def test_what_was_not_admitted_when_a_connection_closes_is_never_admitted(cluster: KafkaCluster) -> None:
    """Its client sends it again on another connection; the first one would come later, and double it."""
    await cluster.create("t", partitions=1)
    client = cluster.connect("a:1")
    await client.produce("t", 0, batch_of(b"first"))
    cluster.views["a:1"].pause()  # the store is slow
    calls = [asyncio.create_task(client.produce("t", 0, batch_of(b"old", b"%d" % n))) for n in range(200)]
    await asyncio.sleep(5)
    await client.close()
    await asyncio.wait(calls)
    taken = cluster.brokers["a:1"].context.produce_memory.taken
    cluster.views["a:1"].resume()
    await asyncio.sleep(30)
    values = await cluster.read_all("t", 0)
    assert values[0] == b"first"
    assert taken >= 0
    assert len(values) < 1 + 2 * 200, "some waited behind the bound of a connection"
    later = cluster.connect("a:1")
    assert not (await later.produce("t", 0, batch_of(b"new"))).error_code
    await asyncio.sleep(60)
    assert (await cluster.read_all("t", 0))[-1] == b"new", "nothing of the closed connection came after it"


@in_kafka_cluster("a:1")
async def test_a_request_that_has_waited_longer_than_its_client_is_not_admitted(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    client = cluster.connect("a:1")
    cluster.views["a:1"].pause()
    request = produce_request("t", 0, batch_of(b"x"))
    request.timeout_ms = 1000
    calls = [asyncio.create_task(client.call(PRODUCE, 9, request)) for _ in range(60)]
    await asyncio.sleep(20)
    cluster.views["a:1"].resume()
    codes = [(await one).responses[0].partition_responses[0].error_code for one in calls]
    assert codes.count(Code.NONE) < len(codes)
    assert set(codes) == {Code.NONE, Code.REQUEST_TIMED_OUT}
    assert len(await cluster.read_all("t", 0)) == codes.count(Code.NONE)


@in_kafka_cluster("a:1", "b:1", "c:1")
async def test_an_idempotent_producer_goes_on_after_a_takeover(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    owner = await cluster.owner_of("t", 0)
    client = cluster.connect(owner)
    batches = [batch_of(b"%d" % n, producer_id=7, epoch=0, sequence=n) for n in range(6)]
    for batch in batches[:3]:
        assert not (await client.produce("t", 0, batch)).error_code
    await cluster.stop(owner, graceful=False)
    later = await cluster.leader_client("t", 0)
    for batch in batches[2:]:  # the last one before is sent again
        answer = await later.produce("t", 0, batch)
        assert answer.error_code == 0
    assert await cluster.read_all("t", 0) == [b"%d" % n for n in range(6)]


@in_kafka_cluster("a:1")
async def test_a_sequence_begins_again_at_0_behind_the_largest(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    client = cluster.connect("a:1")
    top = 2**31
    session = pb.ProducerSession(id=b"kafka\0\0\0" + (9).to_bytes(8, "big"), epoch=0, sequence=0, opened_slot=0)
    opened = await cluster.line("a:1").open_producer(
        pb.OpenProducerRequest(partitions=[pb.TopicPartition(topic="t", partition=0)])
    )
    session.opened_slot = opened.partitions[0].opened_slot
    sessions = client.connection
    assert not (await client.produce("t", 0, batch_of(b"x", producer_id=9, epoch=0, sequence=0))).error_code
    caller = sessions._caller
    assert caller is not None
    place = ("t", 0)
    known = caller.produce._sessions._opened[session.id, 0, place]
    known.expected = top - 1  # as after 2**31 - 1 records
    from ledgermq_broker.kafka.wire.batches.head import read_head

    for sequence, means in ((top - 1, top - 1), (0, top), (1, top + 1)):
        head = read_head(batch_of(b"x", producer_id=9, epoch=0, sequence=sequence))
        found = await caller.produce._sessions.session(caller.admitted.api, place, head)
        assert found is not None
        assert found.sequence == means


@in_kafka_cluster("a:1")
async def test_a_full_broker_makes_the_connection_wait(cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A code for it would be permanent for librdkafka, or make each client ask at once again."""
    await cluster.create("t", partitions=1)
    service = cluster.brokers["a:1"].service
    real, refusals = service.produce, 3

    async def produce(requests: Any) -> Any:
        nonlocal refusals
        async for request in requests:
            if refusals:
                refusals -= 1
                error = error_to_proto(ResourceExhausted("full", retry_after_ms=700))
                yield pb.ProduceResponse(results=[pb.ProduceResult(error=error)])
            else:

                async def one(request: Any = request) -> Any:
                    yield request

                async for answer in real(one()):
                    yield answer

    monkeypatch.setattr(service, "produce", produce)
    client = cluster.connect("a:1")
    begun_s = asyncio.get_running_loop().time()
    answer = await client.produce("t", 0, batch_of(b"x"))
    assert answer.error_code == 0
    assert asyncio.get_running_loop().time() - begun_s >= 3 * 0.7
    refusals = 1000
    begun_s = asyncio.get_running_loop().time()
    late = await client.call(PRODUCE, 9, produce_request("t", 0, batch_of(b"x")))
    assert late.responses[0].partition_responses[0].error_code == Code.NOT_ENOUGH_REPLICAS
    assert asyncio.get_running_loop().time() - begun_s <= 10.1, "at most a third of the client's time"
    assert late.throttle_time_ms == 700


@in_kafka_cluster("a:1")
async def test_what_is_not_served_ends_the_connection(cluster: KafkaCluster) -> None:
    for version in (0, 13):
        client = cluster.connect("a:1")
        with pytest.raises(Ended):
            await client.call(PRODUCE, version, p.ProduceRequest())
