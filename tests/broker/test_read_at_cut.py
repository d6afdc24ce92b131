"""`read_arrow(cut=…)`: what a topic had at a cut, from segments and Parquet, whatever has happened to it since."""

from __future__ import annotations

import pytest

import ledgermq
from ledgermq.client.cuts.reading import NO_OFFSET
from ledgermq.errors import InvalidRequest, ResourceExhausted, UnknownCut, UnknownPartition, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.broker.cluster import Cluster, in_cluster
from tests.broker.test_delete_records import compact
from tests.waiting import until


async def read(client: ledgermq.Client, topic: str = "t", **options: object) -> list[tuple[int, int, bytes]]:
    table = await client.read_arrow(topic, **options)  # type: ignore[arg-type]
    columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
    return list(zip(*columns, strict=True))


async def a_cut(cluster: Cluster, client: ledgermq.Client) -> list[tuple[int, int, bytes]]:
    """Cut "c" of a topic with Parquet files and segments, and more records after it; return what it has."""
    await client.create_topic("t", 3)
    await cluster.produce("t", 0, b"0", b"1")
    await cluster.produce("t", 2, b"a")
    await compact(cluster)
    await cluster.produce("t", 0, b"2", b"3")
    await client.cuts.take("c")
    before = await read(client)
    await cluster.produce("t", 0, b"later")
    await cluster.produce("t", 1, b"later")
    return before


@in_cluster("a:1", "b:1")
async def test_records_are_read_as_they_were_by_partition_and_offset(cluster: Cluster) -> None:
    async with cluster.client() as client:
        before = await a_cut(cluster, client)
        assert [each[:2] for each in before] == [(0, 0), (0, 1), (0, 2), (0, 3), (2, 0)]
        assert await read(client, cut="c") == before
        assert await read(client, cut="c", partitions=[2, 1]) == [(2, 0, b"a")]
        assert await read(client, cut="c", partitions=[]) == []
        assert len(await read(client)) == 7
        await compact(cluster)
        await compact(cluster)
        assert await read(client, cut="c") == before


@in_cluster("a:1", "b:1")
async def test_deleted_records_and_topics_are_still_in_the_cut(cluster: Cluster) -> None:
    async with cluster.client() as client:
        before = await a_cut(cluster, client)
        await compact(cluster)
        await client.delete_records("t", {0: 3})
        await compact(cluster)
        assert await read(client, cut="c") == before
        await client.delete_topic("t")
        await client.create_topic("t", 1)
        await cluster.produce("t", 0, b"of its namesake")
        await compact(cluster)
        assert await read(client, cut="c") == before
        assert await read(client) == [(0, 0, b"of its namesake")]


@in_cluster("a:1")
async def test_records_that_were_deleted_before_the_cut_are_not_in_it(cluster: Cluster) -> None:
    """Also where the log begins within a batch."""
    async with cluster.client() as client:
        await client.create_topic("t", 1)
        await cluster.produce("t", 0, b"0", b"1", b"2")
        await client.delete_records("t", {0: 1})
        await client.cuts.take("c")
        assert await read(client, cut="c") == await read(client) == [(0, 1, b"1"), (0, 2, b"2")]


@in_cluster("a:1", "b:1")
async def test_a_cut_is_read_while_a_broker_is_gone(cluster: Cluster) -> None:
    async with cluster.client(timeout_s=90) as client:
        before = await a_cut(cluster, client)
        await cluster.stop("a:1", graceful=False)
        assert await read(client, cut="c") == before


@in_cluster("a:1")
async def test_an_answer_above_the_end_has_no_records_but_the_number_of_partitions(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await a_cut(cluster, client)
    line = cluster.line("a:1")
    above = await line.read_cut(pb.ReadCutRequest(name="c", topic="t", offset=NO_OFFSET))
    assert (len(above.batches), above.partitions, above.end, above.next_offset) == (0, 3, 4, 4)
    last = await line.read_cut(pb.ReadCutRequest(name="c", topic="t", offset=3))
    assert [batch.base_offset for batch in last.batches] == [2]


@in_cluster("a:1")
async def test_what_cannot_be_read_is_refused(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await a_cut(cluster, client)
        await client.create_topic("young", 1)
        with pytest.raises(UnknownCut, match="ledgermq cut list"):
            await read(client, cut="never")
        with pytest.raises(UnknownTopic, match="cut 'c' has no topic 'young'"):
            await read(client, "young", cut="c")
        for partition in (3, -1, 2**40):
            with pytest.raises(UnknownPartition, match="has partitions 0 to 2"):
                await read(client, cut="c", partitions=[partition])
        with pytest.raises(InvalidRequest, match="a cut is read whole"):
            await read(client, cut="c", start="latest")
        with pytest.raises(ResourceExhausted, match="more than 10 bytes at cut 'c'"):
            await read(client, cut="c", bytes_max=10)
        await client.cuts.drop("c")
        await until(lambda: _is_gone(client), 60)


async def _is_gone(client: ledgermq.Client) -> bool:
    try:
        await read(client, cut="c")
    except UnknownCut:
        return True
    return False
