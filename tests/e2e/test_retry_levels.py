"""`Retry.levels` and `nack` on brokers in virtual time: each failed message is in exactly one place, its
topic, the retry topic or the dead-letter topic, and stops nothing behind it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

import ledgermq
from ledgermq import Retry, errors
from ledgermq.buffers import MIB
from ledgermq.client.groups import retry_topics
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import committed, fill
from tests.e2e.retrying import all_of, running, until_in
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until


@in_cluster("a:1")
async def test_a_message_that_keeps_failing_ends_in_the_dead_letter_topic_and_stops_nothing(cluster: Cluster) -> None:
    calls: Counter[retry_topics.Origin] = Counter()
    attempts: list[int] = []

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            for number in range(10):
                await producer.send("t", f"{number}", key=f"k{number}", headers={"mine": "1"}, tag="x", partition=0)

        @client.handler("t", group="g", ordered_by=None, retry=Retry.levels(3, [0]), commit_interval_ms=100)
        async def handle(message: ledgermq.GroupMessage) -> None:
            calls[message.origin] += 1
            if message.value == b"4":
                attempts.append(message.attempt)
                raise ZeroDivisionError("four")

        async with running(client):
            await until(lambda: handle.dead_lettered)
            await until(lambda: len(calls) == 10)
        assert attempts == [1, 2, 3]
        assert calls[retry_topics.Origin("t", 0, 4)] == 3
        assert sum(calls.values()) == 12
        assert (handle.handled, handle.failures, handle.retried, handle.dead_lettered, handle.exhausted) == (
            9,
            3,
            2,
            1,
            1,
        )
        assert await committed(cluster, "g", "t") == {0: 10}
        [dead] = await until_in(client, "g.dlq", 1)
        assert (dead.key, dead.value, dead.tag) == (b"k4", b"4", "x")
        failures = retry_topics.failures_of(dead.headers)
        assert failures is not None
        assert (failures.group, failures.origin, failures.attempts) == ("g", ("t", 0, 4), 3)
        assert "four" in failures.error
        assert retry_topics.without_failures(dead.headers) == (("mine", b"1"),)
        await until_in(client, "g.retry", 2)


@in_cluster("a:1")
async def test_each_attempt_waits_for_its_level_and_stops_nothing(cluster: Cluster) -> None:
    called_s: list[float] = []
    others: list[float] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)

        @client.handler("t", group="g", ordered_by=None, retry=Retry.levels(4, "10s 1m 5m"), commit_interval_ms=100)
        async def handle(message: ledgermq.GroupMessage) -> None:
            now_s = asyncio.get_running_loop().time()
            if message.value != b"poison":
                others.append(now_s)
                return
            called_s.append(now_s)
            raise ZeroDivisionError

        async with running(client), client.producer() as producer:
            await producer.send("t", "poison", partition=0)
            for _ in range(40):
                await asyncio.sleep(10)
                await producer.send("t", "fine", partition=0)
            await until(lambda: handle.dead_lettered)
        waits_s = [after - before for before, after in pairwise(called_s)]
        assert len(waits_s) == 3
        for waited_s, level_s in zip(waits_s, (10, 60, 300), strict=True):
            assert level_s - 0.01 <= waited_s <= level_s + 5, waits_s
        assert len(others) == 40
        [dead] = await until_in(client, "g.dlq", 1)
        failures = retry_topics.failures_of(dead.headers)
        assert failures is not None
        assert failures.attempts == 4


@in_cluster("a:1")
async def test_a_waiting_message_waits_on_at_the_next_member(cluster: Cluster) -> None:
    """Each member begins where the group has committed; the message that waits is not committed."""
    called: list[tuple[int, float]] = []
    begun_s = asyncio.get_running_loop().time()
    for life in range(3):
        async with client_of(cluster) as client:
            if life == 0:
                await client.create_topic("t", 1)
                await fill(client, "t", 1)

            @client.handler("t", group="g", ordered_by=None, retry=Retry.levels(2, [100]), commit_interval_ms=100)
            async def handle(message: ledgermq.GroupMessage) -> None:
                called.append((message.attempt, asyncio.get_running_loop().time() - begun_s))
                if message.attempt == 1:
                    raise ZeroDivisionError

            async with running(client):
                if life == 2:
                    await until(lambda: len(called) == 2)
                else:
                    await asyncio.sleep(20)
    (first, first_s), (second, second_s) = called
    assert (first, second) == (1, 2)
    assert 99.9 <= second_s - first_s <= 110


@in_cluster("a:1")
async def test_a_message_is_not_moved_before_the_prefix_below_it_is_committed(cluster: Cluster) -> None:
    gate = asyncio.Event()
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 6)

        @client.handler("t", group="g", ordered_by=None, concurrency=4, retry=Retry.levels(1), commit_interval_ms=100)
        async def handle(message: ledgermq.GroupMessage) -> None:
            if message.offset == 1:
                await gate.wait()
            if message.offset == 3:
                raise ZeroDivisionError

        async with running(client):
            await until(lambda: handle.handled == 4)
            await asyncio.sleep(5)
            assert await committed(cluster, "g", "t") == {0: 1}
            assert await all_of(client, "g.dlq") == [], "its offset is not committed, so it may be delivered again"
            gate.set()
        assert await committed(cluster, "g", "t") == {0: 6}
        await until_in(client, "g.dlq", 1)  # stopping moves what has failed


@in_cluster("a:1")
async def test_a_topic_of_another_program_is_not_used(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await client.create_topic("g.dlq", 1)
        await fill(client, "g.dlq", 1)
        with pytest.raises(errors.InvalidConfig, match=r"'g\.dlq' has records that group 'g' did not put there"):
            async with client.consumer("t", group="g", retry=Retry.levels()) as consumer:
                await consumer.fetch()


@pytest.mark.slow
@in_cluster("a:1")
async def test_a_copy_that_waits_for_long_holds_up_no_other_attempt(cluster: Cluster) -> None:
    """Both copies are in one partition of the retry topic, the one that waits first."""
    called: list[tuple[bytes, int, int]] = []
    begun_s = asyncio.get_running_loop().time()
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)

        @client.handler("t", group="g", ordered_by=None, retry=Retry.levels(5, [10]), commit_interval_ms=100)
        async def handle(message: ledgermq.GroupMessage) -> None:
            now_s = round(asyncio.get_running_loop().time() - begun_s)
            called.append((message.value or b"", message.attempt, now_s))
            if message.value == b"late":
                assert message.nack(3600) or message.attempt == 2
            else:
                raise ZeroDivisionError

        async with running(client), client.producer() as producer:
            await producer.send("t", "late", partition=0)
            await asyncio.sleep(5)
            await producer.send("t", "soon", partition=0)
            await until(lambda: handle.dead_lettered, 8000)
            soon = [(attempt, at_s) for value, attempt, at_s in called if value == b"soon"]
            assert [attempt for attempt, _ in soon] == [1, 2, 3, 4, 5]
            assert all(after - before <= 10 + 30 + 2 for (_, before), (_, after) in pairwise(soon)), soon
            assert await committed(cluster, "g", "g.retry") != {}, "a crash would repeat little"
            await until(lambda: len(called) == 7, 8000)
        [(_, second_s)] = [(attempt, at_s) for value, attempt, at_s in called if value == b"late" and attempt == 2]
        assert 3599 <= second_s <= 3605, "the wait is what it was"
        assert handle.retried == 1 + 4 + 1, "what was carried is not counted"


@in_cluster("a:1")
async def test_a_pattern_takes_in_no_dead_letters_of_its_group(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 2)
        with pytest.raises(errors.InvalidConfig, match=r"'\^\.\*' matches 'g\.dlq'"):
            client.consumer("^.*", group="g", retry=Retry.levels())
        async with client.consumer("^t$", group="g", commit="acked", retry=Retry.levels(1)) as consumer:
            for message in await consumer.fetch():
                assert message.nack()
        await until_in(client, "g.dlq", 2)


@in_cluster("a:1")
async def test_members_with_long_names_do_not_fence_each_other(cluster: Cluster) -> None:
    """Names of pods differ at their ends."""
    names = [f"mailer-production-europe-west-7d9f8b6c5d-replica-{number}" for number in range(2)]
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        retry = Retry.levels(1)
        async with (
            client.consumer("t", group="g", commit="acked", instance_id=names[0], retry=retry) as first,
            client.consumer("t", group="g", commit="acked", instance_id=names[1], retry=retry) as second,
        ):
            members = (first, second)
            await asyncio.gather(*(member.wait_ready() for member in members))
            await until(lambda: all(any(at.topic == "t" for at in member.assignment) for member in members))
            for round_ in range(2):
                async with client.producer() as producer:
                    for partition in range(2):
                        await producer.send("t", f"{round_}", partition=partition)
                for member in members:
                    [message] = [each for each in await member.fetch(timeout=10) if each.topic == "t"]
                    assert message.dead_letter()
                    await member.commit()
        await until_in(client, "g.dlq", 4)


class Unspeakable(Exception):
    def __repr__(self) -> str:
        raise ZeroDivisionError


@in_cluster("a:1")
async def test_an_error_without_a_text_stops_only_its_message(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 3)

        @client.handler(
            "t",
            group="g",
            ordered_by=None,
            retry=Retry.levels(1),
            commit_interval_ms=100,
            on_failure=lambda message, error, attempt: message.extend(1),
            timeout_s=60,
        )
        async def handle(message: ledgermq.GroupMessage) -> None:
            if message.offset == 1:
                raise Unspeakable

        async with running(client):
            await until(lambda: handle.handled == 2 and handle.dead_lettered == 1)
        [dead] = await until_in(client, "g.dlq", 1)
        failures = retry_topics.failures_of(dead.headers)
        assert failures is not None
        assert failures.error == "Unspeakable, whose text raises ZeroDivisionError"


@in_cluster("a:1")
async def test_more_than_a_producer_holds_is_moved_in_several_transactions(cluster: Cluster) -> None:
    """The producer of the moves refuses more than 128 MiB at a time."""
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        retry = Retry.levels(1)
        bounds = {"failed_held_bytes_max": 1024 * MIB, "commit_interval_ms": 1000}
        async with client.consumer("t", group="g", commit="acked", retry=retry, **bounds) as consumer:
            count = 0
            async with client.producer() as producer:
                for _ in range(5):
                    await producer.send_many("t", [bytes(900_000)] * 32)
            async for message in consumer:
                count += 1
                if message.offset > 0:
                    assert message.dead_letter()
                else:
                    first = message
                if count == 160:
                    break
            first.ack()
            await asyncio.sleep(30)
        assert await committed(cluster, "g", "t") == {0: 160}
        await until_in(client, "g.dlq", 159)


@in_cluster("a:1")
async def test_the_retry_topic_allows_what_a_topic_of_the_group_allows_later(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)

        @client.handler("t", group="g", ordered_by=None, retry=Retry.levels(1), commit_interval_ms=100)
        async def handle(message: ledgermq.GroupMessage) -> None:
            raise ZeroDivisionError

        async with running(client):
            await fill(client, "t", 1)
            await until(lambda: handle.dead_lettered == 1)
            await client.alter_topic("t", settings={"max.message.bytes": 4 * MIB})
            async with client.producer() as producer:
                await producer.send("t", bytes(3 * MIB))
            await until(lambda: handle.dead_lettered == 2)
        assert await committed(cluster, "g", "t") == {0: 2}


@in_cluster("a:1")
async def test_headers_that_are_damaged_stop_no_other_message(cluster: Cluster) -> None:
    huge = b"9" * 5000
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        retry = Retry.levels(1)
        async with client.consumer("t", group="g", commit="acked", retry=retry) as consumer, client.producer() as send:
            await consumer.wait_ready()
            whole = dict(retry_topics.headers_of(retry_topics.Failures("g", retry_topics.Origin("t", 0, 0), 1, 5, "")))
            damaged = [
                whole | {retry_topics.DUE_MS: huge[:400]},
                whole | {retry_topics.DUE_MS: huge},
                whole | {retry_topics.FIRST_MS: huge[:400]},
                whole | {retry_topics.ATTEMPT: b"-5"},
            ]
            for headers in damaged:
                await send.send("g.retry", "x", headers=list(headers.items()), partition=0)
            found: list[ledgermq.GroupMessage] = []
            while len(found) < len(damaged):
                found += await consumer.fetch(timeout=10)
            assert [message.attempt for message in found] == [2, 2, 1, 1]
