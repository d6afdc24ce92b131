"""Random lives of handlers that fail, on brokers that die, stop and resume, in virtual time: the messages of
a key are handled in the order in which they were sent.

What holds, and is checked here:

- In one process, at most one call for a key runs at a time, also when its partition goes and comes back.
- In all processes together, no message begins before each earlier message of its key has succeeded once. So
  the first successes of a key's messages are in the order of sending.

What does not hold across a change of owner: a message may be handled again, also after later ones of its key,
and a call of the former owner that does not end within `revoke_wait_s` may still run. Both are counted, so
that a run without them is noticed. A seed repeats the run.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import Literal

import pytest

import ledgermq
from ledgermq import Retry, errors
from ledgermq.client.groups.group_consumer import GroupConsumer
from tests.broker.cluster import Cluster, cluster_of
from tests.e2e.group_clients import drop
from tests.e2e.test_client_takeover import client_of
from tests.virtual_time import virtual
from tests.waiting import until

PARTITIONS = 5
KEYS = 20
MESSAGES = 300
TROUBLE_S = 60.0
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))]

Ordering = Literal["partition", "key"]


class OutOfOrder(Exception):
    pass


class Storm:
    def __init__(self, cluster: Cluster, seed: int, ordered_by: Ordering | None) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.ordered_by = ordered_by
        self.calm = False
        self.sent: Counter[bytes] = Counter()
        self.first_successes: defaultdict[bytes, list[int]] = defaultdict(list)
        self.running: Counter[tuple[int, bytes]] = Counter()
        """Calls by process and key."""
        self.failures = self.repeated = self.overlapping = self.kills = 0
        self.broken: list[str] = []

    # -- the work

    async def handle(self, process: int, message: ledgermq.GroupMessage) -> None:
        assert message.key is not None
        assert message.value is not None
        key, number = message.key, int(message.value)
        self.check_begin(process, key, number)
        self.running[process, key] += 1
        try:
            await asyncio.sleep(self.random.choice((0, 0, 0.01, 0.3)))
            if not self.calm and self.random.random() < 0.01:
                await asyncio.sleep(self.random.uniform(3, 15))  # longer than others wait for it
            if not self.calm and self.random.random() < 0.15:
                self.failures += 1
                raise ZeroDivisionError
        finally:
            self.running[process, key] -= 1
        done = self.first_successes[key]
        if number in done:
            self.repeated += 1
        else:
            done.append(number)

    def check_begin(self, process: int, key: bytes, number: int) -> None:
        """An exception of the handler would only be a failed call: what is wrong is kept for the end."""
        if self.running[process, key]:
            self.broken.append(f"process {process} begins {key!r} {number} while it handles another one of the key")
        if missing := set(range(number)) - set(self.first_successes[key]):
            self.broken.append(f"{key!r} {number} begins before {sorted(missing)} succeeded")
        self.overlapping += any(self.running[other, key] for other, at in list(self.running) if at == key)

    # -- processes

    async def process(self, number: int) -> None:
        """One life after the other, each with its own settings and its own end."""
        while True:
            try:
                async with client_of(self.cluster, attempt_timeout_s=3) as client:
                    await self.live(client, number)
            except errors.LedgerMQError as error:
                if error.code == "INTERNAL":
                    raise
            await asyncio.sleep(self.random.uniform(0, 3))

    async def live(self, client: ledgermq.Client, number: int) -> None:
        @client.handler(
            "t",
            group="g",
            ordered_by=self.ordered_by,
            concurrency=self.random.choice((2, 8)),
            retry=Retry.in_order(wait_ms_first=50, wait_ms_max=2_000),
            commit_interval_ms=self.random.choice((50, 500, 5000)),
            session_timeout_s=6,
            heartbeat_wait_s=1,
            max_poll_interval_s=10,
            revoke_wait_s=self.random.choice((0, 1, 8)),
            request_timeout_s=10,
            assignor=self.random.choice(("uniform", "range", "sticky", "consistent_hash")),
        )
        async def handle(message: ledgermq.GroupMessage) -> None:
            await self.handle(number, message)

        stop = asyncio.Event()
        running = asyncio.create_task(client.run_handlers(stop=stop, drain_timeout_s=self.random.choice((1, 30))))
        try:
            until_s = asyncio.get_running_loop().time() + self.random.uniform(2, 25)
            while (self.calm or asyncio.get_running_loop().time() < until_s) and not running.done():
                await asyncio.sleep(0.5)
            if self.random.random() < 0.5 and not running.done():
                self.kills += 1
                for made in client._made:
                    if isinstance(made, GroupConsumer):
                        await drop(made)
            else:
                stop.set()
                await asyncio.wait([running])
        finally:
            running.cancel()
            await asyncio.wait([running])
        if not running.cancelled() and (error := running.exception()) is not None:
            raise error

    # -- trouble

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

    async def send(self, client: ledgermq.Client) -> None:
        """The messages of a key are numbered from 0 on."""
        async with client.producer() as producer:
            for _ in range(MESSAGES):
                key = b"k%d" % self.random.randrange(KEYS)
                producer.send("t", b"%d" % self.sent[key], key=key)
                self.sent[key] += 1
                await asyncio.sleep(TROUBLE_S / MESSAGES)

    async def run(self) -> None:
        async with client_of(self.cluster, attempt_timeout_s=3) as client:
            await client.create_topic("t", PARTITIONS)
            async with asyncio.TaskGroup() as tasks:
                processes = [tasks.create_task(self.process(number)) for number in range(4)]
                trouble = tasks.create_task(self.trouble())
                await self.send(client)
                trouble.cancel()
                self.calm = True
                await until(lambda: sum(map(len, self.first_successes.values())) == MESSAGES, 300)
                for process in processes:
                    process.cancel()


async def run(seed: int, ordered_by: Ordering | None) -> Storm:
    async with cluster_of("b1:1", "b2:1", "b3:1") as cluster:
        storm = Storm(cluster, seed, ordered_by)
        await storm.run()
    return storm


@pytest.mark.parametrize("ordered_by", ["key", "partition"])
@pytest.mark.parametrize("seed", SEEDS)
@virtual
async def test_messages_of_a_key_are_handled_in_the_order_of_sending(seed: int, ordered_by: Ordering) -> None:
    storm = await run(seed, ordered_by)
    assert not storm.broken, storm.broken[:3]
    assert storm.first_successes == {key: list(range(count)) for key, count in storm.sent.items()}
    assert storm.failures > 10
    assert storm.kills > 1
    assert storm.repeated > 0, "members went without a commit, so messages came again"


@virtual
async def test_across_owners_a_call_that_takes_too_long_overlaps_with_the_next_owners_call() -> None:
    for seed in range(10):
        if (await run(seed, "key")).overlapping:
            return
    pytest.fail("no call overlapped")


@virtual
async def test_the_check_notices_a_handler_without_order() -> None:
    storm = await run(0, None)
    assert any("before" in each for each in storm.broken)
    assert any("while" in each for each in storm.broken)
