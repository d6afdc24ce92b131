"""Members of groups on brokers in virtual time: members join, leave, stall or die, and partitions
move.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence

import pytest

import ledgermq
from ledgermq import TopicPartition, errors
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import committed, coordinator_of, drop, fill, take, take_messages
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until


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
        with pytest.raises(errors.Closed, match="closed"):
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
        assert set(seen.values()) == {1}, "the member keeps its partitions when another broker coordinates"


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
        with pytest.raises(errors.Closed, match="closed"):
            await consumer.fetch()


@in_cluster("a:1", "b:1")
async def test_a_member_that_cannot_reach_its_coordinator_gives_its_partitions_up_in_time(cluster: Cluster) -> None:
    lost: list[int] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 5)
        consumer = client.consumer(
            "t",
            group="g",
            session_timeout_s=8,
            heartbeat_wait_s=1,
            on_lost=lambda partitions: lost.append(len(partitions)),
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
async def test_a_static_member_that_comes_back_finds_its_partitions_and_two_at_once_are_refused(
    cluster: Cluster,
) -> None:
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
