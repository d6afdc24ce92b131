"""Redriving dead letters of one of two queue groups that read a topic: this group alone gets them. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

import ledgermq
from ledgermq.client.operating.dead_letters import DeadLetterFilter
from ledgermq.errors import InvalidRequest
from tests.broker.cluster import Cluster, in_cluster

LOOKS_S = 40


async def values(queue: ledgermq.Queue, timeout_s: float = LOOKS_S) -> list[tuple[str, bytes | None, int]]:
    """Return what comes within this time, and finish it."""
    found = []
    while messages := await queue.fetch(timeout=timeout_s):
        for message in messages:
            found.append((message.topic, message.value, message.attempt))
            assert await message.ack()
    return found


async def bury(queue: ledgermq.Queue) -> None:
    """Let the next message become a dead letter."""
    [message] = await queue.fetch(1, timeout=LOOKS_S)
    assert await message.dead_letter("bad")


@in_cluster("a:1", "b:1")
async def test_a_redriven_message_comes_to_its_group_alone(cluster: Cluster) -> None:
    """To members that were there before, and to one that begins at the end of the topic."""
    async with cluster.client() as client:
        await client.create_topic("jobs", 2)
        async with client.producer() as producer:
            await producer.send("jobs", b"job", partition=0)
        async with client.queue("jobs", group="workers") as workers, client.queue("jobs", group="others") as others:
            assert await values(others, 5) == [("jobs", b"job", 1)]
            await bury(workers)
            assert await client.dead_letters.redrive("workers", DeadLetterFilter()) == 1
            assert await values(workers) == [("workers.retry", b"job", 1)]
            assert await values(others) == []
            assert await client.dead_letters.redrive("workers", DeadLetterFilter()) == 0, "each is sent once"
        async with client.queue("jobs", group="workers", start="latest") as late:
            assert await values(late) == []


@in_cluster("a:1")
async def test_what_fails_again_is_a_dead_letter_of_the_first_message(cluster: Cluster) -> None:
    """A member whose group begins at the end of its topic gets what was redriven before it came."""
    async with cluster.client() as client:
        await client.create_topic("jobs", 1)
        async with client.producer() as producer:
            await producer.send_many("jobs", [b"first", b"job"])
        async with client.queue("jobs", group="workers") as queue:
            [first] = await queue.fetch(1, timeout=LOOKS_S)
            assert await first.ack()
            await bury(queue)
        for settled in (1, 2):
            assert await client.dead_letters.redrive("workers", DeadLetterFilter()) == 1
            async with client.queue("jobs", group="workers", start="latest") as queue:
                await bury(queue)
            await asyncio.sleep(30)  # what was committed is visible a moment later
            letters = (await client.dead_letters.list("workers", settled=True)).letters
            assert [str(letter.failures.origin) for letter in letters] == ["jobs/0, offset 1"] * (settled + 1)
            assert [letter.settled for letter in letters].count("redriven") == settled


@in_cluster("a:1")
async def test_members_go_on_without_their_retry_topic(cluster: Cluster) -> None:
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("jobs", 1)
        async with client.queue("jobs", group="workers") as queue:
            await producer.send("jobs", b"1")
            await bury(queue)
            await client.dead_letters.redrive("workers", DeadLetterFilter())
            assert await values(queue) == [("workers.retry", b"1", 1)]
            await client.delete_topic("workers.retry", now=True)
            await producer.send("jobs", b"2")
            assert await values(queue) == [("jobs", b"2", 1)]
            await producer.send("jobs", b"3")
            await bury(queue)
            await client.dead_letters.redrive("workers", DeadLetterFilter())
            assert await values(queue) == [("workers.retry", b"3", 1)], "it is made again"


@in_cluster("a:1")
async def test_copies_of_a_consumer_group_of_the_same_name_are_left_to_it(cluster: Cluster) -> None:
    async with cluster.client() as client, client.producer() as producer:
        await client.create_topic("jobs", 1)
        await client.create_topic("workers.retry", 1)
        await producer.send("workers.retry", b"no copy at all")
        async with client.queue("jobs", group="workers") as queue:
            assert await values(queue) == []


@in_cluster("a:1")
async def test_a_group_without_a_queue_has_none(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_topic("nogroup.dlq", 1)
        with pytest.raises(InvalidRequest, match="which only queue groups and groups with"):
            await client.dead_letters.redrive("nogroup", DeadLetterFilter())
