"""Test `reminders.py` in virtual time, by the fixtures of docs/testing.md.

pytest examples/test_reminders.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import reminders

import ledgermq
from ledgermq_tools.testing.cluster import LedgermqCluster


@asynccontextmanager
async def running(client: ledgermq.Client) -> AsyncIterator[None]:
    task = asyncio.create_task(reminders.remind(client))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def two_orders_of_which_one_is_paid(client: ledgermq.Client) -> None:
    async with client.producer() as producer:
        await producer.send("orders", "two coffees", key="table-7")
        await producer.send("orders", "one pizza", key="table-8")
        await producer.send("payments", "by card", key="table-8")


async def reminded(client: ledgermq.Client) -> list[bytes | None]:
    async with client.consumer("reminders", until_end=True) as consumer:
        return [message.key async for message in consumer]


async def test_only_unpaid_orders_get_a_reminder_and_only_after_a_while(
    ledgermq_cluster: LedgermqCluster, ledgermq_client: ledgermq.Client
) -> None:
    async with running(ledgermq_client):
        await ledgermq_cluster.clock.advance(60)
        await two_orders_of_which_one_is_paid(ledgermq_client)
        await ledgermq_cluster.clock.advance(timedelta(minutes=14))
        assert await reminded(ledgermq_client) == []
        await ledgermq_cluster.clock.advance(timedelta(minutes=2))
        assert await reminded(ledgermq_client) == [b"table-7"]


async def test_a_reminder_comes_although_the_program_was_restarted(
    ledgermq_cluster: LedgermqCluster, ledgermq_client: ledgermq.Client
) -> None:
    async with running(ledgermq_client):
        await ledgermq_cluster.clock.advance(60)
        await two_orders_of_which_one_is_paid(ledgermq_client)
        await ledgermq_cluster.clock.advance(60)
    await ledgermq_cluster.clock.advance(timedelta(minutes=20))
    assert await reminded(ledgermq_client) == []
    async with running(ledgermq_client):
        await ledgermq_cluster.clock.advance(60)
        assert await reminded(ledgermq_client) == [b"table-7"]
