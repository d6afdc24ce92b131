"""Move partitions with the command line, while a producer and a consumer run, and kill owners and the controller of
real processes: each record is stored once, and read once.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import ledgermq
from ledgermq.errors import LedgerMQError
from tests.e2e.processes import BrokerProcesses

OPTIONS = ("--heartbeat-interval-ms", "200", "--holding-ms", "1500", "--constant-damaged-retry-s=2", "--bundles", "4")
PARTITIONS, MOVES, COMMAND_S, END_S = 3, 3, 150.0, 180.0
DELIVERY_S = 120.0


class Programs:
    """A producer and a reader that run all the time."""

    def __init__(self, client: ledgermq.Client) -> None:
        self._client = client
        self._stopping = asyncio.Event()
        self.stored: dict[tuple[int, int], bytes] = {}
        """By partition and offset."""
        self.read: list[tuple[int, int, bytes]] = []

    def stop(self) -> None:
        self._stopping.set()

    async def produce(self) -> None:
        sending: list[tuple[int, bytes, ledgermq.Delivery]] = []
        async with self._client.producer(linger_ms=5, delivery_timeout_s=DELIVERY_S) as producer:
            number = 0
            while not self._stopping.is_set():
                value, partition = f"{number}".encode(), number % PARTITIONS
                sending.append((partition, value, producer.send("t", value, partition=partition)))
                number += 1
                await asyncio.sleep(0.01)
        for partition, value, delivery in sending:
            result = await delivery
            assert (partition, result.offset) not in self.stored, (partition, result.offset, value)
            self.stored[partition, result.offset] = value

    async def consume(self) -> None:
        async with self._client.consumer("t") as consumer:
            while not self._stopping.is_set() or len(self.read) < len(self.stored) or not self.stored:
                for message in await consumer.fetch(timeout=0.5):
                    self.read.append((message.partition, message.offset, message.value or b""))

    def judge(self) -> None:
        """Nothing is lost, nothing is stored or read twice, and each partition is read in order."""
        assert {(p, o): value for p, o, value in self.read} == self.stored
        assert len(self.read) == len(self.stored)
        assert [v for v, n in Counter(self.stored.values()).items() if n > 1] == []
        for partition in range(PARTITIONS):
            offsets = [offset for p, offset, _ in self.read if p == partition]
            assert offsets == list(range(len(offsets)))
            values = [int(value) for p, _, value in self.read if p == partition]
            assert values == sorted(values)


class Kills:
    """Kills brokers at random times; another one comes for each."""

    def __init__(self, brokers: BrokerProcesses, random: random.Random) -> None:
        self._brokers = brokers
        self._random = random
        self.done = 0

    async def kill_one(self, client: ledgermq.Client, who: str) -> None:
        """`who`: "controller", or the number of a bundle whose owner dies."""
        try:
            cluster = await client.describe_cluster()
        except LedgerMQError:
            return
        owners = {str(bundle.bundle): bundle.owner for bundle in cluster.bundles} | {"controller": cluster.controller}
        victim = next((broker for broker in self._brokers.running if broker.address == owners.get(who)), None)
        if victim is None:
            return
        port = int(victim.address.rpartition(":")[2])
        self._brokers.kill(victim)
        self.done += 1
        await asyncio.sleep(self._random.uniform(0, 2))
        new = self._brokers.spawn(port=port)
        await asyncio.to_thread(self._brokers.wait_ready, new)


async def command(*arguments: str) -> tuple[int, str]:
    """Run the command line; return its exit code and all that it has printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ledgermq.cli.main",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(COMMAND_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode()


async def moved(client: ledgermq.Client, partition: int) -> bool:
    with suppress(LedgerMQError):
        return (await client.describe_topic("t")).partitions[partition].moving_from is None
    return False


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_nothing_is_lost_or_doubled_when_owners_die_during_moves(tmp_path: Path) -> None:
    dice = random.Random(2)
    with BrokerProcesses(tmp_path, f"file://{tmp_path / 'root'}", OPTIONS) as brokers:
        brokers.start()
        brokers.start_all(2)
        async with ledgermq.connect(brokers.addresses, timeout_s=60) as client:
            await client.create_topic("t", PARTITIONS, settings={"parquet.max.lag.ms": "1000"})
            at = ("--target", brokers.addresses)
            programs, kills = Programs(client), Kills(brokers, dice)
            at_work = [asyncio.create_task(programs.produce()), asyncio.create_task(programs.consume())]
            for number in range(MOVES):
                partition = number % PARTITIONS
                bundle = (await client.describe_topic("t")).partitions[partition].bundle
                target = dice.choice([each for each in (1, 2, 3) if each != bundle])
                moving = asyncio.create_task(
                    command("cluster", "move", "t", str(partition), str(target), *at, "--timeout", "60")
                )
                await asyncio.sleep(dice.uniform(0.3, 4))
                await kills.kill_one(client, dice.choice(["controller", str(bundle), str(target)]))
                _, text = await moving  # it may have given up while too many were away
                assert "Traceback" not in text
                async with asyncio.timeout(END_S):
                    while not await moved(client, partition):
                        await asyncio.sleep(0.2)
                assert not any(task.done() for task in at_work), [task for task in at_work if task.done()]
            programs.stop()
            async with asyncio.timeout(END_S):
                await asyncio.gather(*at_work)
            programs.judge()
            assert kills.done > 0
            code, text = await command("fsck", brokers.root_url)
            assert code == 0, text
