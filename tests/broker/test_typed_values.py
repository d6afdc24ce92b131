"""Typed values in a cluster: a serializer registers and frames, compaction makes columns, a Delta table has them."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgermq.errors import InvalidConfig, Unavailable
from ledgermq_broker.cluster.heartbeat import SCHEMAS
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_ledger.tables.formats.delta import DeltaLog
from tests.broker.cluster import Cluster, cluster_of
from tests.virtual_time import virtual, virtual_sources

SUBJECT = {"value.schema.subject": "t-value"}
ONE = {"type": "record", "name": "R", "fields": [{"name": "amount", "type": "int"}]}
TWO = {"type": "record", "name": "R", "fields": [*ONE["fields"], {"name": "city", "type": "string", "default": ""}]}  # type: ignore[misc]


async def compacted(store: ObjectStore) -> list[tuple[Any, str | None]]:
    """Compact all there is, and return the typed values of topic t in order of offset."""
    report = await compact_root(store, virtual_sources(99), LocalEngine(virtual_sources(98), run_inline))
    assert not report.failures
    found = []
    async for info in store.list(keys.parquet_partition("t", 0)):
        table = pq.ParquetFile(io.BytesIO(await store.get(info.key))).read()
        typed = table["value_typed"] if "value_typed" in table.schema.names else pa.nulls(len(table))
        found += zip(table["offset"].to_pylist(), typed.to_pylist(), table["value_error"].to_pylist(), strict=True)
    return [(row, error) for _, row, error in sorted(found, key=lambda each: each[0])]


async def send(cluster: Cluster, schema: Any, *values: Any) -> None:
    async with cluster.client() as client:
        serializer = await client.schemas.serializer("t-value", schema, "avro")
        async with client.producer(serializer=serializer) as producer:
            for value in values:
                await producer.send("t", value, partition=0)


@virtual
async def test_what_a_serializer_writes_becomes_columns_through_takeover_and_evolution() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("t", 1, SUBJECT)
        await send(cluster, ONE, {"amount": 1})
        assert await compacted(cluster.store) == [({"amount": 1}, None)]
        await cluster.start("b:1")
        await cluster.stop("a:1")
        await cluster.settled()
        await send(cluster, TWO, {"amount": 2, "city": "Bonn"})
        async with cluster.client() as other, other.producer() as producer:
            await producer.send("t", b"bare", partition=0)
        assert await compacted(cluster.store) == [
            ({"amount": 1}, None),
            ({"amount": 2, "city": "Bonn"}, None),
            (None, "the value names no schema"),
        ]


@virtual
async def test_a_schema_that_was_deleted_for_good_still_decodes_its_records() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("t", 1, SUBJECT)
        await send(cluster, ONE, {"amount": 1})
        await client.schemas.delete("t-value")
        await client.schemas.delete("t-value", for_good=True)
        assert await compacted(cluster.store) == [({"amount": 1}, None)]


@virtual
async def test_a_topic_that_is_made_again_has_the_columns_of_its_subject() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("t", 1, SUBJECT)
        await send(cluster, ONE, {"amount": 1})
        await compacted(cluster.store)
        await client.delete_topic("t")
        await client.create_topic("t", 1, SUBJECT)
        await send(cluster, TWO, {"amount": 2, "city": "x"})
        found = await compacted(cluster.store)
        assert found[-1] == ({"amount": 2, "city": "x"}, None)


@virtual
async def test_a_table_has_the_columns() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("t", 1, SUBJECT | {"table.format": "delta", "table.delta.place": "topic"})
        await send(cluster, ONE, {"amount": 1})
        await compacted(cluster.store)
        await cluster.settled()
        await asyncio.sleep(5)
        table = await DeltaLog(cluster.store, keys.parquet_topic("t"), virtual_sources(97)).read()
        assert table.metadata is not None
        names = [field["name"] for field in json.loads(table.metadata.schema_string)["fields"]]
        assert {"value_typed", "value_error"} <= set(names)


@virtual
async def test_it_is_refused_while_a_broker_cannot_read_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        [broker] = cluster.brokers.values()
        older = broker.membership.me
        monkeypatch.setattr(broker.controller, "_lacking", lambda feature: [older] if feature == SCHEMAS else [])
        with pytest.raises(Unavailable, match="schemas need every broker"):
            await broker.controller.create_topic("t", 1, SUBJECT)
        with pytest.raises(InvalidConfig, match="keyed topic"):
            await client.create_topic("k", 1, SUBJECT | {"cleanup.policy": "compact"})
