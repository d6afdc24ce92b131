"""Serializers that register their schema, and frame values with its id."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, wrappers_pb2

import ledgermq
from ledgermq.errors import BadValue, IncompatibleSchema, InvalidConfig, InvalidRecord, UnknownSchema
from tests.broker.cluster import cluster_of
from tests.virtual_time import virtual

ORDER: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "double"}]}
WIDER = ORDER | {"fields": [*ORDER["fields"], {"name": "table", "type": "int", "default": 7}]}


async def read(client: ledgermq.Client, deserializer: Any) -> list[ledgermq.Message[Any]]:
    async with client.consumer("orders", deserializer=deserializer, until_end=True) as consumer:
        return [message async for message in consumer]


@virtual
async def test_values_of_avro_are_read_by_the_schema_that_they_name() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("orders", 1)
        old = await client.schemas.serializer("orders-value", ORDER, "avro")
        new = await client.schemas.serializer("orders-value", WIDER, "avro")
        for serializer, value in ((old, {"amount": 1.5}), (new, {"amount": 2.5, "table": 3})):
            async with client.producer(serializer=serializer) as producer:
                await producer.send("orders", value)
        first, second = await read(client, new)
        assert [message.raw[:5] for message in (first, second)] == [b"\0\0\0\0\1", b"\0\0\0\0\2"]
        assert second.value == {"amount": 2.5, "table": 3}
        with pytest.raises(BadValue, match="its schema 1 is not known yet and is being looked up"):
            _ = first.value
        await asyncio.sleep(1)
        assert first.value == {"amount": 1.5, "table": 7}, "it was looked up meanwhile"
        loaded = await client.schemas.serializer("orders-value", ORDER, "avro", register=False)
        await loaded.load(1, 2)
        assert [message.value for message in await read(client, loaded)] == [{"amount": 1.5}, {"amount": 2.5}]
        newest = await client.schemas.serializer("orders-value")
        assert newest.id == 2


@virtual
async def test_values_of_json_schema_are_validated_both_ways() -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("orders", 1)
        serializer = await client.schemas.serializer("orders-value", schema, "json")
        async with client.producer(serializer=serializer) as producer:
            await producer.send("orders", {"amount": 2.5})
            with pytest.raises(InvalidRecord, match="amount"):
                producer.send("orders", {"amont": 2.5})
        async with client.producer() as producer:
            for raw in (b"\0\0\0\0\1{}", b"{}", b"\0\0\0", b"\0\0\0\0\1nothing"):
                await producer.send("orders", raw)
        good, *bad = await read(client, serializer)
        assert good.value == {"amount": 2.5}
        for message in bad:
            with pytest.raises(BadValue):
                _ = message.value


@virtual
async def test_values_of_protobuf_have_the_way_to_their_message() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("orders", 1)
        for kind, value, head in (
            (wrappers_pb2.DoubleValue, wrappers_pb2.DoubleValue(value=2.5), b"\0\0\0\0\1\0"),
            (wrappers_pb2.FloatValue, wrappers_pb2.FloatValue(value=2.5), b"\0\0\0\0\1\x02\x02"),
        ):
            serializer = await client.schemas.serializer("orders-value", kind)
            assert serializer.to_bytes(value).startswith(head)
            assert serializer.from_bytes(serializer.to_bytes(value)) == value
            with pytest.raises(TypeError):
                serializer.to_bytes(wrappers_pb2.Int32Value())
        with pytest.raises(ValueError, match="another message of its file"):
            serializer.from_bytes(b"\0\0\0\0\1\0")
        nested = descriptor_pb2.DescriptorProto.ExtensionRange
        made = await client.schemas.serializer("nested", nested)
        assert made.to_bytes(nested(start=1))[5:6] == b"\x04", "two indexes"


@virtual
async def test_bare_values_are_of_the_one_schema() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        serializer = await client.schemas.serializer("orders-value", ORDER, "avro", framing="none")
        assert len(serializer.to_bytes({"amount": 2.5})) == 8
        assert serializer.from_bytes(serializer.to_bytes({"amount": 2.5})) == {"amount": 2.5}


@virtual
async def test_a_header_names_the_schema_of_a_bare_value() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("orders", 1)
        old = await client.schemas.serializer("orders-value", ORDER, "avro", framing="header")
        new = await client.schemas.serializer("orders-value", WIDER, "avro", framing="header")
        await new.load(old.id)
        async with client.producer(serializer=old) as producer:
            await producer.send("orders", {"amount": 1.5}, headers={"x": b"y"})
        async with client.producer(serializer=new) as producer:
            await producer.send("orders", {"amount": 2.5, "table": 3})
            await producer.send("orders", None)
        async with client.producer() as producer:
            for headers in ({}, {"ledgermq.schema-id": b"x"}, {"ledgermq.schema-id": b"77"}):
                await producer.send("orders", old.to_bytes({"amount": 1.5}), headers=headers)
        first, second, tombstone, *bad = await read(client, new)
        assert first.headers == (("x", b"y"), ("ledgermq.schema-id", b"1"))
        assert len(first.raw) == 8, "bare"
        assert [first.value, second.value] == [{"amount": 1.5, "table": 7}, {"amount": 2.5, "table": 3}]
        assert tombstone.value is None
        for message in bad:
            with pytest.raises(BadValue):
                _ = message.value
        with pytest.raises(ValueError, match="in the header"):
            new.from_bytes(b"x")
        with pytest.raises(InvalidConfig, match="the first message of their file"):
            await client.schemas.serializer("other", wrappers_pb2.FloatValue, framing="header")


@virtual
async def test_what_a_serializer_refuses() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        with pytest.raises(UnknownSchema):
            await client.schemas.serializer("orders-value", ORDER, "avro", register=False)
        with pytest.raises(UnknownSchema):
            await client.schemas.serializer("orders-value")
        with pytest.raises(InvalidConfig, match="framing must be one of confluent, header, none"):
            await client.schemas.serializer("orders-value", ORDER, "avro", framing="headers")
        await client.schemas.serializer("orders-value", ORDER, "avro")
        demanded = ORDER | {"fields": [*ORDER["fields"], {"name": "table", "type": "int"}]}
        with pytest.raises(IncompatibleSchema):
            await client.schemas.serializer("orders-value", demanded, "avro")
        await client.schemas.serializer("other", {}, "json")
        serializer = await client.schemas.serializer("orders-value")
        for _ in range(2):
            with pytest.raises(ValueError, match="is not known yet"):
                serializer.from_bytes(b"\0\0\0\0\2{}")
            await asyncio.sleep(1)
        with pytest.raises(ValueError, match="of kind json, not avro"):
            await serializer.load(2)
