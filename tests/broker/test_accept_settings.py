"""`accept.publish` and `accept.subscribe` close a topic on every way in and every way out; in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pyarrow as pa
import pytest

import ledgermq
from ledgermq.errors import PublishNotAccepted, SubscribeNotAccepted
from tests.broker.cluster import Cluster, cluster_of
from tests.virtual_time import virtual

Way = Callable[[ledgermq.Client], Awaitable[object]]


async def fetched(client: ledgermq.Client) -> object:
    async with client.consumer("t", start="earliest") as consumer:
        return [message.value for message in await consumer.fetch(timeout=20)]


async def fetched_as_table(client: ledgermq.Client) -> object:
    async with client.consumer("t", start="earliest") as consumer:
        return (await consumer.fetch_arrow(timeout=20)).column("value").to_pylist()


async def read_as_table(client: ledgermq.Client) -> object:
    return (await client.read_arrow("t")).column("value").to_pylist()


async def fetched_by_a_group(client: ledgermq.Client) -> object:
    async with client.consumer("t", group="g", start="earliest") as consumer:
        return [message.value for message in await consumer.fetch(timeout=20)]


async def fetched_from_a_queue(client: ledgermq.Client) -> object:
    async with client.queue("t", group="q", request_timeout_s=20) as queue:
        return [message.value for message in await queue.fetch(timeout=20)]


async def found_by_key(client: ledgermq.Client) -> object:
    return [message.value for message in await client.find("t", key="k").all()]


async def found_by_id(client: ledgermq.Client) -> object:
    return [message.value for message in await client.find(id="t:0:0").all()]


@pytest.mark.parametrize(
    "read",
    [
        fetched,
        fetched_as_table,
        read_as_table,
        fetched_by_a_group,
        fetched_from_a_queue,
        found_by_key,
        found_by_id,
    ],
)
def test_a_topic_that_accepts_no_readers_is_read_on_no_way(read: Way) -> None:
    @virtual
    async def scenario() -> None:
        async with cluster_of("a:1") as cluster:
            client = await closed(cluster, "accept.subscribe")
            with pytest.raises(SubscribeNotAccepted, match=r"'t' does not accept fetching.*accept\.subscribe = false"):
                await read(client)
            await client.alter_topic("t", unset=["accept.subscribe"])
            assert await read(client) == [b"there"]
            await client.close()

    scenario()


async def sent(client: ledgermq.Client) -> object:
    async with client.producer() as producer:
        return await producer.send("t", b"new", key="k")


async def sent_without_a_session(client: ledgermq.Client) -> object:
    async with client.producer(idempotent=False) as producer:
        return await producer.send("t", b"new", key="k")


async def sent_as_a_table(client: ledgermq.Client) -> object:
    async with client.producer() as producer:
        return await producer.send_batch("t", pa.table({"value": [b"new"]}))


async def sent_for_later(client: ledgermq.Client) -> object:
    async with client.producer() as producer:
        return await producer.send("t", b"new", delay=1)


async def sent_in_a_transaction(client: ledgermq.Client) -> object:
    async with client.transactions("x") as transactions, transactions.begin() as transaction:
        return await transaction.send("t", b"new", key="k")


async def sent_for_later_in_a_transaction(client: ledgermq.Client) -> object:
    async with client.transactions("x") as transactions, transactions.begin() as transaction:
        return await transaction.send("t", b"new", delay=1)


async def sent_as_a_half_message(client: ledgermq.Client) -> object:
    async with client.half_messages("checkers", check=lambda message: "unknown") as half:
        message = await half.send("t", b"new", key="k")
        await message.commit()
        return message


@pytest.mark.parametrize(
    "send",
    [
        sent,
        sent_without_a_session,
        sent_as_a_table,
        sent_for_later,
        sent_in_a_transaction,
        sent_for_later_in_a_transaction,
        sent_as_a_half_message,
    ],
)
def test_a_topic_that_accepts_no_records_gets_them_on_no_way(send: Way) -> None:
    @virtual
    async def scenario() -> None:
        async with cluster_of("a:1") as cluster:
            client = await closed(cluster, "accept.publish")
            with pytest.raises(PublishNotAccepted, match=r"'t' does not accept producing.*accept\.publish = false"):
                await send(client)
            assert await fetched(client) == [b"there"]
            await client.alter_topic("t", unset=["accept.publish"])
            await send(client)
            async with client.consumer("t", start="earliest") as consumer:
                found = []
                while len(found) < 2:
                    found += [message.value for message in await consumer.fetch(timeout=60)]
            assert found == [b"there", b"new"]
            await client.close()

    scenario()


async def closed(cluster: Cluster, setting: str) -> ledgermq.Client:
    """A client, after one record was stored in a topic of which the setting is false then."""
    await cluster.create("t", 1)
    client = cluster.client()
    async with client.producer() as producer:
        await producer.send("t", b"there", key="k")
    await client.alter_topic("t", settings={setting: False})
    return client
