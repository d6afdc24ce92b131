"""Answers of the service about topics: made, described, grown, removed and made again."""

from __future__ import annotations

import asyncio
import gc

import pytest

from ledgermq.errors import InvalidConfig, InvalidRequest, InvalidTopicName, TopicExists, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq_ledger import keys
from tests.broker.cluster import Cluster, batch_header, encoded, fetch_of, frame_of, in_cluster
from tests.waiting import until


@in_cluster("a:1", "b:1", "c:1")
async def test_any_broker_creates_topics_and_knows_them_at_once(cluster: Cluster) -> None:
    for i, address in enumerate(cluster.brokers):
        info = (await cluster.line(address).create_topic(pb.CreateTopicRequest(name=f"t{i}", partitions=3))).topic
        assert len(info.partitions) == 3
        assert {part.bundle for part in info.partitions} <= {1, 2}
        for other in cluster.brokers:
            [found] = (await cluster.line(other).describe_topics(pb.DescribeTopicsRequest(topics=[f"t{i}"]))).topics
            assert (found.topic_id, found.name) == (info.topic_id, f"t{i}")
            assert not found.HasField("error")
            with pytest.raises(TopicExists):
                await cluster.line(other).create_topic(pb.CreateTopicRequest(name=f"t{i}"))
    listed = (await cluster.line("b:1").describe_topics(pb.DescribeTopicsRequest())).topics
    assert [info.name for info in listed] == ["t0", "t1", "t2"]


@in_cluster("a:1", "b:1", "c:1")
async def test_every_broker_gives_a_fresh_description_from_the_controller(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    for i, address in enumerate(cluster.brokers):
        await cluster.line(address).alter_topic(pb.AlterTopicRequest(name="t", set={"retention.ms": str(1000 + i)}))
        for other in cluster.brokers:
            [found] = (
                await cluster.line(other).describe_topics(pb.DescribeTopicsRequest(topics=["t"], fresh=True))
            ).topics
            assert found.settings["retention.ms"] == str(1000 + i)


@in_cluster("a:1")
async def test_a_change_whose_caller_has_gone_fails_in_silence(cluster: Cluster) -> None:
    await cluster.create("t", 1)
    [broker] = cluster.brokers.values()
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with broker.controller._lock:
        caller = asyncio.create_task(cluster.line("a:1").create_topic(pb.CreateTopicRequest(name="t")))
        await until(lambda: bool(broker.controller._changes))
        caller.cancel()
        await asyncio.wait([caller])
    await until(lambda: not broker.controller._changes)
    del caller
    gc.collect()  # a task whose error was never retrieved logs it when it is collected
    assert told == []


@in_cluster("a:1", "b:1")
async def test_names_that_look_like_numbers_or_dates_round_trip(cluster: Cluster) -> None:
    for name in ("123", "2024-01-01", "1e5", "true", "x" * 249):
        await cluster.create(name, 1)
        await cluster.produce(name, 0, name.encode())
        assert await cluster.read_all(name, 0) == [name.encode()]


@in_cluster("a:1", "b:1")
async def test_bad_topic_requests_get_typed_errors_from_any_broker(cluster: Cluster) -> None:
    for address in cluster.brokers:
        line = cluster.line(address)
        for name in ("", "..", "a/b", "x" * 300, "é", "__x"):
            with pytest.raises(InvalidTopicName):
                await line.create_topic(pb.CreateTopicRequest(name=name))
        with pytest.raises(InvalidConfig, match=r"did you mean 'retention\.ms'"):
            await line.create_topic(pb.CreateTopicRequest(name="ok", settings={"retention.m": "1"}))
        with pytest.raises(UnknownTopic):
            await line.delete_topic(pb.DeleteTopicRequest(name="none"))
        [info] = (await line.describe_topics(pb.DescribeTopicsRequest(topics=["none"], auto_create=True))).topics
        assert info.error.code == "UNKNOWN_TOPIC"


@in_cluster("a:1", auto_create_topics=True, default_partitions=6)
async def test_topics_are_created_on_first_use_where_that_is_allowed(cluster: Cluster) -> None:
    line = cluster.line("a:1")
    [info] = (await line.describe_topics(pb.DescribeTopicsRequest(topics=["new"]))).topics
    assert info.error.code == "UNKNOWN_TOPIC"
    [info] = (await line.describe_topics(pb.DescribeTopicsRequest(topics=["new"], auto_create=True))).topics
    assert len(info.partitions) == 6
    [info] = (await line.describe_topics(pb.DescribeTopicsRequest(topics=["../x"], auto_create=True))).topics
    assert info.error.code == "INVALID_TOPIC_NAME"


@in_cluster("a:1", "b:1")
async def test_partitions_grow_and_settings_take_effect(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    line = cluster.line("b:1")
    altered = await line.alter_topic(pb.AlterTopicRequest(name="t", partitions=5, set={"accept.publish": "false"}))
    assert len(altered.topic.partitions) == 5
    await until(lambda: all(b.metadata.catalog.topics_by_name["t"].partitions == 5 for b in cluster.brokers.values()))
    result = (await line.produce_once(frame_of("t", 4, b"x"))).results[0]
    assert result.error.code == "PUBLISH_NOT_ACCEPTED"
    await line.alter_topic(pb.AlterTopicRequest(name="t", unset=["accept.publish"], set={"accept.subscribe": "false"}))
    await until(
        lambda: all(b.metadata.catalog.topics_by_name["t"].settings.accept_publish for b in cluster.brokers.values())
    )
    await cluster.produce("t", 4, b"x")
    frame = await cluster.line(await cluster.owner_of("t", 4)).fetch_once(fetch_of("t", 4))
    assert frame.header.partitions[0].error.code == "SUBSCRIBE_NOT_ACCEPTED"
    with pytest.raises(InvalidRequest, match="only grow"):
        await line.alter_topic(pb.AlterTopicRequest(name="t", partitions=3))


@in_cluster("a:1", "b:1")
async def test_a_topic_that_is_deleted_and_made_again_never_shows_old_data(cluster: Cluster) -> None:
    old = await cluster.create("t", 2)
    await cluster.produce("t", 0, b"old")
    await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name="t"))
    owner = await cluster.owner_of("t", 0) if cluster.serving("t", 0) else "a:1"
    result = (await cluster.line(owner).produce_once(frame_of("t", 0, b"x"))).results[0]
    assert result.error.code in ("TOPIC_BEING_DELETED", "UNKNOWN_TOPIC")
    await until(lambda: all("t" not in b.metadata.catalog.topics_by_name for b in cluster.brokers.values()), 120)
    new = await cluster.create("t", 2)
    assert new.topic_id > old.topic_id
    assert await cluster.read_all("t", 0) == []
    stale = batch_header("t", 0, encoded([b"x"]), 1)
    stale.topic_id = old.topic_id
    result = (
        await cluster.line(await cluster.owner_of("t", 0)).produce_once(
            Frame(pb.ProduceHeader(batches=[stale]), [encoded([b"x"])])
        )
    ).results[0]
    assert result.error.code == "UNKNOWN_TOPIC"
    await cluster.produce("t", 0, b"new")
    assert await cluster.read_all("t", 0) == [b"new"]


@in_cluster("a:1")
async def test_names_become_free_beside_a_topic_that_cannot_leave_a_damaged_bundle(cluster: Cluster) -> None:
    for name in ("before", "inside", "behind"):
        await cluster.create(name, 1)
    catalog = cluster.brokers["a:1"].metadata.catalog
    assert [catalog.topics_by_name[name].bundles for name in ("before", "inside", "behind")] == [(1,), (2,), (1,)]
    await cluster.store.put_if_absent(keys.checkpoint(2, 99), [b"no checkpoint"])
    for name in ("inside", "before", "behind"):
        await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name=name))
    await until(lambda: set(catalog.topics_by_name) == {keys.METADATA_TOPIC, "inside"}, 120)
