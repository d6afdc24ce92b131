"""Members of groups on brokers in virtual time: assignment, commits, and redelivery."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

import ledgermq
from ledgermq import TopicPartition, errors
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import committed, coordinator_of, drop, fill, take, take_messages
from tests.e2e.test_client_takeover import client_of


@in_cluster("a:1", "b:1")
async def test_a_member_reads_all_and_the_next_goes_on_behind_it(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 4)
        await fill(client, "t", 100)
        async with client.consumer("t", group="g") as consumer:
            seen = await take(consumer, 100)
            assert await consumer.fetch(timeout=0.5) == []
            assert sorted(seen) == sorted(b"%d" % number for number in range(100))
            assert await consumer.lag() == dict.fromkeys(consumer.assignment, ledgermq.Lag(0, 0.0))
        await fill(client, "t", 1, name="more")
        async with client.consumer("t", group="g") as consumer:
            assert (await anext(consumer)).value == b"more0"


@in_cluster("a:1")
async def test_only_what_is_finished_without_a_gap_is_committed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 10)
        async with client.consumer("t", group="g", commit="acked", commit_interval_ms=100) as consumer:
            messages = await consumer.fetch()
            for number in (1, 2, 5):
                assert messages[number].ack()
            await asyncio.sleep(1)
            assert await consumer.committed() == {TopicPartition("t", 0): 0}, "nothing but where it began"
            messages[0].ack()
            await asyncio.sleep(1)
            assert await consumer.committed() == {TopicPartition("t", 0): 3}
        async with client.consumer("t", group="g") as consumer:
            assert [message.offset for message in await consumer.fetch()] == list(range(3, 10))


@in_cluster("a:1")
async def test_with_automatic_commits_what_was_handed_out_last_is_not_finished(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 10)
        async with client.consumer("t", group="g", commit_interval_ms=100) as consumer:
            await consumer.fetch(4)
            messages = await consumer.fetch(4)
            await asyncio.sleep(1)
            assert await consumer.committed() == {TopicPartition("t", 0): 4}
            messages[0].ack()
        assert await committed(cluster, "g", "t") == {0: 5}


@in_cluster("a:1")
async def test_a_refused_message_and_all_behind_it_come_again_after_the_delay(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 10, partition=0)
        await fill(client, "t", 2, partition=1)
        async with client.consumer("t", group="g", commit="acked", retry=ledgermq.Retry.in_order()) as consumer:
            messages = [m for m in await take_messages(consumer, 12) if m.partition == 0]
            now = asyncio.get_running_loop().time
            begun = now()
            for message in messages[:3] + messages[5:]:
                message.ack()
            assert messages[4].nack(delay=7)
            assert not messages[6].ack(), "it comes again"
            assert messages[3].ack(), "it does not"
            again = await take_messages(consumer, 6)
            assert [message.offset for message in again] == [4, 5, 6, 7, 8, 9]
            assert 7 <= now() - begun < 8
            assert not messages[4].nack()
            assert all(message.ack() for message in again)
            await consumer.commit()
            assert (await consumer.committed())[TopicPartition("t", 0)] == 10


@in_cluster("a:1")
async def test_manual_commits_of_messages_of_offsets_and_what_is_refused(cluster: Cluster) -> None:
    at = TopicPartition("t", 0)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 10)
        async with client.consumer("t", group="g", commit="manual") as consumer:
            messages = await consumer.fetch()
            with pytest.raises(errors.InvalidRequest, match="acknowledged"):
                await consumer.commit()
            assert await consumer.commit(messages[:3]) == {at: 3}
            assert await consumer.commit({at: 5}, metadata="half") == {at: 5}
            with pytest.raises(errors.CommitGoesBack):
                await consumer.commit({at: 4})
            with pytest.raises(errors.OffsetOutOfRange):
                await consumer.commit({at: 11})
            with pytest.raises(errors.InvalidRequest, match="4096"):
                await consumer.commit({at: 6}, metadata="x" * 4097)
            with pytest.raises(errors.StaleAssignment):
                await consumer.commit({TopicPartition("t", 7): 1})
            assert await consumer.committed() == {at: 5}
            assert await consumer.commit(messages[5]) == {at: 6}
            assert await consumer.commit() == {}
        assert await committed(cluster, "g", "t") == {0: 6}


@in_cluster("a:1")
async def test_at_most_once_commits_before_it_hands_out(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 10)
        consumer = client.consumer("t", group="g", commit="before")
        assert len(await consumer.fetch(4)) == 4
        assert await committed(cluster, "g", "t") == {0: 4}
        assert (await anext(consumer)).offset == 4
        assert await committed(cluster, "g", "t") == {0: 10}
        assert [message.offset for message in await consumer.fetch()] == [5, 6, 7, 8, 9]
        await drop(consumer)


@in_cluster("a:1", "b:1")
async def test_at_most_once_hands_out_nothing_whose_commit_is_not_answered(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 10)
        async with client.consumer("t", group="g", commit="before", request_timeout_s=5) as consumer:
            assert len(await consumer.fetch(2)) == 2
            for view in cluster.views.values():
                view.pause()
            with pytest.raises(errors.Unavailable):
                await consumer.fetch(2)
            for view in cluster.views.values():
                view.resume()
            assert [message.offset for message in await take_messages(consumer, 8)] == list(range(2, 10))


@in_cluster("a:1", "b:1")
async def test_a_reset_moves_members_that_run(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        topic = await client.create_topic("t", 2)
        await fill(client, "t", 10, partition=0)
        await fill(client, "t", 10, partition=1)
        async with client.consumer("t", group="g", commit_interval_ms=100) as consumer:
            await take(consumer, 20)
            await consumer.fetch(timeout=1)
            reset = pb.OffsetReset(topic="t", topic_id=topic.topic_id, partition=1, offset=4)
            line = cluster.line(await coordinator_of(cluster, "g"))
            answer = await line.reset_offsets(pb.ResetOffsetsRequest(group="g", resets=[reset]))
            assert not answer.results[0].HasField("error")
            again = await take_messages(consumer, 6)
            assert [(message.partition, message.offset) for message in again] == [
                (1, offset) for offset in range(4, 10)
            ]
            assert await consumer.fetch(timeout=1) == []
        assert await committed(cluster, "g", "t") == {0: 10, 1: 10}


@in_cluster("a:1")
async def test_where_a_group_begins_when_nothing_is_committed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, settings={"message.timestamp.after.max.ms": -1})
        await fill(client, "t", 5)
        async with client.consumer("t", group="late", start="latest") as consumer:
            assert await consumer.fetch(timeout=1) == []
        await fill(client, "t", 5)
        async with client.consumer("t", group="late", start="latest") as consumer:
            assert [m.offset for m in await consumer.fetch()] == [5, 6, 7, 8, 9], (
                "the first member's start is where the group begins"
            )
        async with client.consumer("t", group="strict", start="error") as consumer:
            for _ in range(2):
                with pytest.raises(errors.OffsetOutOfRange, match="seek"):
                    await consumer.fetch(timeout=5)
            await consumer.seek(7)
            assert [m.offset for m in await consumer.fetch()] == [7, 8, 9]
        moment = datetime(2023, 1, 1, tzinfo=UTC)
        for number in range(5):
            await client.producer().send("t", b"x", timestamp=moment + timedelta(days=10_000 + number))
        async with client.consumer("t", group="timed", start=moment + timedelta(days=10_002)) as consumer:
            assert [m.offset for m in await consumer.fetch()] == [12, 13, 14]
            await consumer.seek_to_time(round((moment + timedelta(days=10_001)).timestamp() * 1000))
            assert [m.offset for m in await consumer.fetch()] == [11, 12, 13, 14]


@in_cluster("a:1")
async def test_pause_keeps_a_partition_back_and_resume_goes_on_where_it_was(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 10, partition=0)
        await fill(client, "t", 10, partition=1)
        async with client.consumer("t", group="g") as consumer:
            await consumer.fetch(1)
            consumer.pause([TopicPartition("t", 1)])
            seen = Counter(
                message.partition for message in [*await consumer.fetch(timeout=1), *await consumer.fetch(timeout=1)]
            )
            assert seen[1] == 0
            consumer.resume([TopicPartition("t", 1)])
            while seen[1] < 9:
                seen.update(message.partition for message in await consumer.fetch(timeout=1))
            assert await consumer.fetch(timeout=1) == []


@in_cluster("a:1")
async def test_the_next_call_raises_the_error_of_a_callback(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 1)

        def on_assigned(partitions: Sequence[TopicPartition]) -> None:
            raise ZeroDivisionError("mine")

        async with client.consumer("t", group="g", on_assigned=on_assigned) as consumer:
            with pytest.raises(ledgermq.LedgerMQError, match="on_assigned failed") as raised:
                await consumer.wait_ready()
            assert isinstance(raised.value.__cause__, ZeroDivisionError)
            assert (await anext(consumer)).value == b"0"


@in_cluster("a:1")
async def test_the_death_of_the_background_is_told_by_every_call(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        consumer = client.consumer("t", group="g")
        await consumer.wait_ready()

        def fail(assigned: object) -> bool:
            raise RuntimeError("a bug")

        consumer._holdings.apply = fail  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(ledgermq.LedgerMQError, match="background"):
                await consumer.fetch(timeout=20)
        await consumer.close()


@in_cluster("a:1")
async def test_seek_in_on_assigned_decides_where_reading_begins(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 10)

        async def on_assigned(partitions: Sequence[TopicPartition]) -> None:
            await consumer.seek(6)

        consumer = client.consumer("t", group="g", on_assigned=on_assigned)
        assert [message.offset for message in await consumer.fetch()] == [6, 7, 8, 9]
        await consumer.close()


@in_cluster("a:1")
async def test_messages_without_a_group_say_that_they_cannot_be_acknowledged(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 1)
        async with client.consumer("t") as consumer:
            message = await anext(consumer)
            with pytest.raises(errors.InvalidRequest, match="group"):
                message.ack()
            with pytest.raises(errors.InvalidRequest, match="group"):
                message.nack()


@in_cluster("a:1", "b:1")
async def test_calls_that_are_cancelled_anywhere_lose_and_repeat_nothing(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 3)
        await fill(client, "t", 300)
        seen: list[bytes] = []
        consumer = client.consumer("t", group="g", commit="acked", commit_interval_ms=50)
        for number in range(3000):
            try:
                async with asyncio.timeout((number % 37) * 0.0007):
                    for message in await consumer.fetch(3, timeout=1):
                        seen.append(message.value or b"")
                        message.ack()
                    if number % 5 == 0:
                        await consumer.commit()
            except TimeoutError:
                pass
            if len(seen) == 300:
                break
        assert sorted(seen) == sorted(b"%d" % number for number in range(300))
        await consumer.commit()
        await consumer.close()
        assert sum((await committed(cluster, "g", "t")).values()) == 300


@in_cluster("a:1")
async def test_bad_input_is_refused_with_a_typed_error(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        with pytest.raises(errors.InvalidConfig, match="partitions"):
            client.consumer("t", partitions=[0], group="g")  # type: ignore[call-overload]
        with pytest.raises(errors.InvalidConfig, match="start"):
            client.consumer("t", group="g", start={0: 5})  # type: ignore[call-overload]
        with pytest.raises(errors.InvalidConfig, match="did you mean 'commit'"):
            client.consumer("t", group="g", comit="auto")
        with pytest.raises(errors.InvalidConfig, match="pattern"):
            client.consumer("^t.*")
        with pytest.raises(errors.InvalidGroupName):
            client.consumer("t", group="")
        with pytest.raises(errors.InvalidConfig, match="VERBOSE"):
            client.consumer(re.compile("t", re.VERBOSE), group="g")
        for group, topics, kind in (
            ("no/good", "t", errors.InvalidGroupName),
            ("g", "^(", errors.InvalidRequest),
            ("g", "u", errors.UnknownTopic),
        ):
            async with client.consumer(topics, group=group) as consumer:
                for _ in range(2):
                    with pytest.raises(kind):
                        await consumer.fetch(timeout=10)
