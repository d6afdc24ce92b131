"""The topics of transactions: who creates them, when, and what clients may do with them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ledgermq.errors import (
    InvalidConfig,
    InvalidRequest,
    InvalidTopicName,
    LedgerMQError,
    NotOwner,
    Unavailable,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.broker import Broker
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from tests.broker.cluster import Cluster, fetch_of, frame_of, in_cluster
from tests.waiting import until
from tests.worlds.ledgers import batch

NAMES = (keys.STAGED_TOPIC, keys.TRANSACTIONS_TOPIC)


def controller_of(cluster: Cluster) -> Broker:
    return next(broker for broker in cluster.brokers.values() if 0 in broker.ownership.terms.opened)


async def wish(cluster: Cluster, name: str = keys.TRANSACTIONS_TOPIC) -> pb.CreateTopicResponse:
    request = pb.CreateTopicRequest(name=name, forwarded=True)
    return await cluster.line(controller_of(cluster).address).create_topic(request)


async def seen_by_all(cluster: Cluster) -> None:
    await until(
        lambda: all(name in b.metadata.catalog.topics_by_name for b in cluster.brokers.values() for name in NAMES)
    )


@in_cluster("a:1", "b:1", bundles=6)
async def test_both_are_created_by_one_wish_with_a_partition_in_each_user_bundle(cluster: Cluster) -> None:
    await cluster.create("t", 7)
    answer = await wish(cluster)
    assert answer.topic.name == keys.TRANSACTIONS_TOPIC
    again = await asyncio.gather(*(wish(cluster, name) for name in NAMES * 3))
    assert {found.topic.topic_id for found in again if found.topic.name == answer.topic.name} == {answer.topic.topic_id}
    await seen_by_all(cluster)
    for broker in cluster.brokers.values():
        staged, transactions = (broker.metadata.catalog.living(name) for name in NAMES)
        assert staged.bundles == transactions.bundles == (1, 2, 3, 4, 5)
        assert (staged.staged, transactions.staged) == (True, False)
        assert transactions.settings.transaction_coordinators == 5
        assert staged.id < transactions.id, "what holds bytes is there before anything can refer to it"
    listed = await cluster.line("a:1").describe_topics(pb.DescribeTopicsRequest())
    assert [topic.name for topic in listed.topics] == ["t"]


@in_cluster("a:1", "b:1")
async def test_a_broker_of_a_release_without_transactions_keeps_them_from_being_created(cluster: Cluster) -> None:
    controller = controller_of(cluster)
    older = next(broker for broker in cluster.brokers.values() if broker is not controller)
    name = older.broker_id
    for release, said in (("", "a release that does not announce its number"), ("0.0.9", r"0\.0\.9")):
        older.membership.me = replace(older.membership.me, features=(), release=release)
        await until(lambda release=release: controller.membership.present()[name].release == release, 10)  # type: ignore[misc]
        with pytest.raises(Unavailable, match=f"broker {name} at {older.address} runs {said} without them") as refused:
            await wish(cluster)
        assert refused.value.retry_after_ms
        assert not any(topic in controller.metadata.catalog.topics_by_name for topic in NAMES)
    await cluster.stop(older.address)
    await until(lambda: name not in controller.membership.present(), 30)
    await wish(cluster)
    await seen_by_all(cluster)


@in_cluster("a:1", "b:1")
async def test_a_controller_that_dies_between_the_two_leaves_the_rest_to_the_next(cluster: Cluster) -> None:
    old = controller_of(cluster)
    append, names = old.controller._append, []

    async def dies_after_the_first(owner: object, key: bytes, value: bytes | None) -> None:
        if names:
            cluster.views[old.address].pause()
        names.append(key)
        await append(owner, key, value)  # type: ignore[arg-type]

    old.controller._append = dies_after_the_first  # type: ignore[method-assign, assignment]
    waiting = asyncio.create_task(wish(cluster))
    await until(lambda: len(names) == 2)
    await cluster.stop(old.address, graceful=False)
    with pytest.raises((LedgerMQError, asyncio.CancelledError)):
        await waiting
    await until(lambda: any(0 in broker.ownership.terms.opened for broker in cluster.brokers.values()), 30)
    found = controller_of(cluster).metadata
    await found.catch_up()
    assert [name in found.catalog.topics_by_name for name in NAMES] == [True, False]
    before = found.catalog.living(keys.STAGED_TOPIC)
    await wish(cluster)
    await seen_by_all(cluster)
    assert found.catalog.living(keys.STAGED_TOPIC) == before


@in_cluster("a:1", "b:1")
async def test_a_broker_that_is_not_the_controller_names_it(cluster: Cluster) -> None:
    other = next(broker for broker in cluster.brokers.values() if broker is not controller_of(cluster))
    with pytest.raises(NotOwner) as refused:
        await cluster.line(other.address).create_topic(
            pb.CreateTopicRequest(name=keys.TRANSACTIONS_TOPIC, forwarded=True)
        )
    assert refused.value.owner == controller_of(cluster).address


@in_cluster("a:1")
async def test_users_neither_create_nor_alter_nor_delete_nor_read_them(cluster: Cluster) -> None:
    await wish(cluster)
    await seen_by_all(cluster)
    line = cluster.line("a:1")
    for name in NAMES:
        with pytest.raises(InvalidTopicName):
            await line.create_topic(pb.CreateTopicRequest(name=name))
        with pytest.raises(InvalidTopicName):
            await line.alter_topic(pb.AlterTopicRequest(name=name, set={"retention.ms": "1"}))
        with pytest.raises(InvalidTopicName):
            await line.delete_topic(pb.DeleteTopicRequest(name=name))
        answer = await line.delete_records(
            pb.DeleteRecordsRequest(topic=name, partitions=[pb.RecordsToDelete(partition=0, end=True)])
        )
        assert isinstance(error_from_proto(answer.results[0].error), InvalidRequest)
    for setting in ("internal.kind", "transaction.coordinators"):
        with pytest.raises(InvalidConfig, match="set by the system only"):
            await line.create_topic(pb.CreateTopicRequest(name="t", settings={setting: "1"}))


@in_cluster("a:1")
async def test_no_client_reads_what_is_staged(cluster: Cluster) -> None:
    """Nor learns its offsets: until its transaction ends, a record has none."""
    await wish(cluster)
    await seen_by_all(cluster)
    line = cluster.line("a:1")
    once = await line.fetch_once(fetch_of(keys.STAGED_TOPIC, 0))
    streamed = [frame async for frame in line.fetch(fetch_of(keys.STAGED_TOPIC, 0))]
    for frame in (once, *streamed):
        assert [part.error.code for part in frame.header.partitions] == ["SUBSCRIBE_NOT_ACCEPTED"]
        assert keys.STAGED_TOPIC in frame.header.partitions[0].error.message
    assert len(streamed) == 1, "the stream ends with its last partition"
    for query in (pb.OffsetQuery(latest=True), pb.OffsetQuery(durable=True), pb.OffsetQuery(timestamp_us=0)):
        query.topic = keys.STAGED_TOPIC
        [result] = (await line.list_offsets(pb.ListOffsetsRequest(queries=[query]))).results
        assert result.error.code == "SUBSCRIBE_NOT_ACCEPTED"
    for name in (keys.METADATA_TOPIC, keys.TRANSACTIONS_TOPIC):
        found = await line.fetch_once(fetch_of(name, 0))
        assert not found.header.partitions[0].HasField("error"), "brokers read it over the wire"


@in_cluster("a:1")
async def test_producers_are_refused_while_open_transactions_hold_too_many_segments(cluster: Cluster) -> None:
    """Also those without transactions: their records are in the same bundle."""
    await wish(cluster)
    await seen_by_all(cluster)
    broker, topic = cluster.brokers["a:1"], await cluster.create("t", 2)
    broker.context.take_limits(replace(broker.context.limits, parked_slots_max=10))
    bundle = topic.partitions[0].bundle
    owner, staged = broker.ownership.terms.opened[bundle], broker.metadata.catalog.living(keys.STAGED_TOPIC)
    await asyncio.gather(*owner.produce([batch(b"s", topic_id=staged.id, partition=bundle - 1)], durable=True))
    for _ in range(10):
        await cluster.produce("t", 0, b"x")
    [result] = (await cluster.line("a:1").produce_once(frame_of("t", 0, b"y"))).results
    assert result.error.code == "RESOURCE_EXHAUSTED"
    assert "open transactions" in result.error.message
    assert await cluster.produce("t", 1, b"x") == (0, 0), "another bundle"
    await owner.move_internal_log_starts({PartitionId(staged.id, bundle - 1): 1})
    assert await cluster.produce("t", 0, b"y") == (10, 0)
