"""Members with `group.protocol=consumer` (KIP-848), in virtual time and byte by byte."""

from __future__ import annotations

import asyncio

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import offset_fetch_request as of
from ledgermq_broker.kafka.wire.messages import (
    OFFSET_FETCH,
)
from tests.broker.groups import committed_offset
from tests.broker.kafka_consumers import KafkaConsumer, settle
from tests.broker.kafka_members import KafkaMember
from tests.broker.kafka_world import KafkaCluster, in_kafka_cluster

SESSION_S = 45.0


# Members


@in_kafka_cluster("a:1")
async def test_two_members_share_and_one_leaves(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=4)
    first, second = KafkaConsumer(cluster, "g"), KafkaConsumer(cluster, "g")
    await first.enter()
    assert first.numbers == [0, 1, 2, 3], "the answer to the first heartbeat has the assignment"
    await second.enter()
    assert second.numbers == [], "nothing is given before it was let go"
    assert second.interval_ms <= 1000, "it asks again soon"
    assert await first.beat() == 0
    assert len(first.numbers) == 2
    assert await second.beat() == 0
    assert second.numbers == [], "told, but not let go yet"
    assert await first.beat() == 0
    assert await second.beat() == 0
    assert sorted(first.numbers + second.numbers) == [0, 1, 2, 3]
    news = first.news
    await settle(first, second)
    assert first.news == news, "without a change no answer has an assignment"
    assert await second.leave() == 0
    await settle(first)
    assert first.numbers == [0, 1, 2, 3]
    second.generation = 7
    assert await second.beat() == Code.UNKNOWN_MEMBER_ID


@in_kafka_cluster("a:1")
async def test_a_member_that_falls_silent_is_put_out_and_one_that_keeps_its_partitions_too(
    cluster: KafkaCluster,
) -> None:
    await cluster.create("t", partitions=2)
    first, second = KafkaConsumer(cluster, "g"), KafkaConsumer(cluster, "g")
    await first.enter()
    await second.enter()
    await settle(first, second)
    for _ in range(10):
        await asyncio.sleep(SESSION_S / 9)
        assert await first.beat() == 0
    await settle(first)
    assert first.numbers == [0, 1]
    assert await second.beat() == Code.UNKNOWN_MEMBER_ID
    second.generation, second.said = 0, False
    await second.enter()
    for _ in range(7):  # 35 s, beyond its 30 s for letting go
        await asyncio.sleep(5)
        assert await second.beat() == 0
        code = await first.beat(topic_partitions=None)
    assert code == Code.UNKNOWN_MEMBER_ID
    assert second.numbers == [0, 1]


@in_kafka_cluster("a:1")
async def test_what_a_member_does_not_name_is_not_taken_from_it(cluster: KafkaCluster) -> None:
    """It takes time to begin with what it was given, and says what it owns only when that has changed."""
    await cluster.create("t", partitions=2)
    member = KafkaConsumer(cluster, "g")
    await member.enter()
    epoch = member.generation
    for owned in (None, [], None):
        assert await member.beat(topic_partitions=owned) == 0
    assert member.numbers == [0, 1]
    assert member.generation == epoch, "an epoch of its own for each of them would fence its commits"
    assert await member.commit(("t", 0, 0), ("t", 1, 0)) == [0, 0]


@in_kafka_cluster("a:1")
async def test_a_lost_answer_is_given_again(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=2)
    first, second = KafkaConsumer(cluster, "g"), KafkaConsumer(cluster, "g")
    await first.enter()
    await second.enter()
    before = first.generation
    lost = await first.send(first.request())
    assert lost.assignment is not None
    assert lost.member_epoch > before
    again = await first.send(first.request(**first.states, topic_partitions=first.partitions()))
    assert again.assignment == lost.assignment, "by the epoch alone, and when it says everything"
    first.take(again)
    full = await first.send(first.request(**first.states, topic_partitions=first.partitions()))
    assert full.assignment == lost.assignment
    await settle(first, second)
    assert sorted(first.numbers + second.numbers) == [0, 1]


@in_kafka_cluster("a:1")
async def test_epochs_that_the_group_never_had_are_fenced_and_the_member_joins_again(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=2)
    member = KafkaConsumer(cluster, "g")
    await member.enter()
    assert await member.commit(("t", 0, 5)) == [0]
    epoch = member.generation
    for wrong in (epoch + 1, 2**31 - 1):
        assert await member.beat(member_epoch=wrong) == Code.FENCED_MEMBER_EPOCH
    other = KafkaConsumer(cluster, "g")
    await other.enter()
    await settle(member, other)
    assert member.generation > epoch
    assert await member.beat(member_epoch=epoch) == Code.FENCED_MEMBER_EPOCH, "it has named a later one"
    former = member.generation
    member.generation, member.said = 0, False
    await member.enter()
    assert member.generation > former
    [mine] = member.numbers
    member.generation, now = former, member.generation
    assert await member.commit(("t", mine, 9)) == [Code.STALE_MEMBER_EPOCH], "of before it began again"
    member.generation = now
    assert await member.commit(("t", mine, 9)) == [0]


@in_kafka_cluster("a:1")
async def test_a_subscription_changes_by_a_heartbeat(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    await cluster.create("u", partitions=2)
    member = KafkaConsumer(cluster, "g")
    await member.enter()
    assert len(member.owned) == 1
    of_t = set(member.owned)
    assert await member.beat(subscribed_topic_names=["u", "not there yet", "later"]) == 0
    await settle(member)
    assert len(member.owned) == 2
    assert not member.owned & of_t
    await cluster.create("later", partitions=1)
    await settle(member)
    assert len(member.owned) == 3
    assert await member.beat(subscribed_topic_names=[]) == 0
    await settle(member)
    assert member.owned == set()
    shown = (await member.shown()).members[0]
    assert (shown.subscribed_topic_names, shown.subscribed_topic_regex) == ([], None)


@in_kafka_cluster("a:1")
async def test_a_pattern_takes_in_topics_that_come_later_also_beside_names(cluster: KafkaCluster) -> None:
    for topic in ("orders-1", "others", "t"):
        await cluster.create(topic, partitions=1)
    member = KafkaConsumer(cluster, "g", None, subscribed_topic_regex="^orders-.*")
    await member.enter()
    assert len(member.owned) == 1
    await cluster.create("orders-2", partitions=2)
    await cluster.create("xorders-3", partitions=2)
    await settle(member)
    assert len(member.owned) == 3
    assert await member.beat(subscribed_topic_names=["t"]) == 0
    await settle(member)
    assert len(member.owned) == 4
    shown = (await member.shown()).members[0]
    assert (shown.subscribed_topic_names, shown.subscribed_topic_regex) == (["t"], "^orders-.*")
    assert await member.beat(subscribed_topic_regex="(orders") == Code.INVALID_REGULAR_EXPRESSION
    assert "RE2" in member.message
    assert await member.beat(subscribed_topic_regex="") == 0
    await settle(member)
    assert len(member.owned) == 1
    late = KafkaConsumer(cluster, "g", None, subscribed_topic_regex="(")
    assert await late.beat() == Code.INVALID_REGULAR_EXPRESSION


@in_kafka_cluster("a:1")
async def test_a_static_member_comes_back_to_its_partitions_and_no_twin_takes_them(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=2)
    first = KafkaConsumer(cluster, "g", instance_id="one")
    other = KafkaConsumer(cluster, "g", instance_id="two")
    await first.enter()
    await other.enter()
    await settle(first, other)
    owned = set(first.owned)
    twin = KafkaConsumer(cluster, "g", instance_id="one")
    assert await twin.beat() == Code.UNRELEASED_INSTANCE_ID
    before = (other.owned, other.news)
    assert await first.leave(-2) == 0
    assert await first.send(first.request(member_epoch=-2)) is not None
    again = KafkaConsumer(cluster, "g", instance_id="one")
    await again.enter()
    assert again.owned == owned
    await settle(again, other)
    assert (other.owned, other.news) == before, "no other member is affected"
    first.generation = again.generation
    assert await first.beat() == Code.FENCED_INSTANCE_ID
    assert await first.commit(("t", again.numbers[0], 0)) == [Code.FENCED_INSTANCE_ID]
    nobody = KafkaConsumer(cluster, "g", instance_id="three")
    nobody.generation = again.generation
    assert await nobody.beat() == Code.UNKNOWN_MEMBER_ID
    assert await again.leave() == 0, "for good"
    await settle(other)
    assert other.numbers == [0, 1]


@in_kafka_cluster("a:1", group_members_max=1)
async def test_what_a_first_heartbeat_has_to_say(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    member = KafkaConsumer(cluster, "g", server_assignor="range")
    topic_id = (await cluster.connect("a:1").metadata("t")).topics[0].topic_id
    member.owned = {(topic_id, 0)}
    for wrong in (
        {"group_id": ""},
        {"member_id": ""},
        {"member_epoch": -3},
        {"instance_id": ""},
        {"member_epoch": -2},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": member.partitions()},
        {"subscribed_topic_names": None},
    ):
        answer = await member.send(member.request(**wrong))
        assert answer.error_code == Code.INVALID_REQUEST, wrong
        assert answer.error_message
        assert answer.assignment is None
    assert await member.beat(server_assignor="by moonlight") == Code.UNSUPPORTED_ASSIGNOR
    assert "uniform" in member.message
    await member.enter()
    assert await KafkaConsumer(cluster, "g").beat() == Code.GROUP_MAX_SIZE_REACHED
    assert (await member.shown()).assignor_name == "range"
    named_by_us = KafkaConsumer(cluster, "old")
    named_by_us.id = ""
    assert await named_by_us.beat(0) == 0, "version 0, whose clients get their id"
    assert len(named_by_us.id) > 20
    assert await named_by_us.beat(0) == 0
    assert named_by_us.numbers == [0]


@in_kafka_cluster("a:1")
async def test_assignors_give_as_kafkas(cluster: KafkaCluster) -> None:
    for topic in ("t", "u"):
        await cluster.create(topic, partitions=3)
    members = [KafkaConsumer(cluster, "ranges", ("t", "u"), server_assignor="range") for _ in range(2)]
    for member in members:
        await member.enter()
    await settle(*members)
    assert sorted(member.numbers for member in members) == [[0, 0, 1, 1], [2, 2]], "topics are cut alike"
    members = [KafkaConsumer(cluster, "even", ("t", "u"), server_assignor="uniform") for _ in range(2)]
    for member in members:
        await member.enter()
    await settle(*members)
    assert [len(member.owned) for member in members] == [3, 3]


# Commits


@in_kafka_cluster("a:1")
async def test_a_member_commits_what_it_holds_and_nothing_else(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=2)
    await cluster.create("u", partitions=1)
    first, second = KafkaConsumer(cluster, "g"), KafkaConsumer(cluster, "g")
    await first.enter()
    assert await first.commit(("t", 0, 10), ("t", 1, 11)) == [0, 0], "also beyond the end"
    assert await first.commit(("t", 0, 4), ("u", 0, 3)) == [0, 0], "back, and of a topic that nobody reads here"
    await second.enter()
    assert await first.beat() == 0
    [kept], [moved] = first.numbers, [number for number in (0, 1) if number not in first.numbers]
    assert await first.commit(("t", moved, 20)) == [0], "it holds it until it has let it go"
    assert await second.commit(("t", moved, 21)) == [Code.STALE_MEMBER_EPOCH]
    await settle(first, second)
    assert await first.commit(("t", moved, 22), ("t", kept, 22)) == [Code.STALE_MEMBER_EPOCH, 0]
    assert await second.commit(("t", moved, 23)) == [0]
    assert await second.commit(("t", moved, 5), ("none", 0, 1), ("t", 9, 1)) == [
        0,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await committed_offset(cluster, "g", "t", moved) == 5
    assert await committed_offset(cluster, "g", "u", 0) == 3
    stranger = KafkaConsumer(cluster, "g")
    stranger.generation = second.generation
    assert await stranger.commit(("t", moved, 1)) == [Code.UNKNOWN_MEMBER_ID]
    simple = KafkaMember(cluster, "g")
    assert await simple.commit(("t", moved, 1)) == [Code.UNKNOWN_MEMBER_ID], "only members commit"
    second.generation += 1000
    assert await second.commit(("t", moved, 1)) == [Code.STALE_MEMBER_EPOCH]


@in_kafka_cluster("a:1")
async def test_a_member_reads_committed_offsets_under_its_epoch(cluster: KafkaCluster) -> None:
    await cluster.create("t", partitions=1)
    member = KafkaConsumer(cluster, "g")
    await member.enter()
    await settle(member)
    assert await member.commit(("t", 0, 7)) == [0]

    async def read(member_id: str | None, epoch: int) -> tuple[int, int]:
        topics = [of.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        group = of.OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=epoch, topics=topics)
        [found] = (await member.call(OFFSET_FETCH, 9, of.OffsetFetchRequest(groups=[group]))).groups
        return found.error_code, found.topics[0].partitions[0].committed_offset

    assert await read(member.id, member.generation) == (0, 7)
    assert await read(None, -1) == (0, 7), "a tool"
    assert await read("stranger", member.generation) == (Code.UNKNOWN_MEMBER_ID, -1)
    assert await read(member.id, member.generation + 1) == (Code.STALE_MEMBER_EPOCH, -1)
    former = member.generation
    other = KafkaConsumer(cluster, "g")
    await other.enter()
    await settle(member, other)
    assert await read(member.id, former) == (Code.STALE_MEMBER_EPOCH, -1)
