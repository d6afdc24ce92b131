"""Filters of groups on brokers in virtual time: members, handlers, copies and dead letters."""

from __future__ import annotations

import asyncio
import itertools
import random
from datetime import timedelta

import pytest

import ledgermq
from ledgermq import Retry, errors
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.expiring import read, values
from tests.e2e.filtering import FILTERS, TAGS, is_committed, send, send_in_batches
from tests.e2e.group_clients import committed, drop
from tests.e2e.retrying import running
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until


@in_cluster("a:1")
async def test_a_group_whose_tag_never_comes_commits_the_end_again_and_again(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.consumer("t", group="g", filter="rare", commit_interval_ms=100) as consumer:
            waiting = asyncio.create_task(anext(consumer))
            for times in range(1, 4):
                await send_in_batches(client, "t", ["A", None] * 10)
                await until(lambda: is_committed(cluster, 200 * times))  # noqa: B023
                assert (await consumer.lag())[ledgermq.TopicPartition("t", 0)].messages == 0
            assert consumer.filtered == 600
            await send_in_batches(client, "t", ["A", "rare"])
            assert (await waiting).offset == 610
            assert [message.offset for message in await consumer.fetch()] == list(range(611, 620))


# -- groups


@in_cluster("a:1")
@pytest.mark.parametrize("commit", ["auto", "acked", "manual", "before"])
async def test_a_group_commits_past_what_is_filtered(cluster: Cluster, commit: str) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(1, 100))  # begins and ends with messages that do not pass
        settings = {"commit": commit, "commit_interval_ms": 100, "filter": "A"}
        async with client.consumer("t", group="g", **settings) as consumer:
            got: list[ledgermq.GroupMessage] = []
            while len(got) < 24:
                got += await consumer.fetch(10)
            assert values(got) == list(range(4, 100, 4))
            assert consumer.position(0) == 99, "past the last three"
            assert (await consumer.lag())[ledgermq.TopicPartition("t", 0)].messages == 0
            if commit in ("acked", "manual"):
                for message in got[:-1]:
                    message.ack()
                assert await consumer.commit() == {ledgermq.TopicPartition("t", 0): 95}
                got[-1].ack()
            if commit == "manual":
                await consumer.commit()
            assert await consumer.fetch(timeout=1) == []
            await until(lambda: is_committed(cluster, 99))
            await send(client, "t", range(101, 104))
            assert await consumer.fetch(timeout=5) == []
            if commit == "manual":
                await consumer.commit()
            await until(lambda: is_committed(cluster, 102))
            assert consumer.filtered == 78


@in_cluster("a:1")
async def test_refused_messages_and_rewinds_come_again_between_what_is_filtered(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(40))
        async with client.consumer("t", group="g", commit="acked", filter="A", commit_interval_ms=100) as consumer:
            got = await consumer.fetch(10)
            assert values(got) == list(range(0, 40, 4))
            got[2].nack()
            for message in [*got[:2], *got[3:8]]:
                message.ack()
            [again] = await consumer.fetch()
            assert again.offset == 8
            await until(lambda: is_committed(cluster, 8))
            again.ack()
            await until(lambda: is_committed(cluster, 32))
            consumer.rewind()
            rest = await consumer.fetch()
            assert values(rest) == [32, 36]
            for message in rest:
                message.ack()
            await until(lambda: is_committed(cluster, 40))


@in_cluster("a:1")
async def test_members_with_different_filters_are_refused(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        first = client.consumer("t", group="g", filter="B||A")
        await first.wait_ready()
        async with client.consumer("t", group="g", filter="A || B") as second:
            await second.wait_ready()
        for other in ("A", "a = 1", "", "*"):
            consumer = client.consumer("t", group="g", filter=other)
            with pytest.raises(errors.FilterConflict, match="or use another group"):
                await consumer.wait_ready()
            await consumer.close()
        found = await client.groups.describe("g")
        assert {member.filter for member in found.members} == {"A || B"}
        late = client.consumer("t", group="g", filter="A")
        with pytest.raises(errors.FilterConflict):
            await late.fetch()
        await first.close()
        await late.wait_ready()  # the next call tries again
        await late.close()
        async with client.consumer("t", group="g", broadcast=True, filter="C") as alone:
            await alone.wait_ready()  # nobody shares its partitions


@pytest.mark.parametrize("seed", range(5))
def test_members_that_come_and_go_get_each_message_that_passes(seed: int) -> None:
    """Kills of members and of the broker that owns what they read: each message that passes is handed out, no
    other ever is, and the group ends with everything committed.
    """
    draw = random.Random(seed)
    text = draw.choice([each for each in FILTERS if each not in ("none", "*")])
    expected = {number for number in range(400) if FILTERS[text](number)}

    @in_cluster("a:1", "b:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as client:
            await client.create_topic("t", 4)
            got: set[int] = set()
            names = itertools.count()

            async def member(lives: int) -> None:
                for life in range(lives):
                    settings = {"commit_interval_ms": 200, "session_timeout_s": 3, "instance_id": ""}
                    consumer = client.consumer("t", group="g", filter=text, **settings)
                    until_s = asyncio.get_running_loop().time() + draw.uniform(2, 8)
                    while asyncio.get_running_loop().time() < until_s or life == lives - 1:
                        if life == lives - 1 and await _all_committed(cluster, client):
                            break
                        try:
                            got.update(values(await consumer.fetch(draw.randrange(1, 30), timeout=0.5)))
                        except errors.RetriableError:
                            await asyncio.sleep(0.2)
                    await (drop(consumer) if draw.random() < 0.5 and life < lives - 1 else consumer.close())
                    next(names)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(3):
                    tasks.create_task(member(3))
                for first in range(0, 400, 50):
                    await send(client, "t", range(first, first + 50), 4)
                    await asyncio.sleep(draw.uniform(0, 2))
                    if first == 200:
                        await cluster.stop(draw.choice(["a:1", "b:1"]), graceful=draw.random() < 0.5)
            assert got == expected
            assert sum((await committed(cluster, "g", "t")).values()) == 400

    life()


async def _all_committed(cluster: Cluster, client: ledgermq.Client) -> bool:
    return sum((await committed(cluster, "g", "t")).values()) == 400


# -- handlers


@in_cluster("a:1")
@pytest.mark.parametrize("transactional", [False, True])
async def test_handlers_are_called_with_what_passes(cluster: Cluster, transactional: bool) -> None:
    called: list[int] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(1, 100))
        settings = {"transactional": True, "transactional_id": "x"} if transactional else {"commit_interval_ms": 100}

        @client.handler("t", group="g", filter="A", **settings)
        async def handle(message: ledgermq.GroupMessage) -> None:
            called.extend(values([message]))

        async with running(client):
            await until(lambda: is_committed(cluster, 99))
            assert called == list(range(4, 100, 4))
            await send(client, "t", range(1, 4))
            await until(lambda: is_committed(cluster, 102))
        assert handle.handled == 24


@in_cluster("a:1")
async def test_copies_in_the_retry_topic_need_not_pass_again(cluster: Cluster) -> None:
    """A group whose filter has changed still gets what it has accepted once."""
    called: list[tuple[int, int]] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await send(client, "t", range(8))

        @client.handler(
            "t", group="g", filter="A", retry=Retry.levels(5, [20]), ordered_by=None, commit_interval_ms=100
        )
        async def first(message: ledgermq.GroupMessage) -> None:
            raise ZeroDivisionError

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run_handlers(first, stop=stop))
            await until(lambda: first.retried == 2)
            stop.set()

        @client.handler(
            "t", group="g", filter="B", retry=Retry.levels(5, [20]), ordered_by=None, commit_interval_ms=100
        )
        async def second(message: ledgermq.GroupMessage) -> None:
            called.append((*values([message]), message.attempt))

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.run_handlers(second, stop=stop))
            await send(client, "t", range(8, 12))
            await until(lambda: len(called) == 3)
            await asyncio.sleep(60)
            stop.set()
        assert sorted(called) == [(0, 2), (4, 2), (9, 1)]


@in_cluster("a:1")
async def test_expired_messages_that_pass_become_dead_letters_and_no_others(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        retry = Retry.levels(3, [1], expired="dead_letter")

        @client.handler("t", group="g", filter="A || B", ordered_by=None, retry=retry, commit_interval_ms=100)
        async def handle(message: ledgermq.GroupMessage) -> None:
            raise AssertionError("they have expired")

        async with client.producer() as producer:
            for number in range(20):
                producer.send("t", f"{number}", tag=TAGS[number % 4], ttl=timedelta(seconds=1))
        await asyncio.sleep(2)
        async with running(client):
            await until(lambda: handle.dead_lettered == 10)
            await until(lambda: is_committed(cluster, 20))
        assert sorted(await read(client, "g.dlq")) == [number for number in range(20) if number % 4 < 2]
