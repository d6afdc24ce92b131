"""Tools of the Kafka protocol list and describe transactions; in virtual time, byte by byte."""

from __future__ import annotations

import asyncio
from typing import Any

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import describe_transactions_request as d
from ledgermq_broker.kafka.wire.generated import list_transactions_request as li
from ledgermq_broker.kafka.wire.messages import DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS
from ledgermq_broker.transactions.stored.check import check_transactions
from ledgermq_broker.transactions.stored.view import read_transactions
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.open_root import cluster_of
from tests.broker.kafka_members import KafkaMember
from tests.broker.kafka_producer import KafkaProducer
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster
from tests.virtual_time import virtual_sources
from tests.waiting import until


async def described(producer: KafkaProducer, name: str = "") -> Any:
    request = d.DescribeTransactionsRequest([name or producer.transactional_id])
    answer = await (await producer.coordinator()).call(DESCRIBE_TRANSACTIONS, 0, request)
    [found] = answer.transaction_states
    return found


async def listed(cluster: KafkaCluster, **filters: Any) -> dict[str, str]:
    """Return id -> state, of all brokers."""
    found: dict[str, str] = {}
    for address in cluster.brokers:
        answer = await cluster.connect(address).call(LIST_TRANSACTIONS, 1, li.ListTransactionsRequest(**filters))
        assert answer.error_code == 0
        for one in answer.transaction_states:
            assert one.transactional_id not in found, "two brokers say that they coordinate it"
            found[one.transactional_id] = one.transaction_state
    return found


@in_kafka_cluster("a:1", "b:1")
async def test_a_transaction_is_described_from_its_beginning_to_its_end(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=3)
    producer = KafkaProducer(cluster, "any text")
    assert (await described(producer, "never seen")).error_code in (
        Code.TRANSACTIONAL_ID_NOT_FOUND,
        Code.NOT_COORDINATOR,
    )
    await producer.init(45_000)
    found = await described(producer)
    assert (found.error_code, found.transactional_id, found.transaction_state) == (0, "any text", "Empty")
    assert (found.transaction_timeout_ms, found.producer_epoch, found.topics) == (45_000, 0, [])
    assert found.transaction_start_time_ms == -1
    await producer.add(("t", 0), ("t", 2))
    await producer.send("t", 2, b"a")
    found = await described(producer)
    assert found.transaction_state == "Ongoing"
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("t", [0, 2])]
    assert found.transaction_start_time_ms > 0
    assert found.producer_id >= 0
    assert found.producer_id != producer.id  # the id itself is a secret of the producer
    assert await producer.end() == 0

    async def is_complete() -> bool:
        return (await described(producer)).transaction_state == "CompleteCommit"

    await until(is_complete)
    assert (await described(producer)).topics == []


@in_kafka_cluster("a:1", "b:1")
async def test_ids_are_listed_by_their_coordinators_and_filtered(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    assert await listed(cluster) == {}  # no transaction yet in the cluster
    producers = {name: KafkaProducer(cluster, name) for name in ("open", "committed", "aborted", "new one")}
    for name, producer in producers.items():
        await producer.init()
        if name != "new one":
            await producer.add(("t", 0))
            await producer.send("t", 0, b"a")
    assert await producers["committed"].end() == 0
    assert await producers["aborted"].end(commit=False) == 0
    wanted = {"open": "Ongoing", "committed": "CompleteCommit", "aborted": "CompleteAbort", "new one": "Empty"}

    async def is_listed() -> bool:
        return await listed(cluster) == wanted

    await until(is_listed)
    assert await listed(cluster, state_filters=["Ongoing", "Empty"]) == {"open": "Ongoing", "new one": "Empty"}
    number = (await described(producers["open"])).producer_id
    assert await listed(cluster, producer_id_filters=[number]) == {"open": "Ongoing"}
    assert await listed(cluster, duration_filter=600_000) == {}
    await asyncio.sleep(30)
    assert (await listed(cluster, duration_filter=20_000))["open"] == "Ongoing"
    request = li.ListTransactionsRequest(state_filters=["Ongoing", "Strange"])
    answer = await cluster.connect("a:1").call(LIST_TRANSACTIONS, 1, request)
    assert answer.unknown_state_filters == ["Strange"]


@in_kafka_cluster("a:1", "b:1")
async def test_the_store_alone_shows_offsets_staged_beside_classic_members(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    member = KafkaMember(cluster, "g")
    await member.enter()  # whose record is in the same partition
    producer = KafkaProducer(cluster)
    await producer.init()
    assert await producer.add_group("g") == 0
    assert await producer.send_offsets("g", 7, member_id=member.id, generation_id=member.generation) == 0
    problems = Problems()
    stored = await cluster_of(cluster.store)
    sources = virtual_sources(9)
    found = await read_transactions(cluster.store, stored, sources, problems.collecting)
    check_transactions(found, problems, sources.now_ms())
    assert problems.all == []
    [pending] = [pending for one in found for pending in one.offsets]
    assert pending.groups == ("g",)
