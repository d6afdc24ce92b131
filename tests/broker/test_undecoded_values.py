"""`client.tables.errors`: the records whose values compaction could not decode, page by page; through takeover, move,
retention, and a topic that is deleted, brought back and made again.
"""

from __future__ import annotations

import pytest

import ledgermq
from ledgermq.errors import DataDamaged, InvalidRequest, UnknownPartition, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger import keys
from ledgermq_ledger.tables import undecoded
from tests.broker.cluster import Cluster, cluster_of
from tests.broker.test_tables import make_round
from tests.broker.test_typed_values import ONE, SUBJECT, send
from tests.virtual_time import virtual

BARE, UNKNOWN = "the value names no schema", "schema 77 is none of subject t-value"
FRAMED = b"\0\0\0\0\x4d"
"""The head of a value of schema 77."""


async def put(client: ledgermq.Client, *values: bytes, partition: int = 0) -> None:
    async with client.producer() as producer:
        for value in values:
            await producer.send("t", value, partition=partition)


async def all_of(client: ledgermq.Client, limit: int = 100) -> list[tuple[int, int, str, int | None]]:
    found, after = [], ""
    while True:
        page = await client.tables.errors("t", after=after, limit=limit)
        assert len(page.values) <= limit
        found += [(each.partition, each.offset, each.error, each.schema_id) for each in page.values]
        if not (after := page.next):
            return found


async def a_topic(cluster: Cluster, client: ledgermq.Client, partitions: int = 1, **more: str) -> None:
    await client.create_topic("t", partitions, SUBJECT | more)
    await send(cluster, ONE, {"amount": 1})


@virtual
async def test_errors_come_by_pages_with_partition_offset_reason_and_schema() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await a_topic(cluster, client, partitions=3)
        await put(client, b"bare", FRAMED + b"x", b"")
        await put(client, b"other", partition=2)
        assert await all_of(client) == []  # what is not compacted was not decoded
        await make_round(cluster)
        await put(client, b"later")
        await make_round(cluster)
        whole = [(0, 1, BARE, None), (0, 2, UNKNOWN, 77), (0, 3, BARE, None), (0, 4, BARE, None), (2, 0, BARE, None)]
        for limit in (100, 3, 2, 1):
            assert await all_of(client, limit) == whole
        first = await client.tables.errors("t", limit=2)
        assert [each.offset for each in first.values] == [1, 2]
        await client.delete_records("t", {0: 4})
        behind = await client.tables.errors("t", after=first.next)
        assert [(each.partition, each.offset) for each in behind.values] == [(0, 4), (2, 0)]
        assert await all_of(client) == whole[3:]


@virtual
async def test_a_null_value_and_a_topic_without_records_have_no_error() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("t", 2, SUBJECT)
        assert await all_of(client) == []
        async with client.producer() as producer:
            await producer.send("t", None, key="k", partition=0)
        await make_round(cluster)
        assert await all_of(client) == []


@virtual
async def test_a_schema_that_a_header_names_is_told() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("t", 1, SUBJECT | {"value.schema.framing": "header"})
        async with client.producer() as producer:
            await producer.send("t", b"x", headers=[("ledgermq.schema-id", b"9")])
            await producer.send("t", b"x")
        await make_round(cluster)
        assert [(each[1], each[3]) for each in await all_of(client)] == [(0, 9), (1, None)]


@virtual
async def test_values_without_frames_name_no_schema() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await a_topic(cluster, client, **{"value.schema.framing": "none"})
        await put(client, b"\xff")
        await make_round(cluster)
        assert {(each[1], each[3]) for each in await all_of(client)} >= {(1, None)}


@virtual
async def test_a_search_is_bounded_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undecoded, "LOOKS_MAX", 2)
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await a_topic(cluster, client)
        for value in (b"one", b"two", b"three"):
            await put(client, value)
            await make_round(cluster)
        answer = await cluster.line("a:1").list_undecoded(pb.ListUndecodedRequest(topic="t", limit=100))
        assert ([each.offset for each in answer.records], answer.next_offset, answer.at_end) == ([1], 2, False)
        assert [each[1] for each in await all_of(client)] == [1, 2, 3]
        monkeypatch.setattr("ledgermq.client.tables.undecoded.SEARCHES_MAX", 1)
        page = await client.tables.errors("t")
        assert len(page.values) == 1
        assert page.next
        assert [each[1] for each in await all_of(client)] == [1, 2, 3]


@virtual
async def test_a_takeover_and_a_move_change_nothing() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await a_topic(cluster, client)
        await put(client, b"bare")
        await make_round(cluster)
        await cluster.start("b:1")
        await cluster.stop("a:1")
        await cluster.settled()
        async with cluster.client() as other:
            assert await all_of(other) == [(0, 1, BARE, None)]
            bundle = (await cluster.brokers["b:1"].metadata.lookup().find("t")).bundles[0]
            target = next(each for each in range(1, 3) if each != bundle)
            await other.move_partition("t", 0, target)
            await make_round(cluster)
            await put(other, FRAMED)
            await make_round(cluster)
            assert await all_of(other, 1) == [(0, 1, BARE, None), (0, 2, UNKNOWN, 77)]


@virtual
async def test_a_page_of_a_deleted_topic_does_not_go_on_in_another_one() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await a_topic(cluster, client, **{"topic.delete.grace.ms": "3600000"})
        await put(client, b"bare", b"bare")
        await make_round(cluster)
        page = await client.tables.errors("t", limit=1)
        await client.delete_topic("t")
        with pytest.raises(UnknownTopic):
            await client.tables.errors("t", after=page.next)
        await client.undelete_topic("t")
        behind = await client.tables.errors("t", after=page.next)
        assert [each.offset for each in behind.values] == [2]
        await client.delete_topic("t", now=True)
        await client.create_topic("t", 1, SUBJECT)
        await put(client, b"bare")
        await make_round(cluster)
        with pytest.raises(UnknownTopic, match="deleted and created again"):
            await client.tables.errors("t", after=page.next)
        assert await all_of(client) == [(0, 0, BARE, None)]


@virtual
async def test_a_file_that_is_gone_is_damage() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await a_topic(cluster, client)
        await put(client, b"bare")
        await make_round(cluster)
        [file] = [info.key async for info in cluster.store.list(keys.parquet_topic("t"))]
        await cluster.store.delete([file])
        with pytest.raises(DataDamaged, match="the file list names it"):
            await client.tables.errors("t")


@virtual
async def test_what_cannot_be_asked_is_refused() -> None:
    async with cluster_of("a:1") as cluster, cluster.client() as client:
        await client.create_topic("plain", 1)
        with pytest.raises(InvalidRequest, match="are not decoded"):
            await client.tables.errors("plain")
        await client.create_topic("t", 1, SUBJECT)
        for limit in (0, 1001):
            with pytest.raises(InvalidRequest, match="limit must be"):
                await client.tables.errors("t", limit=limit)
        for after in ("x", "1-2", "1-2-x", "0-0-0", f"1-{2**31}-0", f"1-0-{2**63}", "1-0-٣"):
            with pytest.raises(InvalidRequest, match="after must be"):
                await client.tables.errors("t", after=after)
        topic_id = (await cluster.brokers["a:1"].metadata.lookup().find("t")).id
        with pytest.raises(UnknownPartition):
            await client.tables.errors("t", after=f"{topic_id}-5-0")
        with pytest.raises(UnknownTopic):
            await client.tables.errors("none")
