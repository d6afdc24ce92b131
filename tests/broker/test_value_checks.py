"""`value.validate`: brokers refuse values by the schemas of their topic, at the one place where all batches come in."""

from __future__ import annotations

from typing import Any

import pytest

import ledgermq
from ledgermq.errors import InvalidConfig, InvalidRecord
from tests.broker.cluster import cluster_of
from tests.virtual_time import virtual

ORDER: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "long"}]}
SUBJECT = {"value.schema.subject": "t-value"}
GOOD, BARE, OTHER, DAMAGED = b"\0\0\0\0\1\2", b"bare", b"\0\0\0\0\2\2", b"\0\0\0\0\1\2\2"


async def send(client: ledgermq.Client, *values: bytes | None, **named: Any) -> None:
    async with client.producer() as producer:
        for value in values:
            await producer.send("t", value, partition=0, **named)


async def stored(client: ledgermq.Client) -> list[bytes | None]:
    async with client.consumer("t", until_end=True) as consumer:
        return [message.value async for message in consumer]


@virtual
async def test_a_value_that_names_no_schema_is_refused_at_each_door() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("t", 1, SUBJECT | {"value.validate": "id"})
        await client.schemas.put("t-value", ORDER, "avro")
        await client.schemas.put("other", {"type": "record", "name": "X", "fields": []}, "avro")
        await send(client, GOOD, DAMAGED, None)
        with pytest.raises(InvalidRecord, match="value 0 of the batch names no schema"):
            await send(client, BARE)
        with pytest.raises(InvalidRecord, match="names schema 2, which is none of subject t-value"):
            await send(client, OTHER)
        with pytest.raises(InvalidRecord, match="names no schema"):
            async with client.producer() as producer:
                await producer.send("t", BARE, partition=0, delay=60)
        with pytest.raises(InvalidRecord, match="names no schema"):
            async with client.transactions("x") as transactions, transactions.begin() as transaction:
                await transaction.send("t", BARE, partition=0)
        assert await stored(client) == [GOOD, DAMAGED, None], "an id is all that is checked"


@virtual
async def test_a_schema_that_is_newer_than_the_broker_s_catalog_is_known_in_time() -> None:
    """It was registered at the controller; the owner of the partition asks before it refuses."""
    async with cluster_of("a:1", "b:1") as cluster, cluster.client() as client:
        await client.create_topic("t", 1, SUBJECT | {"value.validate": "id"})
        for number in range(1, 4):
            fields = [{"name": f"f{n}", "type": "long", "default": 0} for n in range(number)]
            await client.schemas.put("t-value", ORDER | {"fields": fields}, "avro")
            await send(client, b"\0\0\0\0" + bytes([number]) + b"\2")
        assert len(await stored(client)) == 3


@virtual
async def test_a_value_that_cannot_be_decoded_is_refused() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("t", 1, SUBJECT | {"value.validate": "full"})
        await client.schemas.put("t-value", ORDER, "avro")
        await send(client, GOOD, None)
        with pytest.raises(InvalidRecord, match="value 0 of the batch is bad: 1 bytes follow the value"):
            await send(client, DAMAGED)
        await client.alter_topic("t", settings={"value.validate": "none"})
        await send(client, DAMAGED)
        assert await stored(client) == [GOOD, None, DAMAGED]


@virtual
async def test_a_header_may_name_the_schema() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("t", 1, SUBJECT | {"value.validate": "full", "value.schema.framing": "header"})
        serializer = await client.schemas.serializer("t-value", ORDER, "avro", framing="header")
        async with client.producer(serializer=serializer) as producer:
            await producer.send("t", {"amount": 1}, partition=0)
        with pytest.raises(InvalidRecord, match="names no schema"):
            await send(client, b"\2")
        assert await stored(client) == [b"\2"]


@virtual
async def test_bare_values_are_checked_by_the_version_that_is_set() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("t", 1, SUBJECT | {"value.validate": "full", "value.schema.framing": "none"})
        with pytest.raises(InvalidRecord, match="subject t-value has no schema"):
            await send(client, b"\2")
        await client.schemas.put("t-value", ORDER, "avro")
        await send(client, b"\2")
        assert await stored(client) == [b"\2"]


@virtual
async def test_settings_that_check_nothing_are_refused() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        with pytest.raises(InvalidConfig, match=r"value.validate=id needs value\.schema\.subject"):
            await client.create_topic("t", 1, {"value.validate": "id"})
        with pytest.raises(InvalidConfig, match="needs values that name their schema"):
            await client.create_topic("t", 1, SUBJECT | {"value.validate": "id", "value.schema.framing": "none"})
