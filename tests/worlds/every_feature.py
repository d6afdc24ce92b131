"""Use each feature that the dashboard shows: so a test of the dashboard sees real figures, in containers and in
virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import ledgermq
from ledgermq.errors import BacklogQuotaExceeded, LedgerMQError

PATIENCE_S = 120.0
NARROW = "user:narrow"
"""The principal with a quota: that of the client `narrow`."""

USED = {
    "filters": "ledgermq_filtered_bytes_total",
    "quotas": "ledgermq_quota_refusals_total",
    "backlogs, refused": "ledgermq_backlog_refusals_total",
    "backlogs, deleted": "ledgermq_backlog_evicted_records_total",
    "queues": "ledgermq_queue_messages_leased_total",
    "queues, answers": "ledgermq_queue_messages_answered_total",
    "queues, ended leases": "ledgermq_queue_leases_expired_total",
    "queues, late answers": "ledgermq_queue_messages_answered_late_total",
    "exclusive producers": "ledgermq_exclusive_producer_changes_total",
    "ids of messages": "ledgermq_duplicate_records_total",
    "transactions": "ledgermq_transactions_ended_total",
    "delayed messages": "ledgermq_timed_messages_delivered_total",
    "recalls": "ledgermq_timed_recalls_total",
}
"""By feature, a counter that is above zero once `use_every_feature` has returned."""


async def use_every_feature(client: ledgermq.Client, narrow: ledgermq.Client) -> None:
    """`client` may do everything. `narrow` is another principal, NARROW, which may produce to the topic `narrow`."""
    for use in (_filters, _queues, _exclusive_producers, _ids, _transactions, _delayed_messages):
        await use(client)
    await _backlogs(client)
    await _quotas(client, narrow)


async def _filters(client: ledgermq.Client) -> None:
    await client.create_topic("tagged", 1)
    async with client.producer() as producer:
        for tag in ("a", "b", "b", "a"):
            await producer.send("tagged", tag, tag=tag)
    async with client.consumer("tagged", filter="a", until_end=True) as consumer:
        assert [message.value async for message in consumer] == [b"a", b"a"]


async def _queues(client: ledgermq.Client) -> None:
    await client.create_topic("jobs", 1)
    async with client.producer() as producer:
        await producer.send_many("jobs", ["0", "1"])
    async with client.queue("jobs", group="workers", lease_s=1) as slow, client.queue("jobs", group="workers") as queue:
        late = await slow.fetch(1, timeout=30)
        found = await _fetched(lambda: queue.fetch(2, timeout=30), 2)
        assert not await late[0].ack(), "its lease has ended"
        for message in found:
            assert await message.ack()


async def _fetched(
    fetch: Callable[[], Awaitable[list[ledgermq.QueueMessage]]], records: int
) -> list[ledgermq.QueueMessage]:
    found: list[ledgermq.QueueMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < records:
            found += await fetch()
    return found


async def _exclusive_producers(client: ledgermq.Client) -> None:
    await client.create_topic("alone", 1)
    async with client.producer(access_mode="exclusive", name="writer") as producer:
        await producer.send("alone", "42")


async def _ids(client: ledgermq.Client) -> None:
    await client.create_topic("once", 1, {"dedup.window.ms": "10m"})
    async with client.producer() as producer:
        first, again = [await producer.send("once", "20 EUR", id="order-17") for _ in range(2)]
    assert (first.duplicate, again.duplicate) == (False, True)


async def _transactions(client: ledgermq.Client) -> None:
    await client.create_topic("booked", 1)
    async with client.transactions("books") as transactions, transactions.begin() as transaction:
        transaction.send("booked", "both or neither")


async def _delayed_messages(client: ledgermq.Client) -> None:
    await client.create_topic("later", 1)
    async with client.producer() as producer:
        await producer.send("later", "soon", delay=1)
        sent = await producer.send("later", "never", delay=3600)
    assert sent.handle is not None
    assert await client.recall(sent.handle) == "recalled"
    async with client.consumer("later", start="earliest") as consumer, asyncio.timeout(PATIENCE_S):
        while not await consumer.fetch(timeout=10):
            pass


async def _backlogs(client: ledgermq.Client) -> None:
    """A group stands still, so that one topic refuses records, and another one deletes them."""
    quota = {"backlog.quota.bytes": 10_000}
    await client.create_topic("refusing", 1, quota | {"backlog.quota.policy": "producer_exception"})
    await client.create_topic("deleting", 1, quota | {"backlog.quota.policy": "consumer_backlog_eviction"})
    async with client.producer() as producer:
        for topic in ("refusing", "deleting"):
            await producer.send(topic, b"first")
            async with client.consumer(topic, group=f"stands-still-at-{topic}", commit="manual") as consumer:
                await consumer.wait_ready()
        await _until_above(producer, "refusing", lambda: _is_refused(producer))
        await _until_above(producer, "deleting", lambda: _has_deleted(client))


async def _until_above(producer: ledgermq.Producer, topic: str, is_above: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(30):
        try:
            await producer.send(topic, bytes(1000))
        except BacklogQuotaExceeded:
            break
    async with asyncio.timeout(PATIENCE_S):
        while not await is_above():
            await asyncio.sleep(1)


async def _is_refused(producer: ledgermq.Producer) -> bool:
    try:
        await producer.send("refusing", b"one more")
    except BacklogQuotaExceeded:
        return True
    return False


async def _has_deleted(client: ledgermq.Client) -> bool:
    return (await client.list_offsets("deleting", "earliest"))[0] > 0


async def _quotas(client: ledgermq.Client, narrow: ledgermq.Client) -> None:
    await client.create_topic("narrow", 1)
    await client.quotas.set(NARROW, requests=1)
    async with narrow.producer(delivery_timeout_s=10) as producer, asyncio.timeout(PATIENCE_S):
        for _ in range(20):
            try:
                await producer.send("narrow", b"too often")
            except LedgerMQError:
                break
    await client.quotas.unset(NARROW)
