"""Tools of the Kafka protocol show, set and remove the offsets of share groups; in virtual time, byte by byte."""

from __future__ import annotations

import asyncio
from typing import Any

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import alter_share_group_offsets_request as al
from ledgermq_broker.kafka.wire.generated import delete_share_group_offsets_request as de
from ledgermq_broker.kafka.wire.generated import describe_share_group_offsets_request as ds
from ledgermq_broker.kafka.wire.messages import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
)
from tests.broker.access import RULES, change
from tests.broker.kafka_sharers import Sharer, SharerLine
from tests.broker.kafka_world import KafkaCluster, batch_of, in_kafka_cluster
from tests.broker.test_kafka_identity import proven, topic

EARLIEST = {"kafka_share_auto_offset_reset": "earliest"}
BUNDLES = {"bundles": 4}
PARTITIONS = 4
Offsets = dict[tuple[str, int], int]


class Tool(Sharer):
    """Asks the coordinator of its group."""

    async def ask(self, *groups: tuple[str, dict[str, list[int]] | None]) -> list[Any]:
        asked = [
            ds.DescribeShareGroupOffsetsRequestGroup(
                group,
                None
                if topics is None
                else [ds.DescribeShareGroupOffsetsRequestTopic(name, numbers) for name, numbers in topics.items()],
            )
            for group, topics in groups
        ]
        answer = await self.call(DESCRIBE_SHARE_GROUP_OFFSETS, 0, ds.DescribeShareGroupOffsetsRequest(asked))
        return list(answer.groups)

    async def offsets(self, topics: dict[str, list[int]] | None = None) -> Offsets:
        [found] = await self.ask((self.group, topics))
        assert found.error_code == 0, found
        parts = [(each.topic_name, part) for each in found.topics for part in each.partitions]
        assert all(part.error_code == 0 for _, part in parts), found
        return {(name, part.partition_index): part.start_offset for name, part in parts}

    async def alter(self, name: str, wanted: dict[int, int]) -> dict[int, int]:
        """Return the codes of partitions; -1: that of the whole."""
        parts = [al.AlterShareGroupOffsetsRequestPartition(number, offset) for number, offset in wanted.items()]
        request = al.AlterShareGroupOffsetsRequest(self.group, [al.AlterShareGroupOffsetsRequestTopic(name, parts)])
        answer = await self.call(ALTER_SHARE_GROUP_OFFSETS, 0, request)
        if answer.error_code:
            return {-1: answer.error_code}
        return {part.partition_index: part.error_code for each in answer.responses for part in each.partitions}

    async def delete(self, *names: str) -> dict[str, int]:
        """Return the codes of topics; "": that of the whole."""
        request = de.DeleteShareGroupOffsetsRequest(
            self.group, [de.DeleteShareGroupOffsetsRequestTopic(name) for name in names]
        )
        answer = await self.call(DELETE_SHARE_GROUP_OFFSETS, 0, request)
        if answer.error_code:
            return {"": answer.error_code}
        return {each.topic_name: each.error_code for each in answer.responses}


async def written(cluster: KafkaCluster, count: int = 5) -> None:
    await cluster.create("t", partitions=PARTITIONS)
    for number in range(PARTITIONS):
        batch = batch_of(*(b"%d" % n for n in range(count)))
        assert (await (await cluster.leader_client("t", number)).produce("t", number, batch)).error_code == 0


async def worked(cluster: KafkaCluster, group: str = "g") -> Tool:
    """Return a tool for a group that has finished `number` messages of each partition, and has no members now."""
    member = await Sharer(cluster, group).enter()
    for number in range(PARTITIONS):
        line = await member.line(number)
        got = await line.fetch(number, records=10)
        await line.accept(*[one for one in got if one.partition == number and one.offset < number])
        await line.client.close()
    member.lines.clear()
    await member.beat(member_epoch=-1)
    return Tool(cluster, group)


@in_kafka_cluster("a:1", "b:1", "c:1", **EARLIEST, **BUNDLES)
async def test_offsets_of_all_owners_are_shown_by_the_coordinator_alone(cluster: KafkaCluster) -> None:
    await written(cluster)
    assert len({await cluster.owner_of("t", number) for number in range(PARTITIONS)}) > 1
    tool = await worked(cluster)
    expected = {("t", number): number for number in range(PARTITIONS)}
    assert await tool.offsets() == expected
    await cluster.create("untouched")
    assert await tool.offsets({"t": [3, 9], "untouched": [0], "none": [2], "__shares": [1]}) == {
        ("t", 3): 3,
        ("t", 9): -1,
        ("untouched", 0): -1,
        ("none", 2): -1,
        ("__shares", 1): -1,
    }
    assert (await tool.shown()).group_state == "Empty"
    assert tool.client is not None
    for address in cluster.brokers:
        request = ds.DescribeShareGroupOffsetsRequest([ds.DescribeShareGroupOffsetsRequestGroup("g", None)])
        [found] = (await cluster.connect(address).call(DESCRIBE_SHARE_GROUP_OFFSETS, 0, request)).groups
        assert found.error_code == (0 if address == tool.client.address else Code.NOT_COORDINATOR)


@in_kafka_cluster("a:1", "b:1", **EARLIEST, **BUNDLES)
async def test_a_group_that_is_not_there_and_one_that_is_named_twice(cluster: KafkaCluster) -> None:
    await written(cluster)
    tool = Tool(cluster)
    await tool.call(DESCRIBE_SHARE_GROUP_OFFSETS, 0, ds.DescribeShareGroupOffsetsRequest([]))
    assert [one.error_code for one in await tool.ask(("g", None))] == [Code.GROUP_ID_NOT_FOUND]
    assert (await tool.shown()).error_code == Code.GROUP_ID_NOT_FOUND
    assert await tool.alter("t", {0: 1}) == {-1: Code.GROUP_ID_NOT_FOUND}
    assert await tool.delete("t") == {"": Code.GROUP_ID_NOT_FOUND}
    tool = await worked(cluster)
    found = await tool.ask(("g", None), ("g", None))
    assert [one.error_code for one in found] == [Code.INVALID_REQUEST] * 2


@in_kafka_cluster("a:1", "b:1", **EARLIEST, **BUNDLES)
async def test_an_empty_group_begins_where_a_tool_says(cluster: KafkaCluster) -> None:
    await written(cluster)
    tool = await worked(cluster)
    wanted = {0: 2, 1: 5, 2: 0, 3: 6, 9: 1}
    codes = {0: 0, 1: 0, 2: 0, 3: Code.OFFSET_OUT_OF_RANGE, 9: Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert await tool.alter("t", wanted) == codes
    assert await tool.offsets() == {("t", 0): 2, ("t", 1): 5, ("t", 2): 0, ("t", 3): 3}
    assert await tool.alter("t", {0: -1}) == {0: Code.INVALID_REQUEST}
    assert await tool.alter("none", {0: 1}) == {0: Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert await tool.alter("__shares", {0: 1}) == {0: Code.UNKNOWN_TOPIC_OR_PARTITION}
    member = await Sharer(cluster).enter()
    line = await member.line(0)
    assert [one.offset for one in await line.fetch(0) if one.partition == 0] == [2, 3, 4]
    assert await tool.alter("t", {0: 0}) == {-1: Code.NON_EMPTY_GROUP}
    assert await tool.delete("t") == {"": Code.NON_EMPTY_GROUP}
    assert (await tool.offsets())["t", 0] == 2


@in_kafka_cluster("a:1", "b:1", **EARLIEST, **BUNDLES)
async def test_an_empty_group_forgets_a_topic(cluster: KafkaCluster) -> None:
    await written(cluster)
    await cluster.create("other")
    tool = await worked(cluster)
    assert await tool.alter("other", {0: 0}) == {0: 0}
    assert await tool.delete("t", "none", "__shares") == {
        "t": 0,
        "none": Code.UNKNOWN_TOPIC_OR_PARTITION,
        "__shares": Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert await tool.offsets() == {("other", 0): 0}
    assert await tool.delete("t") == {"t": 0}, "what is not there is deleted, too"
    assert await tool.delete("other") == {"other": 0}
    assert [one.error_code for one in await tool.ask(("g", None))] == [Code.GROUP_ID_NOT_FOUND]


@in_kafka_cluster("a:1", "b:1", **EARLIEST, **BUNDLES)
async def test_offsets_stay_right_when_an_owner_dies_and_a_partition_moves(cluster: KafkaCluster) -> None:
    await written(cluster)
    tool = await worked(cluster)
    moved = cluster.brokers["a:1"].metadata.catalog.topics_by_name["t"].bundles[3] % 3 + 1
    request = pb.MovePartitionRequest(topic="t", partition=3, bundle=moved)
    await cluster.line("a:1").move_partition(request)
    await cluster.stop("b:1", graceful=False)
    expected = {("t", number): number for number in range(PARTITIONS)}
    tool.client = None
    async with asyncio.timeout(120):
        while True:
            [found] = await tool.ask(("g", None))
            parts = {("t", part.partition_index): part.start_offset for one in found.topics for part in one.partitions}
            if found.error_code == 0 and parts == expected:
                break
            assert found.error_code in (0, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR), found
            await asyncio.sleep(0.2)
    while (codes := await tool.alter("t", dict.fromkeys(range(PARTITIONS), 1))) != dict.fromkeys(range(PARTITIONS), 0):
        assert set(codes.values()) <= {0, Code.NOT_LEADER_OR_FOLLOWER, Code.COORDINATOR_LOAD_IN_PROGRESS}, codes
        await asyncio.sleep(0.2)
    assert await tool.offsets() == {("t", number): 1 for number in range(PARTITIONS)}


@in_kafka_cluster("a:1", **RULES, **EARLIEST, **BUNDLES)
async def test_tools_need_the_group_and_the_topics(cluster: KafkaCluster) -> None:
    await topic(cluster, "t")
    await topic(cluster, "u")
    tool = Tool(cluster)

    async def described(topics: dict[str, list[int]] | None = None) -> tuple[int, Offsets, set[int]]:
        tool.client = await proven(cluster, "ann")
        [found] = await tool.ask(("g", topics))
        parts = [(each.topic_name, part) for each in found.topics for part in each.partitions]
        offsets = {(name, part.partition_index): part.start_offset for name, part in parts}
        return found.error_code, offsets, {part.error_code for _, part in parts}

    denied = Code.TOPIC_AUTHORIZATION_FAILED
    assert (await described())[0] == Code.GROUP_AUTHORIZATION_FAILED
    assert await tool.alter("t", {0: 0}) == {-1: Code.GROUP_AUTHORIZATION_FAILED}
    assert await tool.delete("t") == {"": Code.GROUP_AUTHORIZATION_FAILED}
    await change(cluster, grant=["allow user:ann group g", "allow user:ann consume t"])
    assert (await described())[0] == Code.GROUP_ID_NOT_FOUND
    member = Sharer(cluster)
    member.client = await proven(cluster, "ann")
    await member.beat()
    assert (await SharerLine(member, await proven(cluster, "ann")).ask(0)).error_code == 0
    await member.beat(member_epoch=-1)
    assert await described() == (0, {("t", 0): 0}, {0})
    assert await described({"u": [0]}) == (0, {("u", 0): -1}, {denied})
    assert await tool.alter("t", {0: 0}) == {0: 0}
    assert await tool.alter("u", {0: 0}) == {0: denied}
    await change(cluster, grant=["allow user:ann describe u"])
    tool.client = await proven(cluster, "ann")
    assert await tool.alter("u", {0: 0}) == {0: denied}, "who may not read a topic sets no offset of it"
    assert await tool.delete("u", "t") == {"u": 0, "t": 0}, "there is none of u"
