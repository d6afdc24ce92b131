"""The cluster as Kafka clients see it: brokers, leaders, epochs, topics; and whom the listener lets in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.cluster.directory import Directory
from ledgermq_broker.internal.bundle_calls import BundleCalls
from ledgermq_broker.kafka.brokers import NO_EPOCH, NO_LEADER, Brokers, Leader, host_and_port, leader_epoch
from ledgermq_broker.kafka.table import TABLE
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.frames import read_response, request_frame
from ledgermq_broker.kafka.wire.generated import api_versions_request as v
from ledgermq_broker.kafka.wire.messages import (
    API_VERSIONS,
    APIS,
    METADATA,
    read_whole,
    written,
)
from ledgermq_broker.kafka.wire.primitives import Reader
from tests.broker.access import RULES, change
from tests.broker.kafka_world import Ended, KafkaCluster, batch_of, in_kafka_cluster
from tests.waiting import until


@in_kafka_cluster("a:1", "b:1", "c:1")
async def test_any_broker_names_all_brokers_and_the_leaders(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=6)
    nodes = {address: cluster.brokers[address].membership.me.kafka_node for address in cluster.brokers}
    assert len(set(nodes.values())) == 3
    owners = [nodes[await cluster.owner_of("t", partition)] for partition in range(6)]
    for address in cluster.brokers:
        directory = cluster.brokers[address].directory
        await until(lambda directory=directory: len(directory.owners) == 3)
        answer = await cluster.connect(address).metadata("t")
        assert {(one.node_id, one.host, one.port) for one in answer.brokers} == {
            (node, f"{name[0]}.example", 9092) for name, node in nodes.items()
        }
        assert answer.controller_id == nodes[address]
        assert answer.cluster_id == cluster.brokers[address].cluster_id
        [topic] = answer.topics
        assert [part.leader_id for part in topic.partitions] == owners
        assert all(part.replica_nodes == part.isr_nodes == [part.leader_id] for part in topic.partitions)
        assert topic.topic_id not in (bytes(16), None)


@in_kafka_cluster("a:1", "b:1", "c:1")
async def test_an_epoch_names_one_leader_and_never_goes_back(cluster: KafkaCluster) -> None:
    """Brokers learn of a takeover at different times. A client that is shown two leaders of one epoch may stay at the
    wrong one for minutes (librdkafka).
    """
    partitions = 12
    await cluster.create("t", partitions=partitions)
    leaders: dict[tuple[int, int], int] = {}
    seen: dict[tuple[str, int], int] = {}

    async def look() -> None:
        for address, broker in list(cluster.brokers.items()):
            brokers = cluster.brokers_of(address)
            topic = broker.metadata.catalog.topics_by_name.get("t")
            if topic is None:
                continue
            for index, info in enumerate(broker.service.describe_topics.__self__._info(topic).partitions):  # type: ignore[attr-defined]
                leader = brokers.leader(info)
                if leader.node == NO_LEADER:
                    continue
                assert leaders.setdefault((index, leader.epoch), leader.node) == leader.node
                assert seen.get((address, index), -1) <= leader.epoch
                seen[address, index] = leader.epoch

    async def watch() -> None:
        while True:
            await look()
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    names = iter(("d:1", "e:1", "f:1", "g:1"))
    for graceful in (False, True, False, True):
        await cluster.stop(next(iter(cluster.brokers)), graceful=graceful)
        await asyncio.sleep(6)
        await cluster.start(next(names))
        await cluster.settled()
    address = await cluster.owner_of("t", 0)
    bundle = cluster.brokers[address].metadata.catalog.topics_by_name["t"].bundles[0]
    target = bundle % 2 + 1
    await cluster.line(address).move_partition(pb.MovePartitionRequest(topic="t", partition=0, bundle=target))
    await asyncio.sleep(10)
    assert not watching.done(), watching
    watching.cancel()
    assert len({epoch for index, epoch in leaders if index == 0}) >= 3
    assert max(epoch for index, epoch in leaders if index == 0) > 1 << 20, "a move counts more than any term"


def test_an_epoch_beyond_its_bounds_is_one_that_clients_take_after_any() -> None:
    assert leader_epoch(3, 5) == 3 * 2**20 + 5
    assert leader_epoch(2047, 2**20 - 1) == 2**31 - 1
    assert leader_epoch(2048, 0) == leader_epoch(0, 2**20) == NO_EPOCH


@pytest.mark.parametrize("address", ["x", ":1", "a:0", "a:70000", "a:b", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError):
        host_and_port(address)


def test_an_address_has_a_host_and_a_port() -> None:
    assert host_and_port("[::1]:9092") == ("::1", 9092)
    assert host_and_port("kafka.example:9092") == ("kafka.example", 9092)


@in_kafka_cluster("a:1", "b:1", kafka=("a:1",))
async def test_partitions_of_a_broker_without_the_port_have_no_leader(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=6)
    owners = [await cluster.owner_of("t", partition) for partition in range(6)]
    await until(lambda: len(cluster.brokers["a:1"].directory.owners) == 3)
    answer = await cluster.connect("a:1").metadata("t")
    assert set(owners) == {"a:1", "b:1"}
    for owner, part in zip(owners, answer.topics[0].partitions, strict=True):
        expected = (Code.NONE, False) if owner == "a:1" else (Code.LEADER_NOT_AVAILABLE, True)
        assert (part.error_code, part.leader_id == NO_LEADER) == expected
    assert cluster.brokers_of("a:1").unreachable() == ["b:1"]
    assert [broker.host for broker in cluster.brokers_of("b:1").present()] == ["a.example"]


def test_a_bundle_without_an_owner_has_no_leader() -> None:
    class Nothing:
        def present(self) -> dict[str, Any]:
            return {}

    brokers = Brokers(Nothing(), Directory(3), "00" * 16, lambda: 0, BundleCalls(Nothing))  # type: ignore[arg-type]
    assert brokers.leader(pb.PartitionInfo(bundle=1, moves=1)) == Leader(NO_LEADER, 1 << 20, False)


@in_kafka_cluster("a:1", auto_create_topics=True)
async def test_topics_are_listed_found_created_and_hidden(cluster: KafkaCluster) -> None:
    await cluster.create("one", partitions=1)
    client = cluster.connect("a:1")
    for version in range(14):
        listed = await client.metadata(version=version)
        assert [(topic.name, topic.error_code) for topic in listed.topics] == [("one", Code.NONE)]
    missing = (await client.metadata("two")).topics[0]
    assert (missing.error_code, missing.topic_id) == (Code.UNKNOWN_TOPIC_OR_PARTITION, bytes(16))
    assert (await client.metadata("two", create=True)).topics[0].error_code == 0
    assert (await client.metadata("__metadata")).topics[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    uuid = (await client.metadata("one")).topics[0].topic_id
    from ledgermq_broker.kafka.wire.generated import metadata_request as m

    asked = [m.MetadataRequestTopic(topic_id=uuid, name=None), m.MetadataRequestTopic(topic_id=b"x" * 16, name="")]
    by_id = await client.call(METADATA, 12, m.MetadataRequest(topics=asked))
    assert {topic.topic_id: topic.error_code for topic in by_id.topics} == {
        uuid: Code.NONE,
        b"x" * 16: Code.UNKNOWN_TOPIC_ID,
    }
    await cluster.line("a:1").delete_topic(pb.DeleteTopicRequest(name="one"))
    await until(lambda: not cluster.brokers["a:1"].metadata.catalog.topics_by_name.get("one"), 60)
    await cluster.create("one", partitions=1)
    assert (await client.metadata("one")).topics[0].topic_id != uuid


@in_kafka_cluster("a:1")
async def test_bytes_behind_a_message_are_ignored(cluster: KafkaCluster) -> None:
    """librdkafka 2 asks so for all topics."""
    await cluster.create("one", partitions=1)
    client = cluster.connect("a:1")
    waiting = client._waiting[0] = asyncio.get_running_loop().create_future()
    client.send_bytes(request_frame(METADATA, 12, 0, "rdkafka", [bytes.fromhex("00000000010000")]))
    answer: Any = read_whole(METADATA.response, read_response(METADATA, 12, await waiting)[1], 12)
    assert [topic.name for topic in answer.topics] == ["one"]


@in_kafka_cluster("a:1")
async def test_versions_are_announced_as_the_table_says(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    for version in range(5):
        answer = await client.call(API_VERSIONS, version, v.ApiVersionsRequest("x", "1"))
        found = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
        assert found == {
            one.api.key: (one.first if one.announced_from is None else one.announced_from, one.last) for one in TABLE
        }
    assert set(APIS) == {one.api for one in TABLE}, "each is served"
    assert all(one.api.reads(one.first) and one.api.reads(one.last) for one in TABLE)


@in_kafka_cluster("a:1")
async def test_a_newer_version_of_api_versions_is_answered_in_version_0(cluster: KafkaCluster) -> None:
    client = cluster.connect("a:1")
    waiting = client._waiting[0] = asyncio.get_running_loop().create_future()
    frame = bytearray(request_frame(API_VERSIONS, 4, 0, "x", written(v.ApiVersionsRequest(), 4)))
    frame[6:8] = (99).to_bytes(2, "big")
    client.send_bytes(bytes(frame))
    data = await waiting
    answer: Any = read_whole(API_VERSIONS.response, Reader(data[4:]), 0)
    assert answer.error_code == Code.UNSUPPORTED_VERSION
    assert len(answer.api_keys) == len(TABLE)
    assert not client.is_over


@in_kafka_cluster("a:1", **RULES)
async def test_a_connection_without_credentials_is_judged_as_a_call_without_them(cluster: KafkaCluster) -> None:
    await change(cluster, grant=["allow * produce,consume,describe *"])
    client = cluster.connect("a:1")
    assert (await client.call(API_VERSIONS, 3, v.ApiVersionsRequest())).api_keys
    with pytest.raises(Ended):
        await client.metadata()
    for attempt in (
        lambda c: c.produce("t", 0, batch_of(b"x")),
        lambda c: c.fetch("t", 0, 0),
        lambda c: c.producer_id(),
    ):
        with pytest.raises(Ended):
            await attempt(cluster.connect("a:1"))


@in_kafka_cluster("a:1", broker_id="named")
async def test_a_named_broker_keeps_its_number_over_a_restart(cluster: KafkaCluster) -> None:
    before = cluster.brokers["a:1"].membership.me.kafka_node
    assert 0 < before < 2**30
    await cluster.stop("a:1", graceful=False)
    await cluster.start("a:1")
    assert cluster.brokers["a:1"].membership.me.kafka_node == before
