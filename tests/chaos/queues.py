"""The queue group of a run: members that share the partitions of a topic while brokers are killed.

Each writes down which messages it received, what it answered, and what the broker replied. This is judged
as in the simulation (`tests.simulation.queues_truth`).
"""

from __future__ import annotations

import asyncio
import random

from ledgermq.client.queues.queue import Queue
from ledgermq.errors import LedgerMQError
from tests.chaos.workload import Workload
from tests.simulation.queues_truth import QueuesTruth, write_down

TOPIC, GROUP = "left", "hands"
LEASE_S = 4.0


class QueueWorker:
    """Now and then a new member, as a program that is started again. `truth` is shared by all."""

    def __init__(self, work: Workload, name: str, truth: QueuesTruth) -> None:
        self.name = name
        self._work = work
        self._truth = truth
        self._random = random.Random(f"{name} {work.seed}")

    async def run(self) -> None:
        """Until the work is stopped, and nothing is left of the queue."""
        is_over = False
        while not is_over:
            try:
                async with self._work.connect() as client:
                    queue = client.queue(TOPIC, group=GROUP, lease_s=LEASE_S, dead_letters=False, request_timeout_s=20)
                    write_down(queue, self._truth, asyncio.get_running_loop().time)
                    for _ in range(self._random.randint(5, 100)):
                        if not await self._turn(queue) and self._work.stopped.is_set():
                            break  # a hundred turns without messages would take as long as the work may end
                    await queue.flush()
                    if self._random.random() < 0.5:
                        await queue.close()
                    if self._work.stopped.is_set():
                        found = await client.queues.describe(GROUP)
                        is_over = found.backlog == 0
                        for each in found.partitions:
                            self._truth.starts[each.partition.partition] = each.start
            except LedgerMQError as error:
                self._work.told("a queue", error)
                await asyncio.sleep(0.3)

    async def _turn(self, queue: Queue) -> int:
        """Return how many messages came."""
        found = await queue.fetch(self._random.choice((1, 20, 100)), self._random.uniform(0.1, 2.0))
        for message in found:
            kind = 1.0 if self._work.stopped.is_set() else self._random.random()
            if kind < 0.05:
                message.nack(self._random.choice((0.0, 0.5, 5.0)))
            elif kind > 0.1:  # others are left to their lease
                message.ack()
        await asyncio.sleep(self._random.choice((0.0, 0.05)))
        return len(found)
