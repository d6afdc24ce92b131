"""Producers that keep the tags of their batches apart: what is stored, in which order, and what consumers fetch."""

from __future__ import annotations

import random
from itertools import groupby

import pyarrow as pa
import pytest

import ledgermq
from ledgermq import errors
from ledgermq.client.consuming.fetching.prefetch import Prefetch
from ledgermq.client.consuming.reading import FetchedRun
from ledgermq.client.producing.routing.topic_queues import TAGS_OPEN_MAX
from ledgermq.protocol.batches.records import decode_batch
from tests.broker.cluster import Cluster, fetch_of, in_cluster
from tests.e2e.test_client_takeover import client_of

Rows = list[tuple[str | None, int]]
"""Tag and number of each record."""
TAGS = ["A", "B", "C", "D", None]


def drawn(count: int, seed: int = 1) -> Rows:
    draw = random.Random(seed)
    return [(draw.choice(TAGS), number) for number in range(count)]


async def batches_of(cluster: Cluster) -> list[Rows]:
    """Return the batches of partition 0 of t as they are stored."""
    line = cluster.line("a:1")
    found: list[Rows] = []
    offset = 0
    while True:
        frame = await line.fetch_once(fetch_of("t", 0, offset))
        data = b"".join(frame.payload)
        batches = frame.header.partitions[0].batches
        if not batches:
            return found
        for batch in batches:
            rows, data = decode_batch(data[: batch.length]), data[batch.length :]
            values = map(int, rows.column("value").to_pylist())
            found.append(list(zip(rows.column("tag").to_pylist(), values, strict=True)))
            offset = batch.base_offset + batch.record_count


def check(found: list[Rows], sent: Rows) -> None:
    """Each batch has one tag, everything is there once, and each tag has its order."""
    assert all(len({tag for tag, _ in batch}) == 1 for batch in found)
    stored = [record for batch in found for record in batch]
    assert sorted(stored, key=lambda record: record[1]) == sent
    for tag in TAGS:
        assert [number for own, number in stored if own == tag] == [number for own, number in sent if own == tag]


@pytest.mark.parametrize("bytes_max", [200, 2_000, 1_000_000])
def test_a_batch_has_one_tag_and_each_tag_keeps_its_order(bytes_max: int) -> None:
    @in_cluster("a:1")
    async def life(cluster: Cluster) -> None:
        sent = drawn(500)
        async with client_of(cluster) as client:
            await client.create_topic("t", 1)
            async with client.producer(batch_by="tag", batch_bytes_max=bytes_max, linger_ms=50) as producer:
                results = [producer.send("t", f"{number}", tag=tag) for tag, number in sent[:250]]
                records = [ledgermq.Record(f"{number}", tag=tag) for tag, number in sent[250:]]
                await producer.send_many("t", records)
                await producer.flush()
            found = await batches_of(cluster)
            check(found, sent)
            assert len(found) < 120 or bytes_max == 200, "the tags are apart, and nothing else"
            stored = [record for batch in found for record in batch]
            offsets = [(await result).offset for result in results]
            assert [stored[offset] for offset in offsets if offset is not None] == sent[:250], "results name the places"

    life()


@in_cluster("a:1")
async def test_by_partition_a_batch_has_many_tags(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(linger_ms=50) as producer:
            for tag, number in drawn(50):
                producer.send("t", f"{number}", tag=tag)
        assert [record for batch in await batches_of(cluster) for record in batch] == drawn(50)
        with pytest.raises(errors.InvalidConfig, match="batch_by must be one of partition, tag"):
            client.producer(batch_by="key")


@in_cluster("a:1")
async def test_arrow_rows_are_kept_apart_too_unless_they_have_too_many_tags(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        sent = drawn(300)
        async with client.producer(batch_by="tag") as producer:
            values = [f"{number}" for _, number in sent]
            await (await producer.send_batch("t", pa.table({"value": values, "tag": [tag for tag, _ in sent]})))
            found = await batches_of(cluster)
            check(found, sent)
            assert len(found) == len(TAGS)
            many = [f"{number}" for number in range(TAGS_OPEN_MAX + 1)]
            await (await producer.send_batch("t", pa.table({"value": many, "tag": many})))
            assert len(await batches_of(cluster)) == len(TAGS) + 1


@in_cluster("a:1")
async def test_the_number_of_open_batches_is_bounded(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(batch_by="tag", linger_ms=60_000) as producer:
            await producer.send_many("t", [ledgermq.Record("1", tag=f"{number}") for number in range(1000)])
            [queue] = producer._topics.known()[0].queues
            assert len(queue.open_batches()) <= TAGS_OPEN_MAX + 1


@in_cluster("a:1")
async def test_what_waits_for_its_owner_fails_in_time_whatever_its_tag(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(batch_by="tag", delivery_timeout_s=2, raise_on_error=False) as producer:
            await producer.send("t", "0", tag="A")
            await cluster.stop("a:1", graceful=False)
            results = [producer.send("t", f"{number}", tag=tag) for tag, number in drawn(40)]
            assert {(await result).success for result in results} == {False}
            assert producer.buffered_bytes == producer.unanswered_records == 0


@in_cluster("a:1")
async def test_a_consumer_of_one_tag_fetches_little_of_a_mixed_topic(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty tags, mixed at random, in batches of one tag: only its batches are sent."""
    draw = random.Random(3)
    sent = [f"tag-{draw.randrange(50)}" for _ in range(3000)]
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        async with client.producer(batch_by="tag", linger_ms=100) as producer:
            await producer.send_many("t", [ledgermq.Record(bytes(100), tag=tag) for tag in sent])
        fetched = 0
        add = Prefetch.add

        def counted(self: Prefetch, run: FetchedRun) -> None:
            nonlocal fetched
            fetched += run.record_count
            add(self, run)

        monkeypatch.setattr(Prefetch, "add", counted)
        async with client.consumer("t", until_end=True, filter="tag-7") as consumer:
            got = [message async for message in consumer]
        wanted = sum(tag == "tag-7" for tag in sent)
        assert len(got) == wanted
        assert [tag for tag, _ in groupby(message.tag for message in got)] == ["tag-7"]
        assert fetched < 3 * wanted
