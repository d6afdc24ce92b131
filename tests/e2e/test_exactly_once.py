"""Each message takes effect exactly once: results and offsets in one database transaction, members
killed at every point.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

import ledgermq
from ledgermq.errors import StaleAssignment
from ledgermq.offset_stores.sql import SqlOffsetStore
from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.settings.processes import load_settings

COUNT = 60
MEMBER_S_MAX = 120.0


def member(target: str, database: str, die_after: int, where: str) -> int:
    """Run one member until it dies or all results are there; return its exit code."""
    command = [
        sys.executable,
        "-m",
        "tests.e2e.exactly_once_member",
        target,
        database,
        str(COUNT),
        str(die_after),
        where,
    ]
    return subprocess.run(command, check=False, timeout=MEMBER_S_MAX).returncode


@pytest.mark.slow
async def test_every_message_counts_once_though_processes_are_killed(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/results.db"
    engine = create_engine(database)
    await SqlOffsetStore(engine).create_table()
    with engine.begin() as transaction:
        transaction.execute(text("CREATE TABLE results (value INTEGER)"))
    settings = load_settings(None, port=0, background_compaction=False)
    async with await Node.start((tmp_path / "root").as_uri(), settings, Sources()) as node:
        async with ledgermq.connect(node.address) as client:
            await client.create_topic("t", 2)
            async with client.producer() as producer:
                for number in range(COUNT):
                    producer.send("t", b"%d" % number, partition=number % 2)
                await producer.flush()
        for die_after, where in ((1, "before"), (2, "behind")):
            assert await asyncio.to_thread(member, node.address, database, die_after, where) == -signal.SIGKILL
        assert await asyncio.to_thread(member, node.address, database, 0, "never") == 0
    with engine.begin() as transaction:
        values = [row.value for row in transaction.execute(text("SELECT value FROM results ORDER BY value"))]
    engine.dispose()
    assert values == list(range(COUNT))


async def test_a_member_that_was_put_out_stores_nothing(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/results.db")
    store = SqlOffsetStore(engine)
    await store.create_table()
    async with ledgermq.connect("memory://put-out") as client:
        await client.create_topic("t", 1)
        async with client.producer() as producer:
            await producer.send("t", b"1")
        async with client.consumer("t", group="g", commit="manual", offset_store=store) as consumer:
            messages = await consumer.fetch(timeout=10.0)
            entries = consumer.entries(messages)
            [entry] = entries
            later = ledgermq.GivenPartition(entry.given.partition, entry.given.topic_id, entry.given.epoch + 1)
            await store.load("g", [later])  # what the next member does first

            def work() -> None:
                with engine.begin() as transaction:
                    store.commit_in(transaction, "g", entries)

            with pytest.raises(StaleAssignment):
                await asyncio.to_thread(work)
        assert (await store.load("g", [later]))[entry.given.partition].offset == 0, "where it began, and no further"
    engine.dispose()
