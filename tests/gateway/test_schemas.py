"""The schema registry over HTTP, by confluent-kafka's own serializers and as tools ask it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ledgermq.errors import UnknownSchema
from tests.gateway.world import World, world

registry = pytest.importorskip("confluent_kafka.schema_registry", reason="confluent-kafka with its registry's client")

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "double"}]}
JSON_ORDER = {"title": "Order", "type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
SR = {"Content-Type": "application/vnd.schemaregistry.v1+json"}


def client_of(at: World, headers: dict[str, str] | None = None) -> Any:
    config = {"url": f"{at.url}/registry"}
    if headers:
        config |= {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": headers["Authorization"].removeprefix("Bearer "),
            "bearer.auth.logical.cluster": "x",
            "bearer.auth.identity.pool.id": "y",
        }
    return registry.SchemaRegistryClient(config)


def context(topic: str) -> Any:
    from confluent_kafka.serialization import MessageField, SerializationContext

    return SerializationContext(topic, MessageField.VALUE)


def order_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    file.message_type.add(name="Order").field.add(
        name="amount", number=1, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_OPTIONAL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


async def test_values_of_confluents_avro_serializer() -> None:
    avro = pytest.importorskip("confluent_kafka.schema_registry.avro")
    async with world() as at:

        def both_ways() -> tuple[bytes, Any]:
            with client_of(at) as client:
                data = avro.AvroSerializer(client, json.dumps(ORDER))({"amount": 2.5}, context("orders"))
                return data, avro.AvroDeserializer(client)(data, context("orders"))

        data, value = await asyncio.to_thread(both_ways)
        assert (data[:5], value) == (b"\x00\x00\x00\x00\x01", {"amount": 2.5})
        async with at.client() as client:
            found = await client.schemas.by_id(1)
            assert (found.subject, found.kind, json.loads(found.text)["name"]) == ("orders-value", "avro", "Order")

        def without_registering() -> list[bytes]:
            with client_of(at) as client:
                configs = (
                    {"auto.register.schemas": False},
                    {"auto.register.schemas": False, "use.latest.version": True},
                )
                made = [avro.AvroSerializer(client, json.dumps(ORDER), conf=config) for config in configs]
                return [serializer({"amount": 2.5}, context("orders")) for serializer in made]

        assert await asyncio.to_thread(without_registering) == [data, data]


async def test_values_of_confluents_json_serializer() -> None:
    schema = pytest.importorskip("confluent_kafka.schema_registry.json_schema")
    async with world() as at:

        def both_ways() -> tuple[bytes, Any]:
            with client_of(at) as client:
                data = schema.JSONSerializer(json.dumps(JSON_ORDER), client)({"amount": 2.5}, context("orders"))
                return data, schema.JSONDeserializer(None, schema_registry_client=client)(data, context("orders"))

        data, value = await asyncio.to_thread(both_ways)
        assert (data[:5], value) == (b"\x00\x00\x00\x00\x01", {"amount": 2.5})


async def test_values_of_confluents_protobuf_serializer() -> None:
    protobuf = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
    async with world() as at:

        def both_ways() -> tuple[bytes, Any]:
            kind, config = order_class(), {"use.deprecated.format": False}
            with client_of(at) as client:
                data = protobuf.ProtobufSerializer(kind, client, config)(kind(amount=2.5), context("orders"))
                return data, protobuf.ProtobufDeserializer(kind, config, client)(data, context("orders"))

        data, value = await asyncio.to_thread(both_ways)
        assert data[:5] == b"\x00\x00\x00\x00\x01"
        assert value.amount == 2.5


async def test_what_tools_ask() -> None:
    async with world() as at:
        body = {"schema": json.dumps(ORDER)}
        assert (await at.http.get("/registry/config")).json() == {"compatibilityLevel": "BACKWARD"}
        made = await at.http.post("/registry/subjects/orders-value/versions", json=body)
        assert (made.status_code, made.json()["id"], made.headers["content-type"]) == (200, 1, SR["Content-Type"])
        wider = {"schema": json.dumps(ORDER | {"fields": [*ORDER["fields"], {"name": "x", "type": "int"}]})}
        refused = await at.http.post("/registry/subjects/orders-value/versions", json=wider)
        assert (refused.status_code, refused.json()["error_code"]) == (409, 409)
        judged = "/registry/compatibility/subjects/orders-value/versions/latest"
        assert (await at.http.post(judged, json=wider)).json()["is_compatible"] is False
        mode = await at.http.put("/registry/config/orders-value", json={"compatibility": "FORWARD"})
        assert mode.json() == {"compatibility": "FORWARD"}
        assert (await at.http.get("/registry/config/orders-value")).json() == {"compatibilityLevel": "FORWARD"}
        assert (await at.http.post(judged, json=wider)).json() == {"is_compatible": True, "messages": []}
        assert (await at.http.post("/registry/subjects/orders-value/versions", json=wider)).json()["version"] == 2
        assert (await at.http.get("/registry/subjects")).json() == ["orders-value"]
        assert (await at.http.get("/registry/subjects/orders-value/versions")).json() == [1, 2]
        assert (await at.http.delete("/registry/subjects/orders-value/versions/1")).json() == 1
        assert (await at.http.delete("/registry/subjects/orders-value")).json() == [2]
        assert (await at.http.delete("/registry/subjects/orders-value?permanent=true")).json() == [1, 2]
        assert (await at.http.get("/registry/subjects")).json() == []


async def test_refusals_in_their_words() -> None:
    async with world() as at:
        for path, code in (
            ("/registry/subjects/none/versions/latest", 40401),
            ("/registry/subjects/none/versions", 40401),
            ("/registry/schemas/ids/7", 40403),
            ("/registry/config/none", 40408),
        ):
            answer = await at.http.get(path)
            assert (answer.status_code, answer.json()["error_code"]) == (404, code), path
        assert (await at.http.get("/registry/associations/resources/-/orders")).status_code == 404
        versions = "/registry/subjects/orders-value/versions"
        for body, match in (
            ({"schema": "{"}, "no valid JSON"),
            ({"schema": '"int"', "schemaType": "XML"}, "schemaType"),
            ({"schema": '"int"', "references": [{"name": "a", "subject": "b", "version": 1}]}, "not kept here"),
        ):
            answer = await at.http.post(versions, json=body)
            assert (answer.status_code, answer.json()["error_code"]) == (422, 42201)
            assert match in answer.json()["message"]
        assert (await at.http.get(f"{versions}/zero")).status_code == 422
        for switch in ("deleted=", "deleted=1"):
            assert (await at.http.get(f"/registry/subjects?{switch}")).status_code == 400
        assert (await at.http.get("/registry/subjects?deleted=True")).json() == []


async def test_the_callers_rights_count() -> None:
    async with world(rules=True) as at:
        maker, reader = await at.user("maker", "produce orders"), await at.user("reader", "consume orders")
        other = await at.user("other")
        versions = "/registry/subjects/orders-value/versions"
        body = {"schema": json.dumps(ORDER)}
        assert (await at.http.post(versions, json=body)).status_code == 401
        for headers, status in ((reader, 403), (other, 403), (maker, 200)):
            assert (await at.http.post(versions, json=body, headers=headers)).status_code == status
        for headers, status in ((reader, 200), (maker, 200), (other, 404)):
            assert (await at.http.get("/registry/schemas/ids/1", headers=headers)).status_code == status

        def read() -> str:
            with client_of(at, reader) as client:
                return str(client.get_schema(1, "orders-value").schema_str)

        assert json.loads(await asyncio.to_thread(read)) == ORDER
        with pytest.raises(UnknownSchema):
            async with at.client(other["Authorization"].removeprefix("Bearer ")) as client_:
                await client_.schemas.by_id(1)
