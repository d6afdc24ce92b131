"""Administer groups through the SDK, on brokers in virtual time: reports, and resets while members
run.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import ledgermq
from ledgermq import Like, Shift, TopicPartition
from ledgermq.errors import CommitGoesBack, GroupNotEmpty, OffsetOutOfRange, UnknownGroup, UnknownTopic
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import committed, fill, take
from tests.e2e.test_client_takeover import client_of


@in_cluster("a:1", "b:1", "c:1")
async def test_groups_of_all_coordinators_are_listed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        assert await client.groups.list() == []
        await client.create_topic("t", 2)
        names = [f"g{number}" for number in range(20)]
        for name in names:
            async with client.consumer("t", group=name) as consumer:
                await consumer.wait_ready()
        async with client.consumer("t", group="g3", client_id="me") as consumer:
            await consumer.wait_ready()
            listed = {group.name: group for group in await client.groups.list()}
            assert sorted(listed) == sorted(names)
            assert (listed["g3"].state, listed["g3"].members) == ("stable", 1)
            assert (listed["g4"].state, listed["g4"].members) == ("empty", 0)
            described = await client.groups.describe("g3")
            [member] = described.members
            assert (member.client_id, member.topics, set(member.owned)) == (
                "me",
                ("t",),
                {TopicPartition("t", 0), TopicPartition("t", 1)},
            )
            assert described.coordinator in cluster.brokers


@in_cluster("a:1", "b:1")
async def test_lag_is_exact(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 20)
        async with client.consumer("t", group="g") as consumer:
            await take(consumer, 20)
            assert await consumer.fetch(timeout=0.1) == []
        assert {at.partition: lag for at, lag in (await client.groups.lag("g")).items()} == dict.fromkeys(
            (0, 1), ledgermq.Lag(0, 0.0)
        )
        await fill(client, "t", 3, partition=1)
        await asyncio.sleep(5)
        lags = await client.groups.lag("g")
        assert lags[TopicPartition("t", 0)] == ledgermq.Lag(0, 0.0)
        assert lags[TopicPartition("t", 1)].messages == 3
        assert 5.0 <= (lags[TopicPartition("t", 1)].seconds or 0.0) < 6.0


@in_cluster("a:1", "b:1")
async def test_members_go_on_from_where_a_reset_puts_them(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        values = await fill(client, "t", 10)
        async with client.consumer("t", group="g", commit_interval_ms=100) as consumer:
            assert await take(consumer, 10) == values
            assert await consumer.fetch(timeout=0.1) == []
            await consumer.commit()
            planned = await client.groups.plan_reset("g", Shift(-4))
            assert [(change.before, change.after) for change in planned] == [(10, 6)]
            assert await committed(cluster, "g", "t") == {0: 10}, "a plan changes nothing"
            assert await client.groups.reset("g", planned) == {}
            assert await take(consumer, 4) == values[6:]
            await client.groups.reset("g", await client.groups.plan_reset("g", "earliest", topics=["t"]))
            assert await take(consumer, 10) == values
            await client.groups.reset("g", await client.groups.plan_reset("g", 8, partitions=[TopicPartition("t", 0)]))
            assert await take(consumer, 2) == values[8:]


@in_cluster("a:1")
async def test_time_is_rewound_to_the_millisecond(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            for number in range(5):
                await producer.send("t", b"%d" % number)
                await asyncio.sleep(1)
        async with client.consumer("t", group="g") as consumer:
            messages = []
            while len(messages) < 5:
                messages += await consumer.fetch(timeout=5)
            third = messages[2].timestamp
            assert third is not None
            moments = {third: 2, third + timedelta(milliseconds=1): 3, third - timedelta(milliseconds=1): 2}
            moments |= {third - timedelta(days=1): 0, third + timedelta(days=1): 5}
            for moment, expected in moments.items():
                [change] = await client.groups.plan_reset("g", moment, topics=["t"])
                assert change.after == expected, moment


@in_cluster("a:1")
async def test_bad_resets_and_deletions_change_nothing(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 3)
        with pytest.raises(UnknownGroup):
            await client.groups.describe("nobody")
        with pytest.raises(UnknownGroup):
            await client.groups.delete("nobody")
        with pytest.raises(UnknownGroup):
            await client.groups.plan_reset("nobody", "earliest")
        with pytest.raises(UnknownGroup):
            await client.groups.plan_reset("g", Like("nobody"))
        with pytest.raises(UnknownTopic):
            await client.groups.plan_reset("g", "earliest", topics=["none"])
        with pytest.raises(OffsetOutOfRange):
            await client.groups.plan_reset("g", 4, topics=["t"])
        async with client.consumer("t", group="g") as consumer:
            await take(consumer, 3)
            assert await consumer.fetch(timeout=0.1) == []
            with pytest.raises(GroupNotEmpty):
                await client.groups.delete("g")
        assert await committed(cluster, "g", "t") == {0: 3}
        await client.groups.reset("h", await client.groups.plan_reset("h", Like("g")))
        assert await committed(cluster, "h", "t") == {0: 3}
        await client.groups.delete("g")
        assert await client.groups.list() == [(await client.groups.describe("h")).summary]


@in_cluster("a:1", "b:1")
async def test_rewind_with_equal_and_with_unordered_timestamps_begins_at_the_first_that_is_late_enough(
    cluster: Cluster,
) -> None:
    """In batches of one record and in one batch; before the first time the first record, behind the
    last the end.
    """
    begin = datetime(2025, 11, 30, tzinfo=UTC)
    seconds = [0, 0, 3, 1, 1, 5, 2, 5]
    expected = {-1: 0, 0: 0, 1: 2, 2: 2, 3: 2, 4: 5, 5: 5, 6: 8}
    async with client_of(cluster) as client:
        for topic, linger_ms in (("apart", 0), ("together", 1000)):
            await client.create_topic(topic, 1)
            async with client.producer(linger_ms=linger_ms) as producer:
                for second in seconds:
                    sent = producer.send(topic, b"x", timestamp=begin + timedelta(seconds=second))
                    if not linger_ms:
                        await sent
                await producer.flush()
            for second, offset in expected.items():
                [change] = await client.groups.plan_reset("g", begin + timedelta(seconds=second), topics=[topic])
                assert change.after == offset, (topic, second)
            [change] = await client.groups.plan_reset("g", begin + timedelta(seconds=3, milliseconds=1), topics=[topic])
            assert change.after == 5
            assert (
                await client.groups.reset(
                    "g", await client.groups.plan_reset("g", begin + timedelta(seconds=4), topics=[topic])
                )
                == {}
            )
            async with client.consumer(topic, group="g") as consumer:
                assert len(await take(consumer, 3)) == 3


@in_cluster("a:1", "b:1")
async def test_a_job_outside_of_any_membership_shows_how_far_it_is(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        topic = (await client.create_topic("t", 2)).topic_id
        await fill(client, "t", 20)
        first, second = TopicPartition("t", 0), TopicPartition("t", 1)
        assert await client.groups.commit("job", {first: (topic, 4), second: (topic, 0)}) == {}
        assert await client.groups.commit("job", {first: (topic, 7), second: (topic, 0)}) == {}
        assert {at: lag.messages for at, lag in (await client.groups.lag("job")).items()} == {first: 3, second: 10}
        refused = await client.groups.commit("job", {first: (topic, 6), second: (topic, 11)})
        assert {at: type(error) for at, error in refused.items()} == {first: CommitGoesBack, second: OffsetOutOfRange}
        await client.groups.reset("job", await client.groups.plan_reset("job", "earliest"))
        assert await client.groups.commit("job", {first: (topic, 6)}) == {}
        assert await committed(cluster, "job", "t") == {0: 6, 1: 0}
        assert [type(error) for error in (await client.groups.commit("job", {first: (topic + 9, 6)})).values()] == [
            UnknownTopic
        ]
        async with client.consumer("t", group="job") as consumer:
            await consumer.wait_ready()
            with pytest.raises(GroupNotEmpty):
                await client.groups.commit("job", {first: (topic, 8)})
