"""Random lives of members whose programs fail, on brokers that die, stop and resume, in virtual time: each
failed message moves once, with the offset above it.

Some messages always fail; each of them must be in the dead-letter topic once. No attempt is moved twice. In
the end everything else was handled. A seed repeats the run.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

import ledgermq
from ledgermq import Retry, errors
from ledgermq.client.groups import retry_topics
from ledgermq.client.transactions.transaction import Transaction
from tests.broker.cluster import Cluster, cluster_of, in_cluster
from tests.e2e.group_clients import drop, fill
from tests.e2e.test_client_takeover import client_of
from tests.virtual_time import virtual
from tests.waiting import until

PARTITIONS = 3
MESSAGES = 120
TROUBLE_S = 60.0
ATTEMPTS = 3
POISON_EVERY = 10
SEEDS = 2
"""Level *groups* of the simulation judges the same of failing members on as many seeds as one likes."""


def is_poison(origin: retry_topics.Origin) -> bool:
    return origin.offset % POISON_EVERY == 3


async def moves_in(client: ledgermq.Client, topic: str) -> list[retry_topics.Failures]:
    async with client.consumer(topic, until_end=True) as consumer:
        found = [retry_topics.failures_of(message.headers) async for message in consumer]
    assert None not in found
    return [failures for failures in found if failures is not None]


class Storm:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.handled: set[retry_topics.Origin] = set()
        self.calm = False

    async def member(self, client: ledgermq.Client) -> None:
        while True:
            consumer = client.consumer(
                "t",
                group="g",
                commit="acked",
                commit_interval_ms=self.random.choice((50, 500, 5000)),
                session_timeout_s=6,
                heartbeat_wait_s=1,
                max_poll_interval_s=10,
                revoke_wait_s=self.random.choice((0, 1, 8)),
                request_timeout_s=10,
                retry=Retry.levels(ATTEMPTS, self.random.choice(([0], [2, 10]))),
            )
            try:
                await self.live(consumer, asyncio.get_running_loop().time() + self.random.uniform(2, 25))
                if self.random.random() < 0.5:
                    await drop(consumer)
                else:
                    await consumer.close()
            except errors.LedgerMQError:
                await drop(consumer)
            await asyncio.sleep(self.random.uniform(0, 5))

    async def live(self, consumer: ledgermq.GroupConsumer, until_s: float) -> None:
        todo: list[ledgermq.GroupMessage] = []
        while self.calm or asyncio.get_running_loop().time() < until_s:
            todo += await consumer.fetch(self.random.choice((1, 5, 50)), timeout=self.random.choice((0.1, 1)))
            self.random.shuffle(todo)
            for _ in range(len(todo) if self.calm else self.random.randint(0, len(todo))):
                message = todo.pop()
                fails_once = not self.calm and message.attempt < ATTEMPTS and self.random.random() < 0.1
                if is_poison(message.origin) or fails_once:
                    message.nack()
                else:
                    self.handled.add(message.origin)
                    message.ack()

    async def trouble(self) -> None:
        count = 3
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 8))
            address = self.random.choice(list(self.cluster.brokers))
            if self.random.random() < 0.5:
                self.cluster.views[address].pause()
                try:
                    await asyncio.sleep(self.random.uniform(0.1, 6))
                finally:
                    self.cluster.views[address].resume()
            else:
                await self.cluster.stop(address, graceful=self.random.random() < 0.3)
                count += 1
                await self.cluster.start(f"b{count}:1")

    async def run(self) -> None:
        async with client_of(self.cluster, attempt_timeout_s=3) as client:
            await client.create_topic("t", PARTITIONS)
            async with asyncio.TaskGroup() as tasks:
                members = [tasks.create_task(self.member(client)) for _ in range(3)]
                trouble = tasks.create_task(self.trouble())
                for number in range(4):
                    await fill(client, "t", MESSAGES // 4, name=f"{number}-")
                    await asyncio.sleep(TROUBLE_S / 4)
                trouble.cancel()
                self.calm = True
                each = range(MESSAGES // PARTITIONS)
                origins = {retry_topics.Origin("t", part, at) for part in range(PARTITIONS) for at in each}
                poison = {origin for origin in origins if is_poison(origin)}
                assert len(poison) > 5
                async with asyncio.timeout(300):
                    while True:
                        dead = await moves_in(client, "g.dlq")
                        if self.handled >= origins - poison and {each.origin for each in dead} >= poison:
                            break
                        await asyncio.sleep(1)
                await asyncio.sleep(30)
                for member in members:
                    member.cancel()
            dead = await moves_in(client, "g.dlq")
            assert sorted(each.origin for each in dead) == sorted(poison)
            attempts = Counter((each.origin, each.attempts) for each in [*await moves_in(client, "g.retry"), *dead])
            assert set(attempts.values()) == {1}, "a message moves with the commit above it, so once"
            assert all(attempts[origin, attempt] == 1 for origin in poison for attempt in range(1, ATTEMPTS + 1))


@pytest.mark.parametrize("seed", range(SEEDS))
@virtual
async def test_failing_members_in_a_storm(seed: int) -> None:
    async with cluster_of("b1:1", "b2:1", "b3:1") as cluster:
        await Storm(cluster, seed).run()


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
@in_cluster("a:1")
async def test_a_member_that_dies_around_the_commit_moves_a_message_once(
    cluster: Cluster, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, died = Transaction.commit, asyncio.Event()

    async def dies(transaction: Transaction, timeout_s: float | None = None) -> None:
        if moment == "after the commit":
            await commit(transaction, timeout_s)
        died.set()
        await asyncio.Event().wait()

    async with client_of(cluster) as client:
        await client.create_topic("t", 1)
        await fill(client, "t", 5)
        settings = {"commit_interval_ms": 100, "session_timeout_s": 6, "heartbeat_wait_s": 1}
        retry = Retry.levels(1)
        first = client.consumer("t", group="g", commit="acked", retry=retry, **settings)  # type: ignore[arg-type]
        messages = await first.fetch()
        monkeypatch.setattr(Transaction, "commit", dies)
        assert messages[0].ack()
        assert messages[1].nack()
        await asyncio.wait_for(died.wait(), 60)
        await drop(first)
        monkeypatch.setattr(Transaction, "commit", commit)
        seen: list[int] = []
        async with client.consumer("t", group="g", commit="acked", retry=retry, **settings) as second:  # type: ignore[arg-type]

            async def all_seen() -> bool:
                for message in await second.fetch(timeout=1):
                    seen.append(message.offset)
                    assert message.nack() if message.offset == 1 else message.ack()
                return 4 in seen

            await until(all_seen, 200)
        assert seen == ([0, 1, 2, 3, 4] if moment == "before the commit" else [2, 3, 4])
        await asyncio.sleep(40)
        assert [each.origin.offset for each in await moves_in(client, "g.dlq")] == [1]
