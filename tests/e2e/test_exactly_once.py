"""Each message takes effect exactly once: results and offsets in one transaction of a database, members that die at every point."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

import ledgermq
from ledgermq.errors import StaleAssignment
from ledgermq.offset_stores.sql import SqlOffsetStore

COUNT = 60


class Died(Exception):
    """The member ends here, as if its process had been killed."""


def results(engine: Engine) -> int:
    with engine.begin() as transaction:
        return int(transaction.execute(text("SELECT count(*) FROM results")).scalar_one())


async def member(client: ledgermq.Client, engine: Engine, die_after: int, where: str) -> None:
    """Handles messages until it dies, before or behind the end of its `die_after`-th transaction; or until there are all results."""
    store = SqlOffsetStore(engine)
    consumer = client.consumer("t", group="g", commit="manual", offset_store=store, session_timeout_s=10.0, heartbeat_wait_s=0.5)

    def work(messages: list[ledgermq.GroupMessage], entries: list[ledgermq.OffsetEntry], *, dies: bool) -> None:
        with engine.begin() as transaction:
            for message in messages:
                transaction.execute(text("INSERT INTO results VALUES (:value)"), {"value": int(message.value or b"")})
            store.commit_in(transaction, "g", entries)
            if dies and where == "before":
                raise Died

    try:
        transactions = 0
        while results(engine) < COUNT:
            messages = await consumer.fetch(max_records=5, timeout=1.0)
            if not messages:
                continue
            transactions += 1
            dies = transactions == die_after
            await asyncio.to_thread(work, messages, consumer.entries(messages), dies=dies)
            if dies:
                raise Died
            for message in messages:
                message.ack()
    finally:
        await consumer.close()


async def test_every_message_counts_once_whoever_dies(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/results.db")
    await SqlOffsetStore(engine).create_table()
    with engine.begin() as transaction:
        transaction.execute(text("CREATE TABLE results (value INTEGER)"))
    async with ledgermq.connect("memory://exactly-once") as client:
        await client.create_topic("t", 2)
        async with client.producer() as producer:
            for number in range(COUNT):
                producer.send("t", b"%d" % number, partition=number % 2)
            await producer.flush()
        for die_after, where in ((1, "before"), (2, "behind"), (1, "behind"), (3, "before")):
            with pytest.raises(Died):
                await member(client, engine, die_after, where)
        await member(client, engine, 0, "never")
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
