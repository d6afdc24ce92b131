"""Transactions of clients of the Kafka protocol, in virtual time and byte by byte: which code each call gets, and what
readers see.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.cluster.heartbeat import KAFKA_TRANSACTIONS
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import api_versions_request as av
from ledgermq_broker.kafka.wire.generated import init_producer_id_request as i
from ledgermq_broker.kafka.wire.messages import ADD_PARTITIONS_TO_TXN, API_VERSIONS, INIT_PRODUCER_ID
from tests.broker.groups import ask
from tests.broker.kafka_members import KafkaMember
from tests.broker.kafka_producer import KafkaProducer
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster
from tests.waiting import until

NO_OFFSET = -(2**31)


async def shows(cluster: KafkaCluster, topic: str, partition: int, *values: bytes) -> None:
    """Wait until exactly these records can be read."""
    async with asyncio.timeout(60):
        while (found := await cluster.read_all(topic, partition)) != list(values):
            assert found == list(values[: len(found)])
            await asyncio.sleep(0.05)


async def committed(
    cluster: KafkaCluster, group: str, topic: str = "t", *, stable: bool = False
) -> pb.CommittedPartition:
    asked = [pb.TopicPartition(topic=topic, partition=0)]
    request = pb.FetchCommittedRequest(group=group, partitions=asked, without_staged=not stable)
    return (await ask(cluster, lambda line: line.fetch_committed(request))).partitions[0]


# One producer


@in_kafka_cluster("a:1", "b:1")
async def test_a_transaction_shows_all_or_nothing(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=4)
    producer = KafkaProducer(cluster)
    assert (await producer.init()).error_code == 0
    assert producer.epoch == 0
    assert await producer.add(("t", 0), ("t", 1)) == 0
    first = await producer.send_once("t", 0, producer.batch("t", 0, b"a", b"b"))
    assert (first.error_code, first.base_offset) == (0, NO_OFFSET)
    producer.sequences["t", 0] += 2
    assert await producer.add(("t", 2)) == 0
    for number in (1, 2):
        assert await producer.send("t", number, b"%d" % number) == 0
    for number in range(3):
        part = await (await cluster.leader_client("t", number)).fetch("t", number, 0)
        assert (part.high_watermark, part.last_stable_offset, bytes(part.records or b"")) == (0, 0, b"")
    assert await producer.end() == 0
    for number, values in enumerate(([b"a", b"b"], [b"1"], [b"2"])):
        await shows(cluster, "t", number, *values)
    await producer.transaction({("t", 0): b"never", ("t", 3): b"never"}, commit=False)
    await producer.transaction({("t", 0): b"c", ("t", 3): b"d"})
    await shows(cluster, "t", 0, b"a", b"b", b"c")
    await shows(cluster, "t", 3, b"d")
    assert producer.epoch == 0


@in_kafka_cluster("a:1")
async def test_java_gets_minus_one_for_no_offset(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    request = av.ApiVersionsRequest(client_software_name="apache-kafka-java", client_software_version="4.1.0")
    await producer.client("a:1").call(API_VERSIONS, 3, request)
    await producer.init()
    await producer.add(("t", 0))
    assert (await producer.send_once("t", 0, producer.batch("t", 0, b"a"))).base_offset == -1


@in_kafka_cluster("a:1")
async def test_a_batch_that_is_sent_again_is_staged_once_and_gaps_are_refused(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    await producer.init()
    await producer.add(("t", 0))
    batches = [producer.batch("t", 0, b"%d" % n, b"x", sequence=2 * n) for n in range(3)]
    unknown = await producer.send_once("t", 0, batches[2])
    assert unknown.error_code == Code.UNKNOWN_PRODUCER_ID
    assert (await producer.send_once("t", 0, batches[0])).error_code == 0
    other = KafkaProducer(cluster)  # the same producer over another connection
    other.id, other.epoch = producer.id, producer.epoch
    assert (await other.send_once("t", 0, batches[2])).error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    for batch in (batches[0], batches[1], batches[1], batches[0]):
        assert (await other.send_once("t", 0, batch)).error_code == 0
    assert await producer.end() == 0
    await shows(cluster, "t", 0, b"0", b"x", b"1", b"x")
    producer.sequences["t", 0] = 4
    await producer.add(("t", 0))
    late = await producer.send_once("t", 0, batches[1])  # a late double does not come into the next transaction
    assert late.error_code == Code.DUPLICATE_SEQUENCE_NUMBER
    assert await producer.send("t", 0, b"2") == 0
    assert await producer.end() == 0
    await shows(cluster, "t", 0, b"0", b"x", b"1", b"x", b"2")


@in_kafka_cluster("a:1")
async def test_what_was_not_added_or_is_not_open_is_an_invalid_state(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=2)
    producer = KafkaProducer(cluster)
    await producer.init()
    assert await producer.end() == Code.INVALID_TXN_STATE  # nothing has begun
    assert await producer.send("t", 0, b"a") == Code.INVALID_TXN_STATE
    assert await producer.add(("t", 0)) == 0
    assert await producer.send("t", 1, b"a") == Code.INVALID_TXN_STATE
    assert await producer.send_offsets("g", 1) == Code.INVALID_TXN_STATE
    assert await producer.send("t", 0, b"a") == 0
    assert await producer.end() == 0
    assert await producer.end() == 0  # its answer was lost
    assert await producer.end(commit=False) == Code.INVALID_TXN_STATE
    assert await producer.send("t", 0, b"b") == Code.INVALID_TXN_STATE
    await shows(cluster, "t", 0, b"a")
    assert await cluster.read_all("t", 1) == []


@in_kafka_cluster("a:1")
async def test_wrong_producers_and_times_get_their_codes(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    for timeout_ms in (0, -1, 10**9):
        assert (await producer.init(timeout_ms)).error_code == Code.INVALID_TRANSACTION_TIMEOUT
    producer.id, producer.epoch = 5, 0
    assert await producer.add(("t", 0)) == Code.INVALID_PRODUCER_ID_MAPPING  # no such transactional id
    await producer.init()
    known, producer.id = producer.id, 5
    assert await producer.add(("t", 0)) == Code.INVALID_PRODUCER_ID_MAPPING
    assert await producer.end() == Code.INVALID_PRODUCER_ID_MAPPING
    producer.id = known
    request = producer.adding(("t", 0), ("nowhere", 3))
    answer = await (await producer.coordinator()).call(ADD_PARTITIONS_TO_TXN, 3, request)
    codes = [
        one.partition_error_code for topic in answer.results_by_topic_v3_and_below for one in topic.results_by_partition
    ]
    assert codes == [Code.OPERATION_NOT_ATTEMPTED, Code.UNKNOWN_TOPIC_OR_PARTITION]
    nameless = i.InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1000)
    assert (await producer.client("a:1").call(INIT_PRODUCER_ID, 4, nameless)).error_code == Code.INVALID_REQUEST


@in_kafka_cluster("a:1", "b:1")
async def test_a_transactional_id_may_have_any_characters(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster, "my app/1: ü")
    await producer.init()
    await producer.transaction({("t", 0): b"a"})
    await shows(cluster, "t", 0, b"a")


# Two producers with one id


@in_kafka_cluster("a:1", "b:1")
async def test_a_second_producer_fences_the_first(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=2)
    first, second = KafkaProducer(cluster), KafkaProducer(cluster)
    await first.init()
    await first.add(("t", 0))
    assert await first.send("t", 0, b"never") == 0
    await second.init()
    assert (second.id, second.epoch) == (first.id, 1)
    for version, code in ((1, Code.INVALID_PRODUCER_EPOCH), (2, Code.PRODUCER_FENCED)):
        assert await first.add(("t", 1), version=version) == code
        assert await first.end(version=version) == code
    assert (await first.init(version=3, producer_id=first.id, epoch=0)).error_code == Code.INVALID_PRODUCER_EPOCH
    assert (await first.init(producer_id=first.id, epoch=0)).error_code == Code.PRODUCER_FENCED
    assert await first.send("t", 1, b"never") == Code.INVALID_PRODUCER_EPOCH
    assert await first.add_group("g") == Code.PRODUCER_FENCED
    await second.transaction({("t", 0): b"a"})
    await shows(cluster, "t", 0, b"a")


@in_kafka_cluster("a:1")
async def test_a_producer_names_its_epoch_and_a_repeated_call_gets_the_same(cluster: KafkaCluster) -> None:
    """Otherwise a lost answer would fence the producer itself."""
    producer = KafkaProducer(cluster)
    await producer.init()
    before = producer.id, producer.epoch
    for _ in range(3):
        await producer.init(producer_id=before[0], epoch=before[1])
        assert (producer.id, producer.epoch) == (before[0], 1)
    await producer.init(producer_id=before[0], epoch=1)
    assert producer.epoch == 2
    assert (await producer.init(producer_id=before[0], epoch=0)).error_code == Code.PRODUCER_FENCED
    await producer.init()
    assert producer.epoch == 3


# Time-outs


@in_kafka_cluster("a:1", "b:1")
async def test_a_time_out_fences_what_comes_after_it(cluster: KafkaCluster) -> None:
    """Otherwise the rest of a transaction would be committed without its first half."""
    await cluster.create("t", partitions=2)
    producer = KafkaProducer(cluster)
    await producer.init(5000)
    await producer.add(("t", 0), ("t", 1))
    assert await producer.send("t", 0, b"never") == 0
    await asyncio.sleep(8.0)
    assert await producer.send("t", 1, b"never") == Code.INVALID_PRODUCER_EPOCH
    assert await producer.add(("t", 1)) == Code.PRODUCER_FENCED
    assert await producer.end() == Code.PRODUCER_FENCED
    await producer.init()
    assert producer.epoch == 2
    await producer.transaction({("t", 0): b"a", ("t", 1): b"b"})
    await shows(cluster, "t", 0, b"a")
    await shows(cluster, "t", 1, b"b")


@in_kafka_cluster("a:1")
async def test_a_transaction_without_records_times_out_too(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    await producer.init(5000)
    await producer.add(("t", 0))
    await asyncio.sleep(4.0)
    assert await producer.send("t", 0, b"a") == 0
    await asyncio.sleep(3.0)
    assert await producer.end() == Code.PRODUCER_FENCED


# Offsets


@in_kafka_cluster("a:1", "b:1")
async def test_offsets_are_committed_with_the_records(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await cluster.create("out", partitions=2)
    producer = KafkaProducer(cluster)
    await producer.init()
    assert await producer.add(("out", 0)) == 0
    assert await producer.add_group("g") == 0
    assert await producer.send("out", 0, b"a") == 0
    assert await producer.send_offsets("g", 7) == 0
    assert await producer.send_offsets("g", 9) == 0
    assert not (await committed(cluster, "g")).HasField("offset")
    assert (await committed(cluster, "g", stable=True)).error.code == "UNAVAILABLE"
    assert await producer.end() == 0
    await shows(cluster, "out", 0, b"a")
    await until_committed(cluster, "g", 9)
    assert await producer.add_group("g") == 0
    assert await producer.send_offsets("g", 20) == 0
    assert await producer.end(commit=False) == 0
    assert await producer.add_group("g") == 0
    assert await producer.send_offsets("g", 3) == 0  # it may go back, as in Kafka
    assert await producer.end() == 0
    await until_committed(cluster, "g", 3)


async def until_committed(cluster: KafkaCluster, group: str, offset: int) -> None:
    async with asyncio.timeout(60):
        while (await committed(cluster, group, stable=True)).offset != offset:
            await asyncio.sleep(0.05)


@in_kafka_cluster("a:1")
async def test_offsets_of_a_former_generation_are_refused(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    member = KafkaMember(cluster, "g")
    await member.enter()
    producer = KafkaProducer(cluster)
    await producer.init()
    assert await producer.add_group("g") == 0
    present = {"member_id": member.id, "generation_id": member.generation}
    assert await producer.send_offsets("g", 1, member_id=member.id, generation_id=5) == Code.ILLEGAL_GENERATION
    assert await producer.send_offsets("g", 1, member_id="nobody", generation_id=1) == Code.UNKNOWN_MEMBER_ID
    assert await producer.send_offsets("g", 1, "nowhere", **present) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert await producer.send_offsets("g", 4, **present) == 0
    assert await producer.send_offsets("g", 5, version=0) == 0  # clients of old versions name no member
    assert await producer.end() == 0
    await until_committed(cluster, "g", 5)


@in_kafka_cluster("a:1")
async def test_a_group_that_was_added_and_has_no_offsets_holds_nothing_up(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    await producer.init()
    assert await producer.add_group("g") == 0
    assert await producer.end() == 0
    await producer.transaction({("t", 0): b"a"})
    await shows(cluster, "t", 0, b"a")


# Many transactions, takeovers, moves


@in_kafka_cluster("a:1", "b:1")
async def test_transactions_follow_each_other_in_one_partition(cluster: KafkaCluster) -> None:
    """An abort is complete before the next transaction begins: its number is never taken for the next one."""
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    await producer.init()
    kept = []
    for n in range(60):
        commit = n % 3 != 1
        await producer.transaction({("t", 0): b"%d" % n}, commit=commit)
        kept += [b"%d" % n] if commit else []
    await shows(cluster, "t", 0, *kept)


@pytest.mark.parametrize("which", ["coordinator", "leader", "group"])
@in_kafka_cluster("a:1", "b:1", "c:1")
async def test_a_broker_dies_within_a_transaction(cluster: KafkaCluster, which: str) -> None:
    await cluster.create("t", partitions=4)
    producer = KafkaProducer(cluster)
    await producer.init()
    await producer.transaction({("t", n): b"first" for n in range(4)})
    await producer.add(*(("t", n) for n in range(4)))
    await producer.add_group("g")
    for n in range(3):
        assert await producer.send("t", n, b"second") == 0
    assert await producer.send_offsets("g", 5) == 0
    victim = (await producer.coordinator()).address
    if which != "coordinator":
        victim = await cluster.owner_of("t", 0)
    await cluster.stop(victim, graceful=False)
    assert await producer.send("t", 3, b"second") == 0
    assert await producer.send("t", 0, b"third") == 0
    assert await producer.end() == 0
    for n in range(4):
        await shows(cluster, "t", n, *[b"first", b"second", b"third"][: 3 if n == 0 else 2])
    await until_committed(cluster, "g", 5)
    await producer.transaction({("t", n): b"last" for n in range(4)}, commit=False)
    await producer.transaction({("t", 1): b"end"})
    await shows(cluster, "t", 1, b"first", b"second", b"end")


@in_kafka_cluster("a:1", "b:1")
async def test_a_reader_sees_no_delay_beside_an_open_transaction(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    producer = KafkaProducer(cluster)
    await producer.init()
    await producer.add(("t", 0))
    assert await producer.send("t", 0, b"open") == 0
    client = await cluster.leader_client("t", 0)
    loop = asyncio.get_running_loop()
    for n in range(5):
        await cluster.produce("t", 0, b"%d" % n)
        begun_s = loop.time()
        part = await client.fetch("t", 0, n, max_wait_ms=10_000)
        assert part.records, n
        assert loop.time() - begun_s < 0.5
        await asyncio.sleep(5.0)
    assert await producer.end() == 0
    await shows(cluster, "t", 0, b"0", b"1", b"2", b"3", b"4", b"open")


@in_kafka_cluster("a:1")
async def test_a_topic_that_is_deleted_within_a_transaction_does_not_hold_it_up(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await cluster.create("gone", partitions=1)
    producer = KafkaProducer(cluster)
    await producer.init()
    await producer.add(("t", 0), ("gone", 0))
    for topic in ("t", "gone"):
        assert await producer.send(topic, 0, b"a") == 0
    await ask(cluster, lambda line: line.delete_topic(pb.DeleteTopicRequest(name="gone", now=True)))
    assert await producer.send("gone", 0, b"b") == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert await producer.end() == 0
    await shows(cluster, "t", 0, b"a")
    await producer.transaction({("t", 0): b"b"})


@in_kafka_cluster("a:1", "b:1")
async def test_an_old_broker_beside_keeps_ids_from_beginning(cluster: KafkaCluster) -> None:
    """It would refuse the records of such a transaction, and all others of the bundle with them."""
    producer = KafkaProducer(cluster)
    address = (await producer.coordinator()).address
    other = next(each for each in cluster.brokers if each != address)
    older = cluster.brokers[other].membership
    features = tuple(each for each in older.me.features if each != KAFKA_TRANSACTIONS)
    older.me = replace(older.me, features=features, release="0.0.9")
    await until(lambda: bool(cluster.brokers[address].membership.lacking(KAFKA_TRANSACTIONS)))
    request = i.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)
    answer = await cluster.connect(address).call(INIT_PRODUCER_ID, 4, request)
    assert answer.error_code == Code.COORDINATOR_LOAD_IN_PROGRESS
    await cluster.stop(other)
    assert (await producer.init()).error_code == 0
