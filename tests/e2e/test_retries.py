"""Retry policies that keep the order, on brokers in virtual time: which waits, how often, what then."""

from __future__ import annotations

import pytest

import ledgermq
from ledgermq import Retry
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import committed, fill
from tests.e2e.retrying import Calls, running
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until

# -- in order


@in_cluster("a:1")
async def test_in_order_calls_so_often_as_max_attempts_says_and_drops(cluster: Cluster) -> None:
    calls = Calls(2)
    retry = Retry.in_order(max_attempts=4, then="drop", wait_ms_first=1000, wait_ms_max=3000)
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 10)
        handler = client.handler("t", group="g", retry=retry, concurrency=2)(calls)
        async with running(client):
            await until(lambda: calls.done[1, 4])
            assert calls.done.keys() == {(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (0, 0), (0, 1)}, "only its lane waits"
            await until(lambda: calls.done[0, 4])
        assert len(calls.at_s[0, 2]) == 4, "the first call included"
        assert all(low <= wait <= high + 0.1 for wait, (low, high) in zip(calls.waits(2), BOUNDS, strict=True))
        assert (handler.handled, handler.failures, handler.exhausted) == (9, 4, 1)
        assert await committed(cluster, "g", "t") == {0: 5, 1: 5}


BOUNDS = [(0.5, 1.0), (1.0, 2.0), (1.5, 3.0)]
"""Of the waits: doubled up to the largest, shortened by at most a half."""


@in_cluster("a:1")
async def test_in_order_stops_with_the_error_of_the_handler_and_acknowledges_nothing(cluster: Cluster) -> None:
    calls = Calls(3)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 6)
        client.handler("t", group="g", retry=Retry.in_order(max_attempts=2, then="stop"))(calls)
        with pytest.raises(ZeroDivisionError) as raised:
            await client.run_handlers()
        assert "group g" in raised.value.__notes__[0]
        assert "t/0, offset 3" in raised.value.__notes__[0]
        assert len(calls.at_s[0, 3]) == 2
        assert await committed(cluster, "g", "t") == {0: 3}


@in_cluster("a:1")
async def test_a_function_ends_a_message_and_one_that_fails_is_called_again(cluster: Cluster) -> None:
    calls = Calls(1)
    given: list[tuple[int, Exception]] = []

    async def keep(message: ledgermq.GroupMessage, error: Exception) -> None:
        given.append((message.offset, error))
        if len(given) < 3:
            raise OSError("no room")

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 3)
        handler = client.handler("t", group="g", retry=Retry.in_order(max_attempts=2, then=keep))(calls)
        async with running(client):
            await until(lambda: calls.done[0, 2])
        assert [offset for offset, _ in given] == [1, 1, 1]
        assert all(isinstance(error, ZeroDivisionError) for _, error in given)
        assert len(calls.at_s[0, 1]) == 4, "two calls, and one before each repetition of the function"
        assert handler.exhausted == 1
        assert await committed(cluster, "g", "t") == {0: 3}


@in_cluster("a:1")
async def test_without_a_bound_a_message_is_handled_until_it_succeeds(cluster: Cluster) -> None:
    calls = Calls(0)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 2)
        client.handler("t", group="g", retry=Retry.in_order())(calls)
        async with running(client):
            await until(lambda: len(calls.at_s[0, 0]) == 50, timeout_s=3600)
            assert not calls.done
            calls.poison.clear()
            await until(lambda: calls.done[0, 1])


@in_cluster("a:1")
async def test_a_broadcast_repeats_a_message_if_its_policy_is_given(cluster: Cluster) -> None:
    calls = Calls(0)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 2)
        retry = Retry.in_order(max_attempts=3, then="drop")
        client.handler("t", group="g", broadcast=True, retry=retry)(calls)
        async with running(client):
            await until(lambda: calls.done[0, 1])
        assert len(calls.at_s[0, 0]) == 3


@in_cluster("a:1")
async def test_a_transactional_handler_takes_its_waits_from_the_policy(cluster: Cluster) -> None:
    calls = Calls(0)
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 1)
        retry = Retry.in_order(wait_ms_first=20_000, wait_ms_max=20_000)
        client.handler("t", group="g", transactional=True, transactional_id="x", retry=retry)(calls)
        async with running(client):
            await until(lambda: len(calls.at_s[0, 0]) == 3)
            assert all(10 <= wait <= 22 for wait in calls.waits(0))
            calls.poison.clear()
            await until(lambda: calls.done[0, 0])
