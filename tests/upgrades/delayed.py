"""Use delayed messages, so that another release is asked the same, and leave some in a cluster, so that
another release finds them.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import ledgermq
from ledgermq.client.messages.record import microseconds_of
from ledgermq.protocol import ledgermq_pb2 as pb
from tests.broker.cluster import frame_of
from tests.e2e.raw_client import RawClient
from tests.waiting import until

LEFT_OPTIONS = ("--constant-flush-after-ms=2000", "--constant-log-start-ms=2000")
"""For the broker that leaves delayed messages: what is due later than soon is in ranges within seconds."""
FLUSHED_S = 4.0
"""A flush has come by then."""
SOON_S = 75.0
"""It stays in memory: a flush leaves there what is due within 90 s."""
MINUTE_S = 200.0
TEN_MINUTES_S = 600.0
WINDOW_S = (130.0, 380.0)
"""Of each ten minutes. Earlier, there are too few ranges of a minute for the rest, so that more stays in
memory; later, what is due in `MINUTE_S` waits in a range of ten minutes.
"""
WAITING_S = {
    "minute": MINUTE_S,
    "ten minutes": 1100.0,
    "two hours": 18_000.0,
    "day": 5 * 86_400.0,
    "month": 100 * 86_400.0,
}
"""By the width of the range that each waits in, unless a wider range begins before its time: a test of the
root says so. Then write it at another time of the day.
"""
TTL_S = 3600.0
FADING = "with a time to live"
XID_FORMAT, XID = 17, "delayed"
PARTITIONS = 2


@dataclass(frozen=True)
class Left:
    """A delayed message that was left. `state`: waiting, recalled, delivered, prepared (it waits for the end
    of a transaction), aborted. `due_us`: the record's timestamp. `handle`: None in a transaction.
    """

    state: str
    partition: int
    value: str
    due_us: int
    handle: str | None = None


async def leave_delayed(client: ledgermq.Client, topic: str) -> list[Left]:
    """Leave delayed messages in partitions 0 and 1 of a topic: delivered, recalled, in each kind of range,
    with a time to live, and of transactions that are committed, aborted and prepared.
    """
    while not WINDOW_S[0] < (into_s := time.time() % TEN_MINUTES_S) < WINDOW_S[1]:
        await asyncio.sleep((WINDOW_S[0] - into_s) % TEN_MINUTES_S + 0.1)
    sender = _Sender(client, topic)
    for partition in range(PARTITIONS):
        await sender.send("delivered", partition, "past due", -60)
        for number, (width, after_s) in enumerate(WAITING_S.items()):
            await sender.send("waiting", partition, f"range of a {width}", after_s + number)
        await sender.send("waiting", partition, FADING, WAITING_S["day"] + 60, TTL_S)
        await sender.recall(await sender.send("recalled", partition, "recalled at once", WAITING_S["month"] + 60))
    later = [await sender.send("recalled", each, "recalled", WAITING_S["month"] + 120) for each in range(PARTITIONS)]
    sender.left += await _leave_in_transactions(client, topic, sender.due(WAITING_S["day"] + 120))
    await until(lambda: _is_moved(client, topic), every_s=0.2)
    for handle in later:
        await sender.recall(handle)
    return sender.left


async def leave_in_the_intake(client: ledgermq.Client, topic: str) -> list[Left]:
    """Leave delayed messages that are due soon, so that they stay in memory, and ones that no flush has come
    to if the broker is stopped now.
    """
    sender = _Sender(client, topic)
    for partition in range(PARTITIONS):
        await sender.send("waiting", partition, "in memory", SOON_S)
    await asyncio.sleep(FLUSHED_S)
    for partition in range(PARTITIONS):
        await sender.send("waiting", partition, "not flushed", WAITING_S["two hours"] + 60)
    return sender.left


class _Sender:
    """`left`: what was sent."""

    def __init__(self, client: ledgermq.Client, topic: str) -> None:
        self.left: list[Left] = []
        self._client = client
        self._topic = topic
        self._begun_s = time.time()

    def due(self, after_s: float) -> datetime:
        return datetime.fromtimestamp(round(self._begun_s + after_s), UTC)

    async def send(self, state: str, partition: int, value: str, after_s: float, ttl_s: float | None = None) -> str:
        """Return the handle."""
        due = self.due(after_s)
        async with self._client.producer(linger_ms=0) as producer:
            result = await producer.send(
                self._topic, value, key="k", partition=partition, deliver_at=due, ttl=ttl_s, headers={"h": b"1"}
            )
        assert result.handle is not None
        self.left.append(Left(state, partition, value, microseconds_of(due), result.handle))
        return result.handle

    async def recall(self, handle: str) -> None:
        assert await self._client.recall(handle) is ledgermq.RecallOutcome.RECALLED


async def _leave_in_transactions(client: ledgermq.Client, topic: str, due: datetime) -> list[Left]:
    left = []
    for state, name in (("waiting", "committed"), ("aborted", "aborted")):
        async with client.transactions(f"delayed-{name}") as transactions, transactions.begin() as transaction:
            for partition in range(PARTITIONS):
                value = f"of a transaction, {name}"
                transaction.send(topic, value, key="k", partition=partition, deliver_at=due)
                left.append(Left(state, partition, value, microseconds_of(due)))
            if name == "aborted":
                await transaction.flush()
                await transaction.abort()
    async with client.transactions.two_phase() as branch:
        await branch.tpc_begin(branch.xid(XID_FORMAT, XID))
        for partition in range(PARTITIONS):
            branch.send(topic, "prepared", key="k", partition=partition, deliver_at=due)
            left.append(Left("prepared", partition, "prepared", microseconds_of(due)))
        await branch.tpc_prepare()
    return left


async def _is_moved(client: ledgermq.Client, topic: str) -> bool:
    """Return whether everything that can wait in ranges does."""
    found = await client.list_delayed(topic)
    ranges = [each for bundle in found.bundles for each in bundle.ranges]
    return sum(bundle.messages for bundle in found.bundles) == sum(each.messages for each in ranges)


async def use_delayed(client: ledgermq.Client, target: str, topic: str) -> None:
    """Make every call that there is about delayed messages, in a topic of one partition that no other call
    reads: when the calls are repeated, what waits now may be due already.
    """
    async with client.producer() as producer:
        kept = await producer.send(topic, "kept", key="k", delay=timedelta(days=300))
        recalled = await producer.send(topic, "recalled", delay_level=18)
    for result in (recalled, kept):
        assert result.handle is not None
    assert await client.recall(recalled.handle or "") is ledgermq.RecallOutcome.RECALLED
    await client.list_delayed(topic)
    async with client.transactions("later") as transactions, transactions.begin() as transaction:
        transaction.send(topic, "of a transaction", delay=timedelta(days=300))
    async with RawClient(target) as raw:  # what the SDK leaves to other clients
        [result_once] = (await raw.line(target).produce_delayed_once(frame_of(topic, 0, b"past due"))).results
        assert not result_once.HasField("error"), result_once.error
        await raw.line(target).list_delayed(pb.ListDelayedRequest(bundle=1))
