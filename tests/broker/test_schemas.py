"""Schemas in a cluster: rights, takeovers, races, records that an earlier release passes over."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from ledgermq.errors import IncompatibleSchema, InvalidRequest, Unauthorized, Unavailable, UnknownSchema
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.cluster.heartbeat import SCHEMAS
from tests.broker.access import RULES, change, token
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.virtual_time import virtual


def record(*fields: str) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": f, "type": "int", "default": 0} for f in fields]}


@virtual
async def test_a_schema_outlives_its_controller_and_its_topic() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("orders", 1)
        made = await client.schemas.put("orders-value", record("x"), "avro")
        assert (made.id, made.version, made.compatibility) == (1, 1, "backward")
        await cluster.start("b:1")
        await cluster.stop("a:1")
        await cluster.settled()
        async with cluster.client() as other:
            found = await other.schemas.describe("orders-value")
            assert json.loads(found.text) == record("x")
            assert [(field.id, field.path) for field in found.fields] == [(101, "/x")]
            await other.delete_topic("orders")
            made = await other.schemas.put("orders-value", record("x", "y"), "avro")
            assert (made.id, made.version) == (2, 2)
            assert (await other.schemas.by_id(1)).subjects == ("orders-value",)


@virtual
async def test_any_broker_takes_changes_and_shows_them_at_once() -> None:
    async with cluster_of("a:1", "b:1", "c:1") as cluster:
        for number, address in enumerate(cluster.brokers, 1):
            request = pb.PutSchemaRequest(
                subject="s", kind="avro", text=json.dumps(record(*"xyz"[:number])), compatibility="full"
            )
            answer = await cluster.line(address).put_schema(request)
            assert (answer.schema.version, answer.compatibility) == (number, "full")
            for other in cluster.brokers:
                found = await cluster.line(other).describe_schema(pb.DescribeSchemaRequest(subject="s"))
                assert found.schema.version == number


@virtual
async def test_programs_that_register_at_once_get_one_version_each() -> None:
    async with cluster_of("a:1", "b:1") as cluster, cluster.client() as client:
        await client.schemas.set_compatibility("s", "none")
        texts = [record(f"f{number}") for number in range(8)]
        made = await asyncio.gather(*(client.schemas.put("s", text, "avro") for text in texts + texts))
        assert sorted({each.version for each in made}) == list(range(1, 9))
        assert [each.id for each in made[:8]] == [each.id for each in made[8:]]
        fields = [field.id for field in (await client.schemas.describe("s")).fields]
        assert sorted(fields) == list(range(101, 109))


@virtual
async def test_what_is_refused_changes_nothing() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.schemas.put("s", record("x"), "avro")
        [broker] = cluster.brokers.values()
        offset = broker.metadata.catalog.offset
        demanded = {"type": "record", "name": "R", "fields": [{"name": "y", "type": "int"}]}
        for call in (client.schemas.put, client.schemas.check):
            with pytest.raises(IncompatibleSchema, match="not backward compatible"):
                await call("s", demanded, "avro")
        with pytest.raises(InvalidRequest, match="at most 524288 bytes"):
            await client.schemas.put("s", {"doc": "x" * 2**20, **record("x")}, "avro")
        with pytest.raises(InvalidRequest, match="brackets within one another"):
            await client.schemas.put("s", '{"not":' * 70_000, "json")
        with pytest.raises(InvalidRequest, match="unknown compatibility 'fully'; did you mean"):
            await client.schemas.set_compatibility("s", "fully")
        with pytest.raises(InvalidRequest, match="name a schema"):
            await client.schemas.set_compatibility("s", "")
        assert (await client.schemas.check("s", record("x", "z"), "avro")).version == 2
        for unknown in (client.schemas.by_id(7), client.schemas.by_id(-1), client.schemas.describe("t")):
            with pytest.raises(UnknownSchema):
                await unknown
        assert broker.metadata.catalog.offset == offset


@virtual
async def test_deletions() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        for fields in ("x", "xy"):
            await client.schemas.put("s", record(*fields), "avro")
        assert await client.schemas.delete("s", 1) == [1]
        [subject] = await client.schemas.list()
        assert [(each.version, each.deleted) for each in subject.versions] == [(2, False)]
        [subject] = await client.schemas.list("s", deleted=True)
        assert [(each.version, each.deleted) for each in subject.versions] == [(1, True), (2, False)]
        assert (await client.schemas.find("s", record("x"), "avro", deleted=True)).version == 1
        with pytest.raises(UnknownSchema):
            await client.schemas.find("s", record("x"), "avro")
        assert await client.schemas.delete("s") == [2]
        assert await client.schemas.list() == []
        assert await client.schemas.delete("s", for_good=True) == [1, 2]
        assert (await client.schemas.by_id(1)).id == 1


@virtual
async def test_no_schema_beside_a_broker_that_does_not_serve_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        [broker] = cluster.brokers.values()
        older = broker.membership.me
        monkeypatch.setattr(broker.controller, "_lacking", lambda feature: [older] if feature == SCHEMAS else [])
        request = pb.PutSchemaRequest(subject="s", kind="avro", text='"int"')
        with pytest.raises(Unavailable, match="schemas need every broker"):
            await broker.service.put_schema(request)
        assert await client.schemas.list() == []


@in_cluster("a:1", **RULES)
async def test_subjects_are_judged_by_the_rules_of_their_topics(cluster: Cluster) -> None:
    await change(cluster, grant=["allow user:maker produce orders", "allow user:reader consume orders"])
    root, maker, reader, other = [(await token(cluster, name)).text for name in ("root", "maker", "reader", "other")]
    line = {name: cluster.line("a:1", text) for name, text in zip("RmrO", (root, maker, reader, other), strict=True)}
    put = pb.PutSchemaRequest(subject="orders-value", kind="avro", text='"int"', created_by="user:forged")
    assert (await line["m"].put_schema(put)).schema.created_by == "user:maker"
    for name in "rO":
        with pytest.raises(Unauthorized):
            await line[name].put_schema(put)
    full = pb.PutSchemaRequest(subject="orders-value", compatibility="full")
    for name in "mrO":
        with pytest.raises(Unauthorized):
            await line[name].put_schema(full)
    assert (await line["R"].put_schema(full)).compatibility == "full"
    found = await line["r"].describe_schema(pb.DescribeSchemaRequest(id=1))
    assert list(found.subjects) == ["orders-value"]
    assert (await line["r"].describe_schema(pb.DescribeSchemaRequest(subject="orders-value"))).schema.id == 1
    with pytest.raises(UnknownSchema, match="no schema with the id 1"):
        await line["O"].describe_schema(pb.DescribeSchemaRequest(id=1))
    assert not (await line["O"].list_schemas(pb.ListSchemasRequest())).subjects
    assert len((await line["r"].list_schemas(pb.ListSchemasRequest())).subjects) == 1
    for name in "mrO":
        with pytest.raises(Unauthorized):
            await line[name].delete_schema(pb.DeleteSchemaRequest(subject="orders-value"))
    assert list((await line["R"].delete_schema(pb.DeleteSchemaRequest(subject="orders-value"))).versions) == [1]
    secret = pb.PutSchemaRequest(subject="secret", kind="avro", text='"int"')
    await line["R"].put_schema(secret)
    found = await line["r"].describe_schema(pb.DescribeSchemaRequest(id=1))
    assert (list(found.subjects), found.schema.subject) == (["orders-value"], "orders-value")
