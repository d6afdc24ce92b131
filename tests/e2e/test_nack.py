"""`nack` on brokers in virtual time: a refused message comes back alone, or is moved, and stops nothing."""

from __future__ import annotations

import asyncio

import pytest

import ledgermq
from ledgermq import Retry
from ledgermq.client.groups import retry_topics
from ledgermq.runtime.tasks import end
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import committed, fill
from tests.e2e.retrying import until_in
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until


@in_cluster("a:1")
async def test_a_refused_message_comes_back_alone_after_its_delay(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 6)
        async with client.consumer("t", group="g", commit="acked", commit_interval_ms=100) as consumer:
            messages = await consumer.fetch(3)
            assert messages[1].nack(delay=7)
            assert not messages[1].ack(), "it will be delivered again"
            assert [messages[0].ack(), messages[2].ack()] == [True, True], "later ones count"
            rest = [*await consumer.fetch(), *await consumer.fetch(timeout=0.1)]
            assert [message.offset for message in rest] == [3, 4, 5]
            assert all(message.ack() for message in rest)
            await asyncio.sleep(1)
            assert await committed(cluster, "g", "t") == {0: 1}, "a committed offset is a prefix"
            before_s = asyncio.get_running_loop().time()
            [again] = await consumer.fetch(timeout=60)
            assert again.offset == 1
            assert 5 < asyncio.get_running_loop().time() - before_s < 6.5
            assert not messages[1].ack(), "of the earlier delivery"
            assert again.ack()
            await asyncio.sleep(1)
            assert await committed(cluster, "g", "t") == {0: 6}


@pytest.mark.parametrize("bound", [{"failed_held_max": 2}, {"failed_held_bytes_max": 1500}])
@in_cluster("a:1")
async def test_reading_waits_while_too_many_refused_messages_are_held(cluster: Cluster, bound: dict[str, int]) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            for _ in range(4):
                await producer.send("t", bytes(500))
        async with client.consumer("t", group="g", commit="acked", **bound) as consumer:
            for offset in range(2):
                [message] = await consumer.fetch(1)
                assert message.offset == offset
                assert message.nack(delay=60)
            assert not await consumer.fetch(1, timeout=30), "two are held"
            [again] = await consumer.fetch(1, timeout=60)
            assert again.offset == 0
            assert again.ack()
            assert [message.offset for message in await consumer.fetch(timeout=10)] == [1]


@pytest.mark.parametrize("mode", ["auto", "manual"])
@in_cluster("a:1")
async def test_a_refused_message_is_not_committed_by_later_calls(cluster: Cluster, mode: str) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 4)
        async with client.consumer("t", group="g", commit=mode, commit_interval_ms=100) as consumer:
            seen = []
            async for message in consumer:
                seen.append(message.offset)
                if message.offset == 1 and seen.count(1) < 3:
                    assert message.nack(0.5)
                elif mode == "manual":
                    await consumer.commit(message)
                if len(seen) == 6:
                    break
            assert sorted(seen) == [0, 1, 1, 1, 2, 3]
        assert await committed(cluster, "g", "t") == ({0: 1} if mode == "auto" else {0: 4}), (
            "auto: the last message returned is not finished"
        )


@in_cluster("a:1")
async def test_a_consumer_moves_what_its_program_refuses(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 4)
        retry = Retry.levels(2, [0])
        async with client.consumer("t", group="g", commit="acked", commit_interval_ms=100, retry=retry) as consumer:
            first = await consumer.fetch()
            assert first[0].ack()
            assert first[1].nack()
            assert first[2].dead_letter("no use")
            assert first[3].ack()
            [again] = await consumer.fetch(timeout=30)
            assert (again.topic, again.origin, again.attempt) == ("g.retry", ("t", 0, 1), 2)
            assert again.nack()
        dead = {
            message.value: retry_topics.failures_of(message.headers) for message in await until_in(client, "g.dlq", 2)
        }
        assert {f.origin.offset: f.error for f in dead.values() if f} == {
            2: "no use",
            1: "the program refused the message",
        }


@pytest.mark.parametrize("way", ["fetch", "iterate"])
@in_cluster("a:1")
async def test_a_message_that_is_refused_at_once_each_time_stops_no_other(cluster: Cluster, way: str) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        async with client.producer() as producer:
            await producer.send("t", "poison", partition=0)
        seen: set[bytes] = set()

        async def read(consumer: ledgermq.GroupConsumer) -> None:
            while len(seen) < 4:
                messages = [await anext(consumer)] if way == "iterate" else await consumer.fetch(1)
                await asyncio.sleep(0.01)  # its work
                for message in messages:
                    seen.add(message.value or b"")
                    assert message.nack() if message.value == b"poison" else message.ack()

        async with client.consumer("t", group="g", commit="acked") as consumer, client.producer() as producer:
            reading = asyncio.create_task(read(consumer))
            await until(lambda: seen)
            for partition, value in ((0, "behind"), (1, "beside"), (1, "later")):
                await producer.send("t", value, partition=partition)
            await asyncio.wait_for(reading, 60)


@in_cluster("a:1")
async def test_a_program_that_only_refuses_lets_other_tasks_run(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 1)
        async with client.consumer("t", group="g", commit="acked") as consumer:
            assert (await anext(consumer)).nack()
            turns = 0

            async def take_turns() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            other = asyncio.create_task(take_turns())
            for _ in range(10):
                assert (await anext(consumer)).nack()
            await end(other)
            assert turns >= 9, "its heartbeats need that"
