"""Broadcast on brokers in virtual time: every consumer receives all messages and keeps its own
position, and failures delay no other consumer.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

import ledgermq
from ledgermq.errors import InvalidConfig
from ledgermq.offset_stores import FileOffsetStore, MemoryOffsetStore
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.group_clients import drop, fill, take
from tests.e2e.test_client_takeover import client_of
from tests.virtual_time import virtual_sources
from tests.waiting import until


@in_cluster("a:1", "b:1")
async def test_every_consumer_gets_everything(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 3)
        values = sorted(await fill(client, "t", 30))
        consumers = [client.consumer("t", group="news", broadcast=True) for _ in range(3)]
        for consumer in consumers:
            assert sorted(await take(consumer, 30)) == values
            assert len(consumer.assignment) == 3
        assert await client.groups.list() == [], "no broker coordinates it"


@in_cluster("a:1")
async def test_a_late_one_starts_where_it_is_told(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 5)
        await asyncio.sleep(1)
        moment = datetime.fromtimestamp(virtual_sources().now_ms() / 1000, UTC)
        await asyncio.sleep(1)
        await fill(client, "t", 3, name="middle")
        async with (
            client.consumer("t", group="g", broadcast=True, start="latest") as latest,
            client.consumer("t", group="g", broadcast=True, start=moment) as since,
        ):
            await latest.wait_ready()
            await fill(client, "t", 1, name="last")
            assert await take(latest, 1) == [b"last0"]
            assert await take(since, 4) == [b"middle0", b"middle1", b"middle2", b"last0"]


@in_cluster("a:1")
async def test_the_place_is_kept_where_the_program_says(cluster: Cluster) -> None:
    store = MemoryOffsetStore()
    async with client_of(cluster) as client:
        await client.create_topic("t", 2)
        await fill(client, "t", 10)
        async with client.consumer("t", group="g", broadcast=True, offset_store=store) as consumer:
            await take(consumer, 10)
            assert await consumer.fetch(timeout=0.1) == []
        await fill(client, "t", 1, name="new")
        async with client.consumer("t", group="g", broadcast=True, offset_store=store) as consumer:
            assert await take(consumer, 1) == [b"new0"]
        async with client.consumer("t", group="g", broadcast=True) as consumer:
            assert len(await take(consumer, 11)) == 11


async def test_a_file_outlives_the_process_and_what_was_not_finished_comes_again(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    async with ledgermq.connect("memory://broadcast-file") as client:
        await client.create_topic("t", 1)
        values = await fill(client, "t", 10)
        settings = {"broadcast": True, "commit": "acked", "commit_interval_ms": 50}
        consumer = client.consumer("t", group="g", offset_store=FileOffsetStore(path), **settings)
        messages = await consumer.fetch(timeout=10.0)
        for message in messages[:4]:
            message.ack()
        async with asyncio.timeout(10):
            while (await consumer.committed())[ledgermq.TopicPartition("t", 0)] != 4:
                await asyncio.sleep(0.02)
        await drop(consumer)
        async with client.consumer("t", group="g", offset_store=FileOffsetStore(path), **settings) as again:
            assert await take(again, 6) == values[4:]


@in_cluster("a:1")
async def test_handlers_skip_what_fails_and_report_it(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 5)
        seen: list[bytes] = []
        failed: list[tuple[bytes, int]] = []

        def on_failure(message: ledgermq.GroupMessage, error: Exception, attempt: int) -> None:
            failed.append((message.value or b"", attempt))

        @client.handler("t", group="g", broadcast=True, on_failure=on_failure)
        async def handle(message: ledgermq.GroupMessage) -> None:
            if message.value == b"2":
                raise ValueError
            seen.append(message.value or b"")

        running = asyncio.create_task(client.run_handlers())
        await until(lambda: len(seen) == 4)
        running.cancel()
        assert seen == [b"0", b"1", b"3", b"4"]
        assert failed == [(b"2", 1)]


@in_cluster("a:1", "b:1")
async def test_topics_that_grow_and_that_are_made_again_are_seen(cluster: Cluster) -> None:
    async with client_of(cluster, metadata_age_s_max=2.0) as client:
        await client.create_topic("t", 1)
        async with client.consumer("t", group="g", broadcast=True) as consumer:
            await fill(client, "t", 2)
            await take(consumer, 2)
            await client.alter_topic("t", 3)
            await fill(client, "t", 2, name="grown", partition=2)
            assert await take(consumer, 2) == [b"grown0", b"grown1"]
            await client.delete_topic("t")
            await client.create_topic("t", 1)
            await fill(client, "t", 2, name="again")
            assert await take(consumer, 2) == [b"again0", b"again1"]


@in_cluster("a:1")
async def test_a_broadcast_reads_no_pattern(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        with pytest.raises(InvalidConfig, match="pattern"):
            client.consumer("^t", group="g", broadcast=True)
