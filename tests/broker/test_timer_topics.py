"""The topics of timed messages: who creates them, when, and what clients may do with them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ledgermq.errors import InvalidRequest, InvalidTopicName, LedgerMQError, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.timed.timers import TIMED
from ledgermq_broker.transactions.transactions import TRANSACTIONS
from ledgermq_ledger import keys
from tests.broker.cluster import Cluster, fetch_of, frame_of, in_cluster
from tests.broker.test_transaction_topics import controller_of, wish
from tests.waiting import until

NAMES = (keys.DELAYED_TOPIC, keys.DELAYED_FAR_TOPIC, keys.TIMERS_TOPIC)


async def seen_by_all(cluster: Cluster) -> None:
    await until(
        lambda: all(name in b.metadata.catalog.topics_by_name for b in cluster.brokers.values() for name in NAMES)
    )


@in_cluster("a:1", "b:1", bundles=4)
async def test_all_three_are_created_by_one_wish_with_partitions_in_each_user_bundle(cluster: Cluster) -> None:
    answer = await wish(cluster, keys.TIMERS_TOPIC)
    assert answer.topic.name == keys.TIMERS_TOPIC
    again = await asyncio.gather(*(wish(cluster, name) for name in NAMES * 2))
    assert {found.topic.topic_id for found in again if found.topic.name == answer.topic.name} == {answer.topic.topic_id}
    await seen_by_all(cluster)
    for broker in cluster.brokers.values():
        near, far, timers = (broker.metadata.catalog.living(name) for name in NAMES)
        assert timers.bundles == (1, 2, 3)
        assert near.bundles == (1,) * 17 + (2,) * 17 + (3,) * 17
        assert far.bundles == (1,) * 128 + (2,) * 128 + (3,) * 128
        assert (timers.compacted, near.staged, far.hidden) == (True, True, True)
        assert near.id < far.id < timers.id, "what holds bytes is there before anything can refer to it"
        assert keys.TRANSACTIONS_TOPIC not in broker.metadata.catalog.topics_by_name
    listed = await cluster.line("a:1").describe_topics(pb.DescribeTopicsRequest())
    assert not listed.topics


@in_cluster("a:1", "b:1")
async def test_a_broker_of_a_release_without_timed_messages_keeps_them_from_being_created(cluster: Cluster) -> None:
    controller = controller_of(cluster)
    older = next(broker for broker in cluster.brokers.values() if broker is not controller)
    name = older.broker_id
    older.membership.me = replace(older.membership.me, features=(TRANSACTIONS.announced,), release="0.1.9")
    await until(lambda: controller.membership.present()[name].release == "0.1.9", 10)
    with pytest.raises(
        Unavailable, match=rf"{TIMED.announced} need every broker, but broker {name} .* runs 0\.1\.9"
    ) as refused:
        await wish(cluster, keys.TIMERS_TOPIC)
    assert refused.value.retry_after_ms
    assert not any(topic in controller.metadata.catalog.topics_by_name for topic in NAMES)
    await wish(cluster, keys.TRANSACTIONS_TOPIC)
    await cluster.stop(older.address)
    await until(lambda: name not in controller.membership.present(), 30)
    await wish(cluster, keys.TIMERS_TOPIC)
    await seen_by_all(cluster)


@in_cluster("a:1", "b:1")
async def test_a_controller_that_dies_between_them_leaves_the_rest_to_the_next(cluster: Cluster) -> None:
    old = controller_of(cluster)
    append, appended = old.controller._append, []

    async def dies_before_the_third(owner: object, key: bytes, value: bytes | None) -> None:
        if len(appended) == 2:
            cluster.views[old.address].pause()
        appended.append(key)
        await append(owner, key, value)  # type: ignore[arg-type]

    old.controller._append = dies_before_the_third  # type: ignore[method-assign, assignment]
    waiting = asyncio.create_task(wish(cluster, keys.TIMERS_TOPIC))
    await until(lambda: len(appended) == 3)
    await cluster.stop(old.address, graceful=False)
    with pytest.raises((LedgerMQError, asyncio.CancelledError)):
        await waiting
    await until(lambda: any(0 in broker.ownership.terms.opened for broker in cluster.brokers.values()), 30)
    found = controller_of(cluster).metadata
    await found.catch_up()
    assert [name in found.catalog.topics_by_name for name in NAMES] == [True, True, False]
    before = [found.catalog.living(name) for name in NAMES[:2]]
    await wish(cluster, keys.DELAYED_FAR_TOPIC)
    await seen_by_all(cluster)
    assert [found.catalog.living(name) for name in NAMES[:2]] == before


@in_cluster("a:1")
async def test_no_client_creates_alters_deletes_writes_or_reads_them(cluster: Cluster) -> None:
    await wish(cluster, keys.TIMERS_TOPIC)
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
        [result] = (await line.produce_once(frame_of(name, 0, b"x"))).results
        assert result.error.code == "PUBLISH_NOT_ACCEPTED"
    for name in NAMES[:2]:
        once = await line.fetch_once(fetch_of(name, 0))
        streamed = [frame async for frame in line.fetch(fetch_of(name, 0))]
        for frame in (once, *streamed):
            assert [part.error.code for part in frame.header.partitions] == ["SUBSCRIBE_NOT_ACCEPTED"]
            assert f"'{name}' belongs to the system" in frame.header.partitions[0].error.message
            assert "not due yet" in frame.header.partitions[0].error.message
        for query in (pb.OffsetQuery(latest=True), pb.OffsetQuery(durable=True), pb.OffsetQuery(timestamp_us=0)):
            query.topic = name
            [result] = (await line.list_offsets(pb.ListOffsetsRequest(queries=[query]))).results
            assert result.error.code == "SUBSCRIBE_NOT_ACCEPTED"
