"""Consumers that read segments of real brokers from a folder themselves: they receive the same
messages as others, whatever happens to the files.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import ledgermq
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import FetchFrame
from ledgermq.sources import Sources
from ledgermq_broker.bundle.shared.context import BundleMetrics
from ledgermq_broker.node import Hooks, Node
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger import keys
from tests.e2e.raw_client import RawClient

PARTITIONS = 3


class Found(BundleMetrics):
    """Bytes of users' batches, by where they were found."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()

    def fetched(self, bundle: int, source: str, size_bytes: int) -> None:
        if bundle != keys.METADATA_BUNDLE:
            self.bytes[source] += size_bytes


class Cluster:
    def __init__(self, node: Node, found: Found, root: Path) -> None:
        self.node, self.found, self.root = node, found, root
        self.sent: dict[int, list[bytes]] = {}

    async def send(self, client: ledgermq.Client, count: int) -> None:
        async with client.producer(batch_bytes_max=2000) as producer:
            for number in range(count):
                values = self.sent.setdefault(number % PARTITIONS, [])
                values.append(b"%d of partition %d" % (len(values), number % PARTITIONS))
                producer.send("t", values[-1], partition=number % PARTITIONS)
                if number % 50 == 0:
                    await producer.flush()

    async def read(
        self, consumer: ledgermq.Consumer | ledgermq.GroupConsumer, *, arrow: bool = False
    ) -> dict[int, list[bytes]]:
        """All that was sent; asserts that offsets follow one another."""
        read: dict[int, list[bytes]] = {}
        async with asyncio.timeout(60):
            while sum(map(len, read.values())) < sum(map(len, self.sent.values())):
                if arrow:
                    table = await consumer.fetch_arrow(100)
                    rows = list(
                        zip(*(table[name].to_pylist() for name in ("partition", "offset", "value")), strict=True)
                    )
                else:
                    rows = [
                        (message.partition, message.offset, message.value or b"")
                        for message in await consumer.fetch(100)
                    ]
                for partition, offset, value in rows:
                    values = read.setdefault(partition, [])
                    assert offset == len(values)
                    values.append(value)
        return read


@asynccontextmanager
async def cluster(tmp_path: Path, **settings: object) -> AsyncIterator[Cluster]:
    root, found = tmp_path / "root", Found()
    parsed = load_settings(None, **{"port": 0, "cache_bytes_max": 0, "background_compaction": False} | settings)
    async with await Node.start(root.as_uri(), parsed, Sources(), hooks=Hooks(owners=found)) as node:
        yield Cluster(node, found, root)


@pytest.mark.parametrize("arrow", [False, True])
async def test_a_consumer_that_reads_segments_gets_what_everybody_gets(tmp_path: Path, arrow: bool) -> None:
    async with cluster(tmp_path) as made, ledgermq.connect(made.node.address) as client:
        await client.create_topic("t", PARTITIONS)
        await made.send(client, 1000)
        async with client.consumer("t", direct_reads=made.root.as_uri()) as consumer:
            assert await made.read(consumer, arrow=arrow) == made.sent
        assert set(made.found.bytes) == {"direct"}
        async with client.consumer("t") as consumer:
            assert await made.read(consumer, arrow=arrow) == made.sent
        assert set(made.found.bytes) == {"direct", "segment"}


async def test_a_member_of_a_group_and_an_embedded_client_read_segments_too(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made, ledgermq.connect(made.node.address) as client:
        await client.create_topic("t", PARTITIONS)
        await made.send(client, 300)
        async with client.consumer("t", group="g", direct_reads=made.root.as_uri()) as member:
            assert await made.read(member) == made.sent
        assert made.found.bytes["direct"] > 0
        async with (
            ledgermq.connect(made.root.as_uri()) as other,
            other.consumer("t", direct_reads=made.root.as_uri()) as consumer,
        ):
            assert await made.read(consumer) == made.sent


async def test_segments_that_are_trimmed_behind_a_consumer_cost_it_nothing_but_a_question(tmp_path: Path) -> None:
    async with cluster(tmp_path, background_compaction=True) as made, ledgermq.connect(made.node.address) as client:
        await client.create_topic("t", PARTITIONS, {"parquet.max.lag.ms": 0})
        sending = asyncio.create_task(made.send(client, 1500))
        expected = dict.fromkeys(range(PARTITIONS), 500)
        consumer = client.consumer("t", direct_reads=made.root.as_uri())
        read: dict[int, list[bytes | None]] = {partition: [] for partition in expected}
        async with asyncio.timeout(90):
            while {partition: len(values) for partition, values in read.items()} != expected:
                for message in await consumer.fetch(20):
                    assert message.offset == len(read[message.partition])
                    read[message.partition].append(message.value)
        await sending
        assert read == made.sent


@pytest.mark.parametrize("spoil", ["removed", "filled with others' bytes", "cut short"])
async def test_segments_that_are_not_what_the_broker_said_are_not_read(tmp_path: Path, spoil: str) -> None:
    """The consumer sees another folder under the name that the broker gives: one host is not the
    other.
    """
    async with cluster(tmp_path) as made, ledgermq.connect(made.node.address) as client:
        await client.create_topic("t", PARTITIONS)
        await made.send(client, 300)
        seen = await seen_elsewhere(made, tmp_path)
        segments = [path for path in seen.rglob("segments/*") if path.is_file()]
        assert segments
        for segment in segments:
            if spoil == "removed":
                segment.unlink()
            else:
                segment.write_bytes(
                    bytes(segment.stat().st_size) if spoil != "cut short" else segment.read_bytes()[:100]
                )
        async with client.consumer("t", direct_reads=seen.as_uri()) as consumer:
            assert await made.read(consumer) == made.sent
        assert {"direct", "segment"} == set(made.found.bytes)


async def seen_elsewhere(made: Cluster, tmp_path: Path) -> Path:
    """A copy of the root, of which the broker says that it is the root."""
    seen = tmp_path / "seen"
    await asyncio.to_thread(shutil.copytree, made.root, seen)
    store = made.node.broker.context.store

    async def share(key: str, life_ms: int) -> str:
        return f"{seen.as_uri()}/{key}"

    store.share = share  # type: ignore[method-assign]
    return seen


async def test_a_root_of_another_name_is_not_opened(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made, ledgermq.connect(made.node.address) as client:
        await client.create_topic("t", PARTITIONS)
        await made.send(client, 300)
        async with client.consumer("t", direct_reads=(tmp_path / "mounted elsewhere").as_uri()) as consumer:
            assert await made.read(consumer) == made.sent


async def test_a_broker_says_where_only_if_it_is_asked_and_may(tmp_path: Path) -> None:
    for allowed, asked in ((None, True), (None, False), (False, True)):
        folder = tmp_path / f"{allowed}-{asked}"
        async with cluster(folder, direct_reads=allowed) as made, ledgermq.connect(made.node.address) as client:
            await client.create_topic("t", PARTITIONS)
            await made.send(client, 30)
            answer = await answers(made, asked)
            batches = [batch for part in answer.header.partitions for batch in part.batches]
            assert len(batches) >= PARTITIONS
            if asked and allowed is None:
                assert answer.payload_bytes == 0
                assert {batch.object for batch in batches} == set(range(1, len(answer.header.objects) + 1))
                assert all(
                    url.startswith(f"{made.root.as_uri()}/{keys.segments(1)[:6]}") for url in answer.header.objects
                )
            else:
                assert answer.payload_bytes == sum(batch.length for batch in batches)
                assert not answer.header.objects


async def test_located_bytes_count_to_the_size_of_an_answer(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made, ledgermq.connect(made.node.address) as client:
        await client.create_topic("t", PARTITIONS)
        await made.send(client, 1000)
        answer = await answers(made, True, max_bytes=5000)
        sizes = [batch.length for part in answer.header.partitions for batch in part.batches]
        assert len(sizes) >= PARTITIONS
        assert sum(sizes) <= 5000 + PARTITIONS * max(sizes)


async def answers(made: Cluster, direct: bool, max_bytes: int = 0) -> FetchFrame:
    partitions = [pb.FetchPartition(topic="t", partition=number) for number in range(PARTITIONS)]
    async with RawClient(made.node.address) as raw:
        return await raw.line(made.node.address).fetch_once(
            pb.FetchRequest(partitions=partitions, direct=direct, max_bytes=max_bytes)
        )


@pytest.mark.parametrize("source", ["direct", "segment"])
async def test_only_batches_that_may_have_the_tag_are_read(tmp_path: Path, source: str) -> None:
    async with cluster(tmp_path) as made, ledgermq.connect(made.node.address) as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            for number in range(60):
                for _ in range(5):
                    producer.send("t", bytes(1000), tag="rare" if number % 20 == 7 else "common")
                await producer.flush()
        place = made.root.as_uri() if source == "direct" else ""
        async with client.consumer("t", until_end=True, direct_reads=place) as consumer:
            assert len([message async for message in consumer]) == 300
        whole = made.found.bytes.pop(source)
        async with client.consumer("t", until_end=True, direct_reads=place, filter="rare") as consumer:
            assert [message.offset async for message in consumer] == [
                *range(35, 40),
                *range(135, 140),
                *range(235, 240),
            ]
            assert (consumer.position(0), consumer.filtered) == (300, 285)
        assert made.found.bytes == {source: whole // 20}
