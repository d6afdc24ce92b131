"""Change settings while brokers run: those of a broker with `apply`, those of a topic through the
cluster (F79).
"""

from __future__ import annotations

import asyncio

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.settings.brokers import BrokerSettings
from tests.broker.cluster import Cluster, fetch_of, frame_of, in_cluster


def changed(cluster: Cluster, **settings: object) -> BrokerSettings:
    return cluster.settings.model_copy(update=settings)


@in_cluster("a:1", flush_spacing_ms=0)
async def test_a_live_setting_counts_at_once(cluster: Cluster) -> None:
    broker, line = cluster.brokers["a:1"], cluster.line("a:1")
    await cluster.create("t", 2)
    asked = pb.DescribeTopicsRequest(topics=["new"], auto_create=True)
    assert (await line.describe_topics(asked)).topics[0].error.code == "UNKNOWN_TOPIC"
    broker.apply(
        changed(
            cluster,
            auto_create_topics=True,
            default_partitions=7,
            fetch_wait_ms_max=100,
            produce_memory_bytes_max=2**20,
        )
    )
    assert len((await line.describe_topics(asked)).topics[0].partitions) == 7
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await line.fetch_once(fetch_of("t", 0, max_wait_ms=60_000))
    assert loop.time() - begun < 1, "the longest long poll is shorter now"
    first, second = await asyncio.gather(
        line.produce_once(frame_of("t", 0, bytes(700_000))), line.produce_once(frame_of("t", 0, bytes(700_000)))
    )
    assert [first.results[0].error.code, second.results[0].error.code] == ["", "RESOURCE_EXHAUSTED"]


@in_cluster("a:1", flush_spacing_ms=0)
async def test_a_queue_that_waits_for_long_refuses(cluster: Cluster) -> None:
    """While the store stands still, producers are told to come back instead of waiting until they time out."""
    await cluster.create("t", 1)
    line = cluster.line("a:1")
    cluster.brokers["a:1"].apply(changed(cluster, produce_wait_ms_max=500))
    cluster.views["a:1"].pause()
    waiting = []
    for number in range(8):
        waiting.append(asyncio.ensure_future(line.produce_once(frame_of("t", 0, b"%d" % number))))
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.6)
    [refused] = (await line.produce_once(frame_of("t", 0, b"refused"))).results
    assert refused.error.code == "RESOURCE_EXHAUSTED"
    assert refused.error.retry_after_ms > 0
    assert "more than produce_wait_ms_max=500" in refused.error.message
    cluster.brokers["a:1"].apply(changed(cluster, produce_wait_ms_max=None))
    waiting.append(asyncio.ensure_future(line.produce_once(frame_of("t", 0, b"8"))))
    await asyncio.sleep(0.1)
    cluster.views["a:1"].resume()
    for answer in await asyncio.gather(*waiting):
        assert not answer.results[0].HasField("error")
    assert await cluster.read_all("t", 0) == [b"%d" % number for number in range(9)]


@in_cluster("a:1")
async def test_a_smaller_cache_lets_go_at_once(cluster: Cluster) -> None:
    await cluster.create("t", 2)
    for i in range(10):
        await cluster.produce("t", 0, bytes(100_000) + b"%d" % i)
    cache = cluster.brokers["a:1"].ownership.terms.context.tail_cache
    assert cache.size_bytes > 1_000_000
    cluster.brokers["a:1"].apply(changed(cluster, cache_bytes_max=300_000))
    assert 0 < cache.size_bytes <= 300_000
    assert len(await cluster.read_all("t", 0)) == 10


@in_cluster("a:1", "b:1")
async def test_a_topic_setting_counts_in_every_broker_without_a_restart(cluster: Cluster) -> None:
    """As many brokers as there are, and any of them owns a partition: the owner of a partition
    refuses and accepts as the topic says.
    """
    await cluster.create("t", 4)
    line = cluster.line("b:1")
    for accept in ("false", "true"):
        await line.alter_topic(
            pb.AlterTopicRequest(name="t", set={"accept.publish": accept, "max.message.bytes": "1000"})
        )
        await asyncio.sleep(5)
        for partition in range(4):
            owner = cluster.line(await cluster.owner_of("t", partition))
            small = (await owner.produce_once(frame_of("t", partition, b"x"))).results[0]
            large = (await owner.produce_once(frame_of("t", partition, bytes(2000)))).results[0]
            expected = ["", "MESSAGE_TOO_LARGE"] if accept == "true" else ["PUBLISH_NOT_ACCEPTED"] * 2
            assert [small.error.code, large.error.code] == expected
    await line.alter_topic(pb.AlterTopicRequest(name="t", unset=["max.message.bytes"]))
    await asyncio.sleep(5)
    owner = cluster.line(await cluster.owner_of("t", 0))
    assert not (await owner.produce_once(frame_of("t", 0, bytes(2000)))).results[0].HasField("error")
