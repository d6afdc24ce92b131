"""Jobs that a queue group works off beside everything else: sent at a steady rate, accepted, released or left to
their leases by workers in this process. Judged as in the simulation (`tests.simulation.queues_truth`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ledgermq.errors import LedgerMQError
from tests.chaos.measures import Measures
from tests.chaos.queues import TOPIC, QueueWorker
from tests.chaos.workload import Workload
from tests.judges.violation import Violation
from tests.simulation.queues_truth import QueuesTruth
from tests.soak.numbered import JOBS

PARTITIONS = 4
JOBS_PER_S = 50
WORKERS = 3
END_S_MAX = 300.0
assert TOPIC == JOBS


class Jobs:
    """`target`: as clients name it."""

    def __init__(self, target: str, seed: int) -> None:
        self._work = Workload(target, seed, Measures(asyncio.get_running_loop().time()))
        self._truth = QueuesTruth()
        self._sender: asyncio.Task[None] | None = None
        self._workers: list[asyncio.Task[None]] = []
        self.sent = 0

    async def start(self) -> None:
        async with self._work.connect() as client:
            await client.create_topic(TOPIC, PARTITIONS, {"parquet.target.bytes": 4_000_000})
        self._sender = asyncio.create_task(self._send(), name="jobs")
        self._workers = [
            asyncio.create_task(QueueWorker(self._work, f"hand {number}", self._truth).run(), name=f"hand {number}")
            for number in range(WORKERS)
        ]

    async def end(self) -> list[Violation]:
        """Send nothing more, wait until all jobs are done, and judge."""
        assert self._sender is not None
        self._sender.cancel()
        with suppress(asyncio.CancelledError):
            await self._sender
        self._work.stopped.set()
        _, hanging = await asyncio.wait(self._workers, timeout=END_S_MAX)
        for task in hanging:
            task.cancel()
        found = [Violation("stuck", f"{task.get_name()} did not end after {END_S_MAX:.0f} s") for task in hanging]
        found += [
            Violation("bug", f"{task.get_name()}: {task.exception()!r}")
            for task in self._workers
            if task.done() and not task.cancelled() and task.exception() is not None
        ]
        async with self._work.connect() as client:
            ends = await client.list_offsets(TOPIC, "latest")
        return [
            *found,
            *self._work.violations,
            *self._truth.judge({number: range(end) for number, end in ends.items()}),
        ]

    @property
    def figures(self) -> str:
        return f"{self.sent} jobs sent; {self._truth.figures()}"

    async def _send(self) -> None:
        async with self._work.connect() as client:
            while True:
                with suppress(LedgerMQError):  # what is not stored is no job
                    async with client.producer() as producer:
                        while True:
                            for _ in range(10):
                                producer.send(TOPIC, b"job %d" % self.sent)
                                self.sent += 1
                            await asyncio.sleep(10 / JOBS_PER_S)
                await asyncio.sleep(1.0)
