"""Move partitions between bundles while the brokers have their troubles."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import ledgermq
from ledgermq.errors import LedgerMQError, PartitionBusy
from tests.chaos.workload import PARTITIONS, Workload
from tests.judges.violation import Violation

EVERY_S = 3.0
ENDED_S_MAX = 300.0
"""A move ends when compaction has passed it, which takes the time that this machine has for compaction."""
LOOK_S = 1.0


class Mover:
    """Moves a partition of one of the topics now and then; in the end every move comes to its end."""

    def __init__(self, work: Workload, topics: list[str]) -> None:
        self._work = work
        self._topics = topics
        self._random = random.Random(f"mover {work.seed}")

    async def run(self) -> None:
        async with self._work.connect() as client:
            while not self._work.stopped.is_set():
                await asyncio.sleep(self._random.expovariate(1 / EVERY_S))
                try:
                    await self._move(client)
                except LedgerMQError as error:
                    self._work.told("a move", error)
            await self._until_ended(client)

    async def _move(self, client: ledgermq.Client) -> None:
        bundles = len((await client.describe_cluster()).bundles)
        topic, partition = self._random.choice(self._topics), self._random.randrange(PARTITIONS)
        try:
            await client.move_partition(topic, partition, self._random.randrange(1, bundles))
        except PartitionBusy:
            self._work.measures.events["partition that could not move"] += 1
        else:
            self._work.measures.events["partition moved"] += 1

    async def _until_ended(self, client: ledgermq.Client) -> None:
        loop, before = asyncio.get_running_loop(), list[str]()
        ended_s = loop.time()
        while left := await self._moving(client):
            if left != before:
                before, ended_s = left, loop.time()
            if loop.time() - ended_s > ENDED_S_MAX:
                text = f"no move has ended for {ENDED_S_MAX:.0f} s of health: {left}"
                self._work.violations.append(Violation("stuck", text))
                return
            await asyncio.sleep(LOOK_S)

    async def _moving(self, client: ledgermq.Client) -> list[str]:
        described = [
            await self._work.insist("a mover", partial(client.describe_topic, topic)) for topic in self._topics
        ]
        return [
            f"{topic.name}/{part.partition} from bundle {part.moving_from}"
            for topic in described
            for part in topic.partitions
            if part.moving_from is not None
        ]
