"""Leases and answers by handle, without a member that stays; brokers in this process and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

import ledgermq
from ledgermq import LeaseAnswer, LeasedMessage, errors
from ledgermq.client.groups.retry_topics import failures_of
from ledgermq.client.queues.leases.handles import handle_of_lease, lease_of_handle
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.queued import fill
from tests.e2e.test_client_takeover import client_of

GROUP = "workers"


async def lease(client: ledgermq.Client, count: int = 50, wait: float = 5.0, **more: object) -> Sequence[LeasedMessage]:
    return await client.queues.lease("jobs", GROUP, max_records=count, wait=wait, **more)  # type: ignore[arg-type]


async def say(
    client: ledgermq.Client, leased: Sequence[LeasedMessage], word: str = "ack", **more: object
) -> list[bool]:
    answers = [LeaseAnswer(each.handle, word, **more) for each in leased]  # type: ignore[arg-type]
    results = await client.queues.answer(answers)
    assert [each.error for each in results] == [None] * len(results)
    return [each.counts for each in results]


def numbers(leased: Sequence[LeasedMessage]) -> list[int]:
    return [int(each.message.value or b"") for each in leased]


async def dead(client: ledgermq.Client) -> dict[bytes, str]:
    """The errors of the group's dead letters, by their values; none if there is no such topic."""
    if f"{GROUP}.dlq" not in {topic.name for topic in await client.list_topics()}:
        return {}
    async with client.consumer(f"{GROUP}.dlq", until_end=True) as consumer:
        found = {message.value: failures_of(message.headers) async for message in consumer}
    return {value or b"": failures.error for value, failures in found.items() if failures is not None}


@in_cluster("a:1", "b:1")
async def test_any_client_answers_for_what_another_has_leased(cluster: Cluster) -> None:
    async with client_of(cluster) as one, client_of(cluster) as other:
        await fill(one, 30, partitions=3)
        seen: list[int] = []
        while found := await lease(one, 8):
            assert {each.attempt for each in found} == {1}
            assert all(25 < each.lease_s <= 30 for each in found)
            assert await say(other, found) == [True] * len(found)
            seen += numbers(found)
        assert sorted(seen) == list(range(30)), "each came once, and none waits for the end of a lease"
        described = await one.queues.describe(GROUP)
        assert (described.backlog, described.leased) == (0, 0)


@in_cluster("a:1")
async def test_each_word(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 4)
        acked, returned, refused, kept = await lease(client, lease_s=2.0)
        assert await say(client, [acked]) == [True]
        assert await say(client, [returned], "return") == [True]
        assert await say(client, [refused], "nack", seconds=4.0) == [True]
        assert await say(client, [kept], "extend", seconds=60.0) == [True]
        [again] = await lease(client, wait=1)
        assert (numbers([again]), again.attempt) == ([1], 1), "a return is no attempt"
        assert await say(client, [again]) == [True]
        assert await lease(client, wait=1) == []
        [again] = await lease(client, wait=5)
        assert (numbers([again]), again.attempt) == ([2], 2)
        assert await say(client, [again, kept]) == [True, True]
        assert (await client.queues.describe(GROUP)).backlog == 0
        assert await say(client, [again], "nack") == [False], "finished is finished"


@in_cluster("a:1")
async def test_a_late_answer_is_told_from_one_that_counts(cluster: Cluster) -> None:
    """Also if both are about the same message, in one call."""
    async with client_of(cluster) as client:
        await fill(client, 1)
        late = await lease(client, lease_s=1.0)
        await asyncio.sleep(2)
        mine = await lease(client)
        assert numbers(late) == numbers(mine)
        for word in ("ack", "nack", "return", "extend", "dead_letter"):
            assert await say(client, late, word) == [False]
        assert await say(client, [*late, *mine, *late]) == [False, True, False]
        assert await dead(client) == {}


@pytest.mark.parametrize("word", ["ack", "nack", "return", "dead_letter"])
@in_cluster("a:1")
async def test_a_word_counts_again_when_it_is_repeated_because_its_answer_was_lost(cluster: Cluster, word: str) -> None:
    async with client_of(cluster) as client:
        await fill(client, 3)
        found = await lease(client)
        for _ in range(3):
            assert await say(client, found, word) == [True] * 3
        again = await lease(client, wait=1)
        assert len(again) == (0 if word in ("ack", "dead_letter") else 3)
        assert {each.attempt for each in again} <= {1 if word == "return" else 2}, "it was done once"
        assert await say(client, found, word) == [True] * 3, "also when another lease has it"
        for other in {"nack", "return", "extend"} - {word}:
            assert await say(client, found, other) == [False] * 3
        assert await say(client, again) == [True] * len(again)
        assert len(await dead(client)) == (3 if word == "dead_letter" else 0)
        described = await client.queues.describe(GROUP)
        assert (described.backlog, described.leased) == (0, 0)


@in_cluster("a:1")
async def test_the_last_nack_counts_again_and_leaves_one_dead_letter(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 1)
        found = await lease(client, attempts_max=1)
        for _ in range(3):
            assert await say(client, found, "nack", error="down") == [True]
        async with client.consumer(f"{GROUP}.dlq", until_end=True) as consumer:
            assert [message.value async for message in consumer] == [b"0"]


@in_cluster("a:1")
async def test_the_last_attempt_and_a_dead_letter_go_to_the_topic_with_their_errors(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 2)
        for attempt in (1, 2, 3):
            found = await lease(client, attempts_max=3)
            assert {each.attempt for each in found} == {attempt}
            if attempt == 1:
                assert await say(client, found[1:], "dead_letter", error="not wanted") == [True]
            assert await say(client, found[:1], "nack", error=f"failure {attempt}") == [True]
        assert await lease(client, wait=1) == []
        assert await dead(client) == {b"0": "failure 3", b"1": "not wanted"}
        assert (await client.queues.describe(GROUP)).backlog == 0


@in_cluster("a:1")
async def test_without_dead_letters_the_last_attempt_drops_the_message(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 1)
        assert await say(client, await lease(client, attempts_max=1, dead_letters=False), "nack") == [True]
        assert await lease(client, wait=1) == []
        assert await dead(client) == {}


@in_cluster("a:1")
async def test_a_forged_handle_puts_nothing_into_the_dead_letters(cluster: Cluster) -> None:
    """It says what no lease says: another offset, another lease, an attempt that was the last."""
    async with client_of(cluster) as client:
        await fill(client, 3)
        [mine] = await lease(client, 1)
        handle = lease_of_handle(mine.handle)
        forged = [
            handle._replace(offset=2),
            handle._replace(lease=handle.lease._replace(number=handle.lease.number + 1)),
            handle._replace(lease=handle.lease._replace(epoch=handle.lease.epoch + 1)),
            handle._replace(offset=10_000),
        ]
        for one in forged:
            leased = replace(mine, handle=handle_of_lease(one._replace(attempt=60)))
            assert await say(client, [leased], "dead_letter") == [False]
            assert await say(client, [leased], "nack") == [False]
        other_topic = handle._replace(lease=handle.lease._replace(topic_id=handle.lease.topic_id + 99))
        [result] = await client.queues.answer([LeaseAnswer(handle_of_lease(other_topic))])
        assert not result.counts
        assert isinstance(result.error, errors.UnknownTopic)
        other_partition = handle._replace(at=ledgermq.TopicPartition("jobs", 7))
        results = await client.queues.answer([LeaseAnswer(handle_of_lease(other_partition)), LeaseAnswer(mine.handle)])
        assert isinstance(results[0].error, errors.UnknownPartition)
        assert results[1].counts, "one that fails takes nothing from the others"
        assert await dead(client) == {}


@in_cluster("a:1")
async def test_one_filter_counts(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("jobs", 1)
        async with client.producer() as producer:
            for number in range(6):
                producer.send("jobs", b"%d" % number, tag="even" if number % 2 == 0 else "odd")
        assert numbers(found := await lease(client, 3, filter="even")) == [0, 2]
        for other in ("odd", ""):
            with pytest.raises(errors.FilterConflict):
                await lease(client, filter=other)
        assert await say(client, found) == [True, True]
        assert numbers(found := await lease(client, filter="even")) == [4]
        assert await say(client, found) == [True]
        await asyncio.sleep(16)
        assert await lease(client, wait=1, filter="odd") == [], "the former filter has finished the others"
        assert (await client.queues.describe(GROUP)).backlog == 0


@in_cluster("a:1", "b:1", "c:1")
async def test_what_comes_too_late_is_returned(cluster: Cluster) -> None:
    """Owners answer one call side by side; the first answer ends it. Nothing waits for the end of a lease then."""
    async with client_of(cluster) as client:
        await client.create_topic("jobs", 6)
        waiting = asyncio.create_task(lease(client, 1, wait=20))
        await asyncio.sleep(3)
        async with client.producer(linger_ms=0) as producer:
            for number in range(60):
                producer.send("jobs", b"%d" % number, partition=number % 6)
        found = list(await waiting)
        began_s = asyncio.get_running_loop().time()
        while len(found) < 60:
            found += await lease(client, 7)
            assert asyncio.get_running_loop().time() - began_s < 25, "a lease lasts 30 seconds"
        assert sorted(numbers(found)) == list(range(60))
        assert {each.attempt for each in found} == {1}


@in_cluster("a:1")
async def test_a_call_that_is_cut_leaves_no_lease(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 1)
        [mine] = await lease(client, wait=1)
        assert await say(client, [mine], "return") == [True]
        for delay_s in (0.0, 0.001, 0.01, 0.1, 1.0):
            waiting = asyncio.create_task(lease(client, wait=20))
            await asyncio.sleep(delay_s)
            waiting.cancel()
            await asyncio.wait([waiting])
            found = [] if waiting.cancelled() else list(waiting.result())
            found = found or list(await lease(client, wait=10))
            assert [each.attempt for each in found] == [1]
            assert await say(client, found, "return") == [True]


@in_cluster("a:1", "b:1")
async def test_handles_of_an_owner_that_died_are_late(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 20)
        found = await lease(client)
        assert await say(client, found[:10]) == [True] * 10
        await cluster.stop(await cluster.owner_of("jobs", 0), graceful=False)
        assert await say(client, found[10:]) == [False] * 10
        again = await lease(client, wait=30)
        assert numbers(again) == list(range(10, 20))
        assert await say(client, again) == [True] * 10


@in_cluster("a:1")
async def test_a_client_that_closes_ends_what_is_under_way(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("jobs", 2)
        assert await lease(client, wait=0) == []
        with pytest.raises(errors.UnknownTopic):
            await client.queues.lease("nothing", GROUP, wait=20)
    with pytest.raises(errors.Closed):
        await lease(client)


@in_cluster("a:1")
async def test_what_is_refused(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client, 1)
        [mine] = await client.queues.lease("jobs", GROUP, caller="alice")
        for answer in (
            LeaseAnswer("nothing"),
            LeaseAnswer(mine.handle, "drop"),  # type: ignore[arg-type]
            LeaseAnswer(mine.handle, "nack", seconds=float("nan")),
            LeaseAnswer(mine.handle, "extend", seconds=1e9),
            LeaseAnswer(mine.handle, "nack", error="x" * 20_000),
        ):
            with pytest.raises(errors.InvalidRequest):
                await client.queues.answer([LeaseAnswer(mine.handle), answer], caller="alice")
        with pytest.raises(errors.InvalidRequest, match="another caller"):
            await client.queues.answer([LeaseAnswer(mine.handle)], caller="bob")
        with pytest.raises(errors.InvalidRequest, match="2000"):
            await client.queues.answer([LeaseAnswer(mine.handle)] * 2001)
        assert (await client.queues.describe(GROUP)).leased == 1, "nothing was sent"
        [result] = await client.queues.answer([LeaseAnswer(mine.handle)], caller="alice")
        assert result.counts
        with pytest.raises(errors.InvalidConfig):
            await lease(client, lease_s=0.1)
        with pytest.raises(errors.InvalidRequest):
            await lease(client, 0)
