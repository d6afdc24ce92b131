"""Random lives of members on brokers that die, stop and resume, in virtual time: no unhandled
message is ever committed.

A member that is given a partition begins at or before the first message that no member has handled;
this is checked at each assignment. In the end everything was handled. A seed repeats the run.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

import ledgermq
from ledgermq import TopicPartition, errors
from tests.broker.cluster import Cluster, cluster_of
from tests.e2e.group_clients import drop, fill
from tests.e2e.test_client_takeover import client_of
from tests.virtual_time import virtual

PARTITIONS = 5
MESSAGES = 400
TROUBLE_S = 60.0
SEEDS = 4
"""Level *groups* of the simulation judges the same of real members on as many seeds as one likes."""


class Storm:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.handled: dict[TopicPartition, set[int]] = defaultdict(set)
        self.calm = False
        self.told: defaultdict[str, int] = defaultdict(int)

    # -- members
    # -------------------------------------------------------------------------------------------------------

    async def member(self, client: ledgermq.Client) -> None:
        """One life after the other, each with its own mode and its own end."""
        while True:
            mode = self.random.choice(("auto", "acked", "manual"))
            in_order = self.random.random() < 0.5
            consumer = client.consumer(
                "t",
                group="g",
                retry=ledgermq.Retry.in_order() if in_order else None,
                commit=mode,
                commit_interval_ms=self.random.choice((50, 500, 5000)),
                session_timeout_s=6,
                heartbeat_wait_s=1,
                max_poll_interval_s=10,
                revoke_wait_s=self.random.choice((0, 1, 8)),
                request_timeout_s=10,
                assignor=self.random.choice(("uniform", "range", "sticky", "consistent_hash")),
                on_assigned=lambda partitions: self.check(consumer, partitions),  # noqa: B023  called in this life only
            )
            try:
                await self.live(
                    consumer, mode, in_order, asyncio.get_running_loop().time() + self.random.uniform(2, 25)
                )
                await self.end(consumer)
            except errors.LedgerMQError as error:
                self.note(error)
                await drop(consumer)
            await asyncio.sleep(self.random.uniform(0, 5))

    def check(self, consumer: ledgermq.GroupConsumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            begin = consumer.position(partition.partition)
            missing = set(range(begin)) - self.handled[partition]
            assert not missing, f"{partition} begins at {begin}, but no member has handled {sorted(missing)[:5]}"

    def note(self, error: errors.LedgerMQError) -> None:
        self.told[type(error).__name__] += 1
        if isinstance(error.__cause__, AssertionError) or error.code == "INTERNAL":
            raise error

    async def live(self, consumer: ledgermq.GroupConsumer, mode: str, in_order: bool, until_s: float) -> None:
        work = Work(self, in_order=in_order)
        while self.calm or asyncio.get_running_loop().time() < until_s:
            messages = await consumer.fetch(self.random.choice((1, 5, 50)), timeout=self.random.choice((0.1, 1, 3)))
            await asyncio.sleep(self.random.choice((0, 0, 0.01, 0.3)))
            if not self.calm and self.random.random() < 0.02:
                await asyncio.sleep(15)  # too long away
            if mode == "auto":
                work.handle_now(messages)
                continue
            work.handle_some(messages)
            if mode == "manual" and self.random.random() < 0.5:
                try:
                    await consumer.commit(work.take_done())
                except (errors.GroupError, errors.RetriableError) as error:
                    self.note(error)

    async def end(self, consumer: ledgermq.GroupConsumer) -> None:
        how = self.random.choice(("crash", "close", "drain", "cancel"))
        if how == "crash":
            await drop(consumer)
        elif how == "cancel":
            closing = asyncio.create_task(consumer.close())
            await asyncio.sleep(self.random.uniform(0, 0.05))
            closing.cancel()
            await asyncio.wait([closing])
        else:
            if how == "drain":
                await consumer.drain(5)
            await consumer.close()

    # -- trouble
    # -------------------------------------------------------------------------------------------------------

    async def trouble(self) -> None:
        count = 3
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 8))
            address = self.random.choice(list(self.cluster.brokers))
            if self.random.random() < 0.5:
                self.cluster.views[address].pause()
                await asyncio.sleep(self.random.uniform(0.1, 6))
                self.cluster.views[address].resume()
            else:
                await self.cluster.stop(address, graceful=self.random.random() < 0.3)
                count += 1
                await self.cluster.start(f"b{count}:1")

    async def run(self) -> None:
        async with client_of(self.cluster, attempt_timeout_s=3) as client:
            await client.create_topic("t", PARTITIONS)
            async with asyncio.TaskGroup() as tasks:
                trouble = tasks.create_task(self.trouble())
                members = [tasks.create_task(self.member(client)) for _ in range(4)]
                for number in range(4):
                    await fill(client, "t", MESSAGES // 4, name=f"{number}-")
                    await asyncio.sleep(TROUBLE_S / 4)
                trouble.cancel()
                self.calm = True
                async with asyncio.timeout(200):
                    while sum(map(len, self.handled.values())) < MESSAGES:
                        await asyncio.sleep(1)
                for member in members:
                    member.cancel()


class Work:
    """What one member has to do.

    `stale`: messages that will come again; answers to them must not count.
    """

    def __init__(self, storm: Storm, *, in_order: bool) -> None:
        self.storm = storm
        self.in_order = in_order
        self.todo: list[ledgermq.GroupMessage] = []
        self.done: list[ledgermq.GroupMessage] = []
        self.stale: list[ledgermq.GroupMessage] = []

    def handle_now(self, messages: list[ledgermq.GroupMessage]) -> None:
        """All, but for one that is refused now and then, and, in order, what is behind it."""
        refused = self.storm.random.choice(messages) if messages and self.storm.random.random() < 0.1 else None
        for message in messages:
            if message is not refused and (
                not self.in_order
                or refused is None
                or message.partition != refused.partition
                or message.offset < refused.offset
            ):
                self.handled(message)
        if refused is not None:
            refused.nack(self.storm.random.choice((0, 0.5)))

    def handle_some(self, messages: list[ledgermq.GroupMessage]) -> None:
        """In any order, some of them much later."""
        random = self.storm.random
        self.todo += messages
        random.shuffle(self.todo)
        for _ in range(len(self.todo) if self.storm.calm else random.randint(0, len(self.todo))):
            message = self.todo.pop()
            if random.random() < 0.05 and message.nack(random.choice((0, 0.5))):
                again = [
                    each
                    for each in self.todo
                    if self.in_order and each.partition == message.partition and each.offset > message.offset
                ]
                self.todo = [each for each in self.todo if each not in again]
                self.stale += [message, *again]
                break
            self.handled(message)
            message.ack()
            self.done.append(message)
        for message in random.sample(self.stale, min(3, len(self.stale))):
            message.ack()

    def take_done(self) -> list[ledgermq.GroupMessage]:
        done, self.done = self.done, []
        return done

    def handled(self, message: ledgermq.GroupMessage) -> None:
        self.storm.handled[TopicPartition(message.topic, message.partition)].add(message.offset)


@pytest.mark.parametrize("seed", range(SEEDS))
@virtual
async def test_members_in_a_storm(seed: int) -> None:
    async with cluster_of("b1:1", "b2:1", "b3:1") as cluster:
        await Storm(cluster, seed).run()
