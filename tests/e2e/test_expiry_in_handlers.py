"""Times to live in handlers: what expires while it waits, fails, is stored, or becomes a dead letter."""

from __future__ import annotations

import asyncio

import pytest

import ledgermq
from ledgermq import Retry, errors
from ledgermq.client.groups import retry_topics
from ledgermq.client.messages.expiry import EXPIRES_MS
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.expiring import send, values
from tests.e2e.group_clients import committed
from tests.e2e.retrying import running
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until


@in_cluster("a:1")
async def test_a_handler_is_not_called_with_a_message_that_expired_while_it_waited_for_its_turn(
    cluster: Cluster,
) -> None:
    called: list[int] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)

        @client.handler("t", group="g", commit_interval_ms=100)
        async def handle(message: ledgermq.GroupMessage) -> None:
            called.extend(values([message]))
            await asyncio.sleep(6)

        await send(client, "t", 5, 10, 10, 100, 10)
        async with running(client):
            await until(lambda: handle.handled + handle.expired == 5)
            await asyncio.sleep(1)
            assert await committed(cluster, "g", "t") == {0: 5}
        assert called == [0, 1, 3]
        assert (handle.handled, handle.expired) == (3, 2)


@in_cluster("a:1")
async def test_a_message_that_keeps_failing_in_place_is_given_up_when_it_expires(cluster: Cluster) -> None:
    called: list[int] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)

        @client.handler("t", group="g", retry=Retry.in_order(wait_ms_first=1000, wait_ms_max=1000))
        async def handle(message: ledgermq.GroupMessage) -> None:
            called.extend(values([message]))
            if message.value == b"0":
                raise ZeroDivisionError

        await send(client, "t", 5, None)
        async with running(client):
            await until(lambda: handle.handled == 1)
        assert called[-1] == 1
        assert 4 <= called.count(0) <= 10
        assert (handle.expired, handle.failures) == (1, called.count(0))


@in_cluster("a:1")
async def test_a_transactional_handler_commits_over_what_was_skipped(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await client.create_topic("out", 1)

        @client.handler("t", group="g", transactional=True)
        async def handle(message: ledgermq.GroupMessage) -> ledgermq.Outgoing:
            return ledgermq.Outgoing("out", message.value, ttl=100)

        await send(client, "t", 1, None, 1, 1)
        await asyncio.sleep(2)
        async with running(client):
            await until(lambda: handle.handled == 1)

            async def is_at(offset: int) -> bool:
                return await committed(cluster, "g", "t") == {0: offset}

            await until(lambda: is_at(4))
            await send(client, "t", 1, 1, first=4, age_s=2)
            await until(lambda: is_at(6))
        assert handle.expired == 5
        async with client.consumer("out", until_end=True) as consumer:
            [made] = [message async for message in consumer]
        assert dict(made.headers)[EXPIRES_MS].isdigit()


@in_cluster("a:1")
async def test_a_message_in_a_local_store_expires_there(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = tmp_path_factory.mktemp("retry") / "g.retry"
    called = 0
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)

        @client.handler("t", group="g", ordered_by=None, retry=Retry.metaq(1, store=store, recover_every_s=10))
        async def handle(message: ledgermq.GroupMessage) -> None:
            nonlocal called
            called += 1
            raise ZeroDivisionError

        await send(client, "t", 35)
        async with running(client):
            await until(lambda: handle.expired)
            await until(lambda: handle.stored == 0)
        assert 3 <= called <= 5


# -- dead letters


@in_cluster("a:1")
async def test_expired_messages_become_dead_letters_if_wished(cluster: Cluster) -> None:
    called: list[int] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, {"message.ttl.ms": 10_000})

        @client.handler(
            "t",
            group="g",
            ordered_by=None,
            retry=Retry.levels(3, [1], expired="dead_letter"),
            commit_interval_ms=100,
            failed_held_max=3,
        )
        async def handle(message: ledgermq.GroupMessage) -> None:
            called.extend(values([message]))

        async with client.producer() as producer:
            await producer.send("t", "0", key="k", headers={"mine": "1"}, tag="x", ttl=1, partition=0)
            now_ms = round(client._context.connections.now().timestamp() * 1000)
        await send(client, "t", *[1] * 20, 100, None, first=1)
        await asyncio.sleep(20)
        async with running(client):
            await until(lambda: handle.dead_lettered == 22)
            await asyncio.sleep(1)
            assert await committed(cluster, "g", "t") == {0: 23}
        assert called == [21]
        assert (handle.expired, handle.retried, handle.exhausted, handle.failures) == (22, 0, 0, 0)
        async with client.consumer("g.dlq", until_end=True) as consumer:
            dead = [message async for message in consumer]
        assert sorted(values(dead)) == [*range(21), 22]
        first = next(message for message in dead if message.value == b"0")
        assert (first.key, first.tag) == (b"k", "x")
        failures = retry_topics.failures_of(first.headers)
        assert failures is not None
        assert (failures.group, failures.origin, failures.attempts, failures.error) == ("g", ("t", 0, 0), 0, "expired")
        assert retry_topics.without_failures(first.headers) == (("mine", b"1"),)
        noted_ms = int(dict(first.headers)[retry_topics.DEAD_EXPIRES_MS] or b"")
        assert abs(noted_ms - now_ms - 1000) < 100
        last = next(message for message in dead if message.value == b"22")
        assert retry_topics.DEAD_EXPIRES_MS in dict(last.headers), "the setting of its topic"


@in_cluster("a:1", message_ttl_ms=500)
@pytest.mark.parametrize("expired", ["skip", "dead_letter"])
async def test_a_copy_expires_when_its_original_would(cluster: Cluster, expired: str) -> None:
    """The broker's setting is shorter than the wait, and counts for neither retry topics nor dead letters."""
    called: list[tuple[int, int]] = []
    async with client_of(cluster) as client:
        await client.create_topic("t", 1, {"message.ttl.ms": 100_000})
        retry = Retry.levels(9, [30], expired=expired)  # type: ignore[arg-type]

        @client.handler("t", group="g", ordered_by=None, retry=retry, commit_interval_ms=100)
        async def handle(message: ledgermq.GroupMessage) -> None:
            called.append((*values([message]), message.attempt))
            raise ZeroDivisionError("never")

        await send(client, "t", None, 70, 1000)
        async with running(client):
            await until(lambda: handle.expired == 2, timeout_s=600)
            await until(lambda: (2, 9) in called, timeout_s=600)
            await until(lambda: handle.dead_lettered == (3 if expired == "dead_letter" else 1))
        assert [attempt for number, attempt in called if number == 0] == [1, 2, 3, 4]
        assert [attempt for number, attempt in called if number == 1] == [1, 2, 3]
        assert [attempt for number, attempt in called if number == 2] == list(range(1, 10))
        async with client.consumer("g.dlq", until_end=True) as consumer:
            dead = [message async for message in consumer]
        found = {int(each.value or b""): retry_topics.failures_of(each.headers) for each in dead}
        attempts = {number: (each.attempts, each.error) for number, each in found.items() if each is not None}
        if expired == "skip":
            assert set(attempts) == {2}
        else:
            assert attempts[0] == (4, "expired")
            assert attempts[1] == (3, "expired")
        assert attempts[2][0] == 9
        assert EXPIRES_MS not in {name for each in dead for name, _ in each.headers}
        await asyncio.sleep(2000)
        async with client.consumer("g.dlq", until_end=True) as consumer:
            assert len([message async for message in consumer]) == len(dead), "dead letters do not expire"


@in_cluster("a:1")
async def test_expired_as_dead_letters_and_delivered_at_once_is_refused(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        retry = Retry.levels(expired="dead_letter")
        with pytest.raises(errors.InvalidConfig, match="deliver_expired"):
            client.consumer("t", group="g", retry=retry, deliver_expired=True)
        with pytest.raises(errors.InvalidConfig, match="expired"):
            Retry.levels(expired="drop")  # type: ignore[arg-type]
