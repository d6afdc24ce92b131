"""Rules count for transactions of Kafka clients: of transactional ids, of topics that are written, of groups."""

from __future__ import annotations

import asyncio

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import describe_transactions_request as d
from ledgermq_broker.kafka.wire.generated import find_coordinator_request as fc
from ledgermq_broker.kafka.wire.generated import init_producer_id_request as i
from ledgermq_broker.kafka.wire.generated import list_transactions_request as li
from ledgermq_broker.kafka.wire.generated import produce_request as pp
from ledgermq_broker.kafka.wire.generated import txn_offset_commit_request as tc
from ledgermq_broker.kafka.wire.messages import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from tests.broker.access import RULES, change
from tests.broker.kafka_producer import KafkaProducer, SecondProducer
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster
from tests.broker.test_kafka_identity import proven, topic

OWN = ("produce mine", "consume mine", "transaction x", "group g")


@in_kafka_cluster("a:1", **RULES)
async def test_a_producer_needs_its_id_its_topics_and_its_groups(cluster: KafkaCluster) -> None:
    for name in ("mine", "theirs"):
        await topic(cluster, name)
    await change(cluster, grant=[f"allow user:ann {rule}" for rule in OWN])
    client = await proven(cluster, "ann")
    producer = KafkaProducer(cluster, "x", client)
    request = fc.FindCoordinatorRequest(key_type=1, coordinator_keys=["x", "y"])
    found = (await client.call(FIND_COORDINATOR, 4, request)).coordinators
    denied = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert [one.error_code for one in found if one.key == "y"] == [denied]
    foreign = i.InitProducerIdRequest(transactional_id="y", transaction_timeout_ms=1000)
    assert (await client.call(INIT_PRODUCER_ID, 4, foreign)).error_code == denied
    assert (await producer.init()).error_code == 0

    request = producer.adding(("mine", 0), ("theirs", 0))
    answer = await client.call(ADD_PARTITIONS_TO_TXN, 3, request)
    codes = {one.name: one.results_by_partition[0].partition_error_code for one in answer.results_by_topic_v3_and_below}
    assert codes == {"mine": Code.OPERATION_NOT_ATTEMPTED, "theirs": Code.TOPIC_AUTHORIZATION_FAILED}
    assert await producer.add(("mine", 0)) == 0
    assert await producer.send("mine", 0, b"a") == 0
    assert await producer.send("theirs", 0, b"a") == Code.TOPIC_AUTHORIZATION_FAILED
    assert await producer.add_group("h") == Code.GROUP_AUTHORIZATION_FAILED
    assert await producer.add_group("g") == 0
    for group, name, code in (
        ("h", "mine", Code.GROUP_AUTHORIZATION_FAILED),
        ("g", "theirs", Code.GROUP_AUTHORIZATION_FAILED),
        ("g", "mine", Code.NONE),
    ):
        offsets = [tc.TxnOffsetCommitRequestTopic(name, [tc.TxnOffsetCommitRequestPartition(committed_offset=1)])]
        staging = tc.TxnOffsetCommitRequest("x", group, producer.id, producer.epoch, topics=offsets)
        staged = await client.call(TXN_OFFSET_COMMIT, 3, staging)
        assert staged.topics[0].partitions[0].error_code == code, (group, name)
    producer.transactional_id = "y"  # with the identity of its own id
    assert (await client.call(END_TXN, 3, producer.ending(committed=True))).error_code == denied
    adding = await client.call(ADD_PARTITIONS_TO_TXN, 3, producer.adding(("mine", 0)))
    assert adding.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == denied
    producer.transactional_id = "x"
    assert await producer.end() == 0


@in_kafka_cluster("a:1", **RULES)
async def test_another_principal_cannot_use_what_it_has_overheard(cluster: KafkaCluster) -> None:
    """Producer ids are numbers that any client can say: the rule of the transactional id is what counts."""
    await topic(cluster, "mine")
    await change(cluster, grant=[f"allow user:ann {rule}" for rule in OWN])
    await change(cluster, grant=["allow user:mallory produce mine", "allow user:mallory transaction y"])
    ann = KafkaProducer(cluster, "x", await proven(cluster, "ann"))
    mallory = KafkaProducer(cluster, "y", await proven(cluster, "mallory"))
    await ann.init()
    await mallory.init()
    await ann.add(("mine", 0))
    mallory.id, mallory.epoch = ann.id, ann.epoch
    assert await mallory.add(("mine", 0)) == Code.INVALID_PRODUCER_ID_MAPPING
    assert await mallory.send("mine", 0, b"never") == Code.INVALID_PRODUCER_ID_MAPPING
    mallory.transactional_id = "x"
    assert (await mallory.send_once("mine", 0, mallory.batch("mine", 0, b"never"))).error_code in (
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
    assert await ann.send("mine", 0, b"a") == 0
    assert await ann.end() == 0
    broker = cluster.brokers["a:1"].service
    asked = pb.ListOffsetsRequest(queries=[pb.OffsetQuery(topic="mine", latest=True)])
    for _ in range(100):
        [end] = (await broker.list_offsets(asked)).results
        if end.offset:
            break
        await asyncio.sleep(0.05)
    assert end.offset == 1


@in_kafka_cluster("a:1", **RULES)
async def test_tools_see_the_ids_and_topics_that_their_caller_may_see(cluster: KafkaCluster) -> None:
    for name in ("mine", "theirs"):
        await topic(cluster, name)
    await change(cluster, grant=[f"allow user:ann {rule}" for rule in (*OWN, "produce theirs")])
    await change(cluster, grant=[f"allow user:bob {rule}" for rule in ("describe mine", "transaction x")])
    ann = KafkaProducer(cluster, "x", await proven(cluster, "ann"))
    await ann.init()
    assert await ann.add(("mine", 0), ("theirs", 0)) == 0
    for name, ids, topics in (("ann", ["x"], ["mine", "theirs"]), ("bob", ["x"], ["mine"]), ("eve", [], None)):
        client = await proven(cluster, name)
        found = await client.call(LIST_TRANSACTIONS, 1, li.ListTransactionsRequest())
        assert [one.transactional_id for one in found.transaction_states] == ids
        [one] = (await client.call(DESCRIBE_TRANSACTIONS, 0, d.DescribeTransactionsRequest(["x"]))).transaction_states
        if topics is None:
            assert one.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        else:
            assert (one.error_code, [each.topic for each in one.topics]) == (0, topics)


@in_kafka_cluster("a:1", **RULES)
async def test_what_is_added_by_being_sent_needs_the_same_rights(cluster: KafkaCluster) -> None:
    for name in ("mine", "theirs"):
        await topic(cluster, name)
    await change(cluster, grant=[f"allow user:ann {rule}" for rule in OWN])
    client = await proven(cluster, "ann")
    producer, foreign = SecondProducer(cluster, "x", client), SecondProducer(cluster, "y", client)
    assert (await producer.init()).error_code == 0
    foreign.id, foreign.epoch = producer.id, producer.epoch
    assert await producer.send("theirs", 0, b"a") == Code.TOPIC_AUTHORIZATION_FAILED
    assert await foreign.send("mine", 0, b"a") == Code.TOPIC_AUTHORIZATION_FAILED
    assert await producer.send_offsets("h", 1, "mine") == Code.GROUP_AUTHORIZATION_FAILED
    assert await foreign.send_offsets("g", 1, "mine") == Code.GROUP_AUTHORIZATION_FAILED
    ended = await client.call(END_TXN, 5, foreign.ending(True))
    assert ended.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await producer.end() == Code.INVALID_TXN_STATE, "nothing was added"
    both = [pp.PartitionProduceData(index=0, records=producer.batch("mine", 0, b"a"))]
    topics = [pp.TopicProduceData(name, partition_data=both) for name in ("mine", "theirs")]
    request = pp.ProduceRequest(transactional_id="x", acks=-1, timeout_ms=30_000, topic_data=topics)
    answer = await client.call(PRODUCE, 12, request)
    codes = [one.partition_responses[0].error_code for one in answer.responses]
    assert codes == [Code.NONE, Code.TOPIC_AUTHORIZATION_FAILED]
    described = await cluster.brokers["a:1"].service.describe_transaction(
        pb.DescribeTransactionRequest(transactional_id="x")
    )
    assert [place.topic for place in described.added] == ["mine"]
    assert await producer.end() == 0
    assert await producer.send("mine", 0, b"a") == 0
    assert await producer.send_offsets("g", 1, "mine") == 0
    assert await producer.end() == 0
    assert producer.epoch == 2
