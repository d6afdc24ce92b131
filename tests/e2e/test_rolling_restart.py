"""Restart every broker, one after the other, under load: no client sees an error, and every
message arrives once and in order.

An upgrade does the same. The longest waits are printed (`-s`), and never fail the test.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import ledgermq
from infra.ports import free_port
from ledgermq import TopicPartition
from tests.chaos.judge import GRPC_TELLS
from tests.e2e.processes import BrokerProcess, BrokerProcesses

PARTITIONS = 6
BROKERS = 3
PAUSE_S = 0.02

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass
class Load:
    """`sent`: what was acknowledged, by partition, in order.

    `waits`: the longest, by who waited, in seconds.
    """

    client: ledgermq.Client
    sent: dict[int, list[bytes]] = field(default_factory=lambda: {partition: [] for partition in range(PARTITIONS)})
    waits: dict[str, float] = field(default_factory=dict)
    lost: list[TopicPartition] = field(default_factory=list)
    producing: bool = True
    """Until everything that producers have begun is acknowledged too, and all of `sent` is known."""
    ending: bool = False

    async def produce_all(self) -> None:
        half = PARTITIONS // 2
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.produce("producer 0", range(half)))
            tasks.create_task(self.produce("producer 1", range(half, PARTITIONS)))
        self.producing = False

    async def produce(self, name: str, mine: range) -> None:
        """One record at a time for each of its partitions, so that what a restart costs is seen."""
        async with self.client.producer(linger_ms=0) as producer:

            async def send(partition: int) -> None:
                number = 0
                while not self.ending:
                    value = b"%s/%d" % (name.encode(), number)
                    done = await self._timed(name, producer.send("t", value, partition=partition))
                    assert done.offset == len(self.sent[partition]), "once, in order"
                    self.sent[partition].append(value)
                    number += 1
                    await asyncio.sleep(PAUSE_S)

            async with asyncio.TaskGroup() as tasks:
                for partition in mine:
                    tasks.create_task(send(partition))

    async def consume(self) -> None:
        seen = Seen(self)
        async with self.client.consumer("t") as consumer:
            while not seen.done():
                seen.take("consumer", await consumer.fetch(timeout=0.5))
        seen.check()

    async def consume_in_group(self) -> None:
        """Two members: a message may come to either, and none comes twice, for no member
        loses a partition.
        """
        seen = Seen(self)

        async def member(name: str) -> None:
            async with self.client.consumer("t", group="g", on_lost=self.lost.extend) as consumer:
                while not seen.done():
                    seen.take(name, await consumer.fetch(timeout=0.5))

        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                tasks.create_task(member(f"member {number}"))
        seen.check()

    async def _timed(self, name: str, waiting: Any) -> Any:
        begun = asyncio.get_running_loop().time()
        done = await waiting
        self.note(name, asyncio.get_running_loop().time() - begun)
        return done

    def note(self, name: str, seconds: float) -> None:
        self.waits[name] = max(self.waits.get(name, 0.0), seconds)


class Seen:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._values: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        self._last_s: dict[str, float] = {}

    def take(self, name: str, messages: list[Any]) -> None:
        now = asyncio.get_running_loop().time()
        for message in messages:
            assert message.offset == len(self._values[message.partition]), "once, in order"
            self._values[message.partition].append(message.value)
        if messages:
            self._load.note(name, now - self._last_s.get(name, now))
            self._last_s[name] = now

    def done(self) -> bool:
        return not self._load.producing and sum(map(len, self._values.values())) == sum(
            map(len, self._load.sent.values())
        )

    def check(self) -> None:
        assert self._values == self._load.sent


async def restart_all(brokers: BrokerProcesses, ports: list[int]) -> None:
    """As docs/operations.md says: the next one when the one before is ready again."""
    for number, port in enumerate(ports):
        old = next(broker for broker in brokers.running if broker.address.endswith(f":{port}"))
        assert await asyncio.to_thread(brokers.stop, old) == 0
        assert "Traceback" not in GRPC_TELLS.sub("", old.text())
        await asyncio.to_thread(start, brokers, number, port)
        await asyncio.sleep(0.5)


def start(brokers: BrokerProcesses, number: int, port: int) -> BrokerProcess:
    return brokers.start("--broker-id", f"b{number}", port=port)


async def test_no_client_notices_a_rolling_restart(tmp_path: Path) -> None:
    await rolling_restart(tmp_path, (tmp_path / "root").as_uri())


async def rolling_restart(folder: Path, root_url: str) -> None:
    ports = [free_port() for _ in range(BROKERS)]
    with BrokerProcesses(folder, root_url) as brokers:
        for number, port in enumerate(ports):
            await asyncio.to_thread(start, brokers, number, port)
        async with ledgermq.connect(brokers.addresses) as client:
            await client.create_topic("t", PARTITIONS)
            load = Load(client)
            async with asyncio.timeout(220), asyncio.TaskGroup() as tasks:
                for part in (load.produce_all, load.consume, load.consume_in_group):
                    tasks.create_task(part())
                await asyncio.sleep(1)
                await restart_all(brokers, ports)
                await asyncio.sleep(1)
                load.ending = True
        assert load.lost == []
        assert min(map(len, load.sent.values())) > 50, "there was a load"
    waits = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in sorted(load.waits.items()))
    print(f"\n{sum(map(len, load.sent.values()))} records; longest waits: {waits}")
