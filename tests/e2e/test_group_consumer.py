"""Members of groups on brokers in virtual time: who reads what, what is committed when, and what comes again."""

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
from tests.broker.cluster import Cluster, in_cluster, until
from tests.e2e.group_clients import committed, drop, fill, take
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


@in_cluster("a:1", "b:1")
async def test_members_share_the_partitions_and_a_change_delivers_nothing_twice(cluster: Cluster) -> None:
    seen: Counter[bytes] = Counter()
    async with client_of(cluster) as client:
        await client.create_topic("t", 8)
        first, second = client.consumer("t", group="g"), client.consumer("t", group="g")

        async def consume(consumer: ledgermq.GroupConsumer) -> None:
            async for message in consumer:
                seen[message.value or b""] += 1
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(consume(first))]
            await fill(client, "t", 1000)
            await until(lambda: len(seen) > 100)
            assert len(first.assignment) == 8
            running.append(tasks.create_task(consume(second)))
            await until(lambda: len(second.assignment) == 4 and len(first.assignment) == 4)
            assert not set(first.assignment) & set(second.assignment)
            await until(lambda: len(seen) > 400)
            await first.drain()
            await until(running[0].done)
            await first.close()
            await until(lambda: len(second.assignment) == 8)
            await until(lambda: len(seen) == 1000)
            running[1].cancel()
        assert set(seen.values()) == {1}


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
        async with client.consumer("t", group="g", commit="acked") as consumer:
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


async def take_messages(consumer: ledgermq.GroupConsumer, count: int) -> list[ledgermq.GroupMessage]:
    messages: list[ledgermq.GroupMessage] = []
    while len(messages) < count:
        messages += await consumer.fetch(count - len(messages), timeout=30)
    return messages


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
async def test_a_member_that_dies_leaves_its_partitions_after_the_session(cluster: Cluster) -> None:
    async with client_of(cluster) as client, client_of(cluster) as other:
        await client.create_topic("t", 4)
        await fill(client, "t", 100)
        settings = {"session_timeout_s": 6, "heartbeat_wait_s": 1, "commit_interval_ms": 500}
        dying = other.consumer("t", group="g", **settings)
        seen = await take(dying, 50)
        await asyncio.sleep(1)
        await drop(dying)
        async with client.consumer("t", group="g", **settings) as consumer:
            while set(seen) != {b"%d" % number for number in range(100)}:
                seen += [message.value or b"" for message in await consumer.fetch(timeout=20)]
        assert len(seen) <= 150, "again comes only what was not committed"


@in_cluster("a:1", "b:1")
async def test_a_program_that_stops_asking_loses_its_partitions_and_the_next_call_joins_again(cluster: Cluster) -> None:
    events: list[tuple[str, int]] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 4)
        await fill(client, "t", 8)
        consumer = client.consumer(
            "t",
            group="g",
            max_poll_interval_s=10,
            revoke_wait_s=5,
            on_assigned=lambda partitions: events.append(("assigned", len(partitions))),
            on_revoked=lambda partitions: events.append(("revoked", len(partitions))),
            on_lost=lambda partitions: events.append(("lost", len(partitions))),
        )
        messages = await take_messages(consumer, 8)
        messages[0].ack()
        await asyncio.sleep(20)
        assert events == [("assigned", 4), ("lost", 4)]
        assert consumer.assignment == []
        assert not messages[1].ack()
        assert sum((await committed(cluster, "g", "t")).values()) == 1, "what was finished is committed, nothing else"
        assert len(await take_messages(consumer, 7)) == 7
        await consumer.close()
        assert events[2:] == [("assigned", 4), ("revoked", 4)]


@in_cluster("a:1", "b:1")
async def test_commits_are_accepted_while_partitions_are_revoked(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 4)
        revoked: list[dict[TopicPartition, int]] = []
        handed: list[ledgermq.GroupMessage] = []

        async def on_revoked(partitions: Sequence[TopicPartition]) -> None:
            mine = [message for message in handed if (message.topic, message.partition) in partitions]
            revoked.append(await first.commit(mine))

        first = client.consumer("t", group="g", commit="manual", on_revoked=on_revoked, revoke_wait_s=1)
        handed += await take_messages(first, 4)
        second = client.consumer("t", group="g")
        assert await second.fetch(timeout=20) == [], "all that there is was committed by the first"
        assert len(revoked) == 1
        assert len(revoked[0]) == 1
        with pytest.raises(errors.StaleAssignment):
            await first.commit(handed)
        await fill(client, "t", 1, partition=first.assignment[0].partition, name="again")
        assert (await anext(first)).value == b"again0", "the consumer goes on"
        await first.close()
        await second.close()


@in_cluster("a:1")
async def test_the_last_commit_may_be_made_while_the_consumer_closes(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 5)
        messages: list[ledgermq.GroupMessage] = []

        async def on_revoked(partitions: Sequence[TopicPartition]) -> None:
            await consumer.commit(messages[:3])
            raise ZeroDivisionError

        consumer = client.consumer("t", group="g", commit="manual", on_revoked=on_revoked)
        messages += await consumer.fetch()
        with pytest.raises(ledgermq.LedgerMQError, match="on_revoked failed"):
            await consumer.close()
        assert await committed(cluster, "g", "t") == {0: 3}
        with pytest.raises(errors.Unavailable, match="closed"):
            await consumer.commit(messages)


@in_cluster("a:1")
async def test_closing_while_a_partition_is_let_go_tells_of_it_once(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 2)
        revoked: list[TopicPartition] = []
        first = client.consumer("t", group="g", on_revoked=revoked.extend)
        await take(first, 2)
        second = client.consumer("t", group="g")
        await second.wait_ready()
        await until(lambda: len(first.assignment) == 1)
        assert revoked == [], "what was handed out last is not finished yet"
        await first.close()
        assert sorted(revoked) == [TopicPartition("t", 0), TopicPartition("t", 1)]
        assert len(await take(second, 1)) >= 1
        await second.close()


@in_cluster("a:1", "b:1", "c:1")
async def test_coordinators_die_while_members_commit_and_nothing_goes_back(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 4)
        consumer = client.consumer("t", group="g", commit_interval_ms=100)
        highest: dict[int, int] = {}
        seen: Counter[bytes] = Counter()
        for round_number in range(6):
            await fill(client, "t", 50, name=f"{round_number}-")
            while len(seen) < 50 * (round_number + 1):
                seen.update([message.value or b"" for message in await consumer.fetch(20, timeout=30)])
            await asyncio.sleep(0.5)
            victim = await coordinator_of(cluster, "g")
            await cluster.stop(victim, graceful=False)
            await cluster.start(f"new-{round_number}:1")
            now = await committed(cluster, "g", "t")
            assert all(now.get(partition, 0) >= offset for partition, offset in highest.items())
            highest = now
        await consumer.close()
        assert set(seen.values()) == {1}, "whoever coordinates, the member keeps its partitions"


async def coordinator_of(cluster: Cluster, group: str) -> str:
    async with asyncio.timeout(60):
        while True:
            for address in list(cluster.brokers):
                try:
                    answer = await cluster.line(address).describe_group(pb.DescribeGroupRequest(group=group))
                    return answer.coordinator or address
                except errors.RetriableError:
                    await asyncio.sleep(0.05)


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
            assert [(message.partition, message.offset) for message in again] == [(1, offset) for offset in range(4, 10)]
            assert await consumer.fetch(timeout=1) == []
        assert await committed(cluster, "g", "t") == {0: 10, 1: 10}


@in_cluster("a:1")
async def test_where_a_group_begins_when_nothing_is_committed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 5)
        async with client.consumer("t", group="late", start="latest") as consumer:
            assert await consumer.fetch(timeout=1) == []
        await fill(client, "t", 5)
        async with client.consumer("t", group="late", start="latest") as consumer:
            assert [m.offset for m in await consumer.fetch()] == [5, 6, 7, 8, 9], "the first member's start is where the group begins"
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
async def test_close_is_bounded_and_typed_when_the_cluster_is_down(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 5)
        consumer = client.consumer("t", group="g", close_timeout_s=4)
        await consumer.fetch(2)
        await consumer.fetch(2)
        await cluster.stop("a:1", graceful=False)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(errors.Unavailable):
            await consumer.close()
        assert asyncio.get_running_loop().time() - begun < 5
        assert consumer.state == "closed"
        with pytest.raises(errors.Unavailable, match="closed"):
            await consumer.fetch()


@in_cluster("a:1", "b:1")
async def test_a_member_that_cannot_reach_its_coordinator_gives_its_partitions_up_in_time(cluster: Cluster) -> None:
    lost: list[int] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 5)
        consumer = client.consumer(
            "t", group="g", session_timeout_s=8, heartbeat_wait_s=1, on_lost=lambda partitions: lost.append(len(partitions))
        )
        await take(consumer, 5)
        for address in list(cluster.brokers):
            await cluster.stop(address, graceful=False)
        begun = asyncio.get_running_loop().time()
        await until(lambda: bool(lost))
        assert 6 < asyncio.get_running_loop().time() - begun < 25
        assert consumer.state == "failing"
        await cluster.start("c:1")
        cluster.network.listen("a:1", cluster.brokers["c:1"].service)
        await fill(client, "t", 1, name="back")
        while b"back0" not in [message.value for message in await consumer.fetch(timeout=30)]:
            pass
        await consumer.close()


@in_cluster("a:1", "b:1")
async def test_topics_that_match_come_and_go(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("orders.eu", 2)
        await client.create_topic("other", 1)
        async with client.consumer(re.compile(r"ORDERS\..*", re.IGNORECASE), group="g") as consumer:
            await consumer.wait_ready()
            await until(lambda: len(consumer.assignment) == 2)
            await client.create_topic("orders.us", 3)
            await fill(client, "orders.us", 3)
            assert len(await take(consumer, 3)) == 3
            await client.alter_topic("orders.us", partitions=4)
            await client.delete_topic("orders.eu")
            await until(lambda: consumer.assignment == [TopicPartition("orders.us", number) for number in range(4)])
        async with client.consumer("^orders.*", group="h") as consumer:
            await consumer.wait_ready()
            await until(lambda: len(consumer.assignment) == 4)


@in_cluster("a:1")
async def test_pause_keeps_a_partition_back_and_resume_goes_on_where_it_was(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 10, partition=0)
        await fill(client, "t", 10, partition=1)
        async with client.consumer("t", group="g") as consumer:
            await consumer.fetch(1)
            consumer.pause([TopicPartition("t", 1)])
            seen = Counter(message.partition for message in [*await consumer.fetch(timeout=1), *await consumer.fetch(timeout=1)])
            assert seen[1] == 0
            consumer.resume([TopicPartition("t", 1)])
            while seen[1] < 9:
                seen.update(message.partition for message in await consumer.fetch(timeout=1))
            assert await consumer.fetch(timeout=1) == []


@in_cluster("a:1")
async def test_what_a_callback_raises_is_told_by_the_next_call(cluster: Cluster) -> None:
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
async def test_a_static_member_that_comes_back_finds_its_partitions_and_two_at_once_are_refused(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 4)
        await fill(client, "t", 20)
        first = client.consumer("t", group="g", instance_id="one")
        other = client.consumer("t", group="g", instance_id="two")
        await first.fetch(1)
        await other.wait_ready()
        await until(lambda: len(first.assignment) == len(other.assignment) == 2)
        before = first.assignment
        twin = client.consumer("t", group="g", instance_id="two")
        with pytest.raises(errors.StaticIdInUse):
            await twin.fetch(timeout=5)
        await twin.close()
        await first.close()
        await asyncio.sleep(5)
        assert len(other.assignment) == 2
        first = client.consumer("t", group="g", instance_id="one")
        await first.wait_ready()
        assert first.assignment == before
        await first.close()
        await other.close()


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
