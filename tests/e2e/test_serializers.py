"""Serializers and interceptors through whole clients: every kind of producer and consumer takes them, and a bad
value stops none.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import ledgermq
import ledgermq.sync
from ledgermq import Retry, Serializer
from ledgermq.client.groups.retry_topics import failures_of
from ledgermq.errors import BadValue, InvalidRecord
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.retrying import running, until_in
from tests.e2e.test_client_takeover import client_of
from tests.waiting import until

JSON = Serializer.json()


def seen(message: ledgermq.Message) -> Any:
    """Its value, or BadValue."""
    try:
        return message.value
    except BadValue as error:
        return BadValue if error.record == message.stored else error


async def fill(client: ledgermq.Client, topic: str = "t") -> list[Any]:
    """One message is bad, one is a tombstone. Return what a consumer sees."""
    await client.create_topic(topic, 1)
    async with client.producer(serializer=JSON) as producer, client.producer() as plain:
        await producer.send(topic, {"n": 0}, key="k")
        await plain.send(topic, b"{bad")
        await (await producer.send_many(topic, [{"n": 2}, None, ledgermq.Record({"n": 4}, key="k")]))[2]
        with_bytes = producer.send  # bytes are no JSON: they do not pass as they are
        try:
            with_bytes(topic, b"bytes")
        except InvalidRecord:
            pass
        else:
            raise AssertionError("the serializer was not called")
    return [{"n": 0}, BadValue, {"n": 2}, None, {"n": 4}]


@in_cluster("a:1")
async def test_a_consumer_goes_on_behind_a_bad_value(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        expected = await fill(client)
        async with client.consumer("t", until_end=True, deserializer=JSON) as consumer:
            assert [seen(message) async for message in consumer] == expected
        async with client.consumer("t", until_end=True, deserializer=JSON) as consumer:
            assert [seen(message) for message in await consumer.fetch(10)] == expected
            assert consumer.at_end
        async with client.consumer("t", group="g", commit="acked", deserializer=JSON) as member:
            found = [await anext(member) for _ in expected]
            assert [seen(message) for message in found] == expected
            found[1].nack()
            assert seen(await anext(member)) is BadValue, "what comes again is read in the same way"


@in_cluster("a:1")
async def test_a_queue_hands_it_out_like_others(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        expected = await fill(client)
        async with client.queue("t", group="q", deserializer=JSON, interceptors=[mask], attempts_max=1) as queue:
            found = await queue.fetch(10, timeout=30)
            assert {message.key for message in found} == {b"*"}
            assert [seen(message) for message in found] == expected
            for message in found:
                message.nack() if seen(message) is BadValue else message.ack()
            await queue.flush()
        assert [(message.key, message.value) for message in await until_in(client, "q.dlq", 1)] == [(None, b"{bad")]


@in_cluster("a:1")
async def test_with_levels_a_bad_value_is_a_failed_message(cluster: Cluster) -> None:
    handled: list[Any] = []

    async with client_of(cluster) as client:
        await fill(client)
        retry = Retry.levels(2, "1s")

        @client.handler("t", group="g", ordered_by=None, retry=retry, deserializer=JSON, interceptors=[mask])
        async def handle(message: ledgermq.GroupMessage) -> None:
            handled.append((message.value, message.key))

        async with running(client):
            [dead] = await until_in(client, "g.dlq", 1)
        assert dead.value == b"{bad", "copies are what is stored, not what interceptors make of it"
        failures = failures_of(dead.headers)
        assert failures is not None
        assert (failures.attempts, failures.origin.offset) == (2, 1)
        assert "BadValue" in failures.error
        assert handled == [({"n": 0}, b"*"), ({"n": 2}, b"*"), (None, b"*"), ({"n": 4}, b"*")]


def mask(message: ledgermq.Message) -> ledgermq.Message:
    """An interceptor that notes if it gets its own result."""
    return message._replace(key=b"*" if message.key != b"*" else b"twice")


@in_cluster("a:1")
async def test_a_message_that_comes_again_is_intercepted_once(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await fill(client)
        async with client.consumer("t", group="g", commit="acked", interceptors=[mask]) as member:
            for _ in range(3):
                message = await anext(member)
                while message.offset:
                    message = await anext(member)
                assert (message.key, message.stored.key) == (b"*", b"k")
                message.nack()


@in_cluster("a:1")
async def test_queue_handlers_take_them(cluster: Cluster) -> None:
    worked: list[Any] = []

    async with client_of(cluster) as client:
        await fill(client)

        @client.queue_handler("t", group="q", deserializer=JSON, attempts_max=1)
        async def work(message: ledgermq.QueueMessage) -> None:
            worked.append(message.value)

        async with running(client):
            await until_in(client, "q.dlq", 1)
            await until(lambda: len(worked) == 4)
        assert sorted(map(str, worked)) == sorted(map(str, [{"n": 0}, {"n": 2}, None, {"n": 4}]))


@in_cluster("a:1")
async def test_a_store_of_failed_messages_keeps_bytes_and_calls_the_handler_with_values(
    cluster: Cluster, tmp_path: Path
) -> None:
    failing = {1, 4}
    handled: list[Any] = []

    async with client_of(cluster) as client:
        await fill(client)
        retry = Retry.metaq(store=tmp_path / "g.retry", attempts=1, recover_every_s=10)

        @client.handler("t", group="g", ordered_by=None, retry=retry, deserializer=JSON, interceptors=[mask])
        async def handle(message: ledgermq.GroupMessage) -> None:
            if message.offset in failing:
                raise ZeroDivisionError
            handled.append((message.offset, seen(message), message.key, message.stored.key))

        async with running(client):
            await until(lambda: handle.stored == 2)
            handled.clear()
            failing.clear()
            await until(lambda: handle.stored == 0)
        assert sorted(handled, key=str) == [(1, BadValue, b"*", None), (4, {"n": 4}, b"*", b"k")]


@in_cluster("a:1")
async def test_transactions_and_half_messages_take_a_serializer(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.transactions("tx", serializer=JSON) as transactions, transactions.begin() as transaction:
            transaction.send("t", {"n": 1})
        half_messages = client.half_messages("g", check=lambda message: "unknown", serializer=JSON)
        async with half_messages as half:
            await (await half.send("t", {"n": 2})).commit()
        async with client.producer(serializer=JSON) as producer:
            await producer.send("t", {"n": 3}, delay=2)
        assert [message.value for message in await until_in(client, "t", 3)] == [b'{"n":1}', b'{"n":2}', b'{"n":3}']


def test_the_synchronous_client_has_both() -> None:
    with ledgermq.sync.connect("memory://serializers") as client:
        client.create_topic("t", 1)
        stamped = itertools.count()

        def stamp(record: ledgermq.Outgoing) -> ledgermq.Outgoing:
            return record._replace(headers={"number": str(next(stamped))})

        with client.producer(serializer=JSON, interceptors=[stamp]) as producer:
            producer.send("t", {"n": 1}).result()
            producer.send_many("t", [{"n": 2}, None])
        with client.consumer("t", until_end=True, deserializer=JSON, interceptors=[mask]) as consumer:
            found = list(consumer)
        assert [message.value for message in found] == [{"n": 1}, {"n": 2}, None]
        assert [message.headers for message in found] == [(("number", b"%d" % number),) for number in range(3)]
        assert {message.key for message in found} == {b"*"}
