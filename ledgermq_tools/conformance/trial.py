"""What a check of a client works with: the brokers, the program, and what it found."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count

import ledgermq
from ledgermq.client.consuming.message import Message
from ledgermq.errors import BY_CODE, UnknownGroup
from ledgermq_tools.conformance.brokers.cluster import PARTITIONS, SETTLED_S_MAX, Cluster
from ledgermq_tools.conformance.brokers.faults import Fault, Plan
from ledgermq_tools.conformance.brokers.front import Watch
from ledgermq_tools.conformance.judging.judge import Judge
from ledgermq_tools.conformance.program import Program, Running

WAIT_S_MAX = 60.0
RETRIABLE = frozenset(code for code, kind in BY_CODE.items() if kind.retriable)


class Trial:
    """One check. `address`: of the broker that the program gets to know; `topic`: its own one, with `PARTITIONS`
    partitions.
    """

    def __init__(self, number: int, level: int, cluster: Cluster, client: ledgermq.Client, program: Program) -> None:
        self.topic = f"check-{number}"
        self.client = client
        self.cluster = cluster
        self.program = program
        self.address = next(iter(cluster.fronts))
        self.findings: list[str] = []
        self._level = level
        self._watch = watch_of(level)
        self._names = count(1)

    @property
    def judge(self) -> Judge:
        return self._watch.judge

    async def begin(self) -> None:
        """Create the topic, and forget what earlier checks have planned."""
        await self.client.create_topic(self.topic, PARTITIONS)
        self.plan({})

    def plan(self, faults: Mapping[str, Sequence[Fault | None]]) -> None:
        """Let calls meet these from now on."""
        self._watch.plan = Plan(faults)
        self.cluster.watch(self._watch)

    def find(self, *findings: str) -> None:
        self.findings += [finding for finding in findings if finding and finding not in self.findings]

    def expect_met(self) -> None:
        """Note a fault of the check itself: troubles that no call of the program came to meet."""
        if left := self._watch.plan.left:
            self.find(f"made too few calls: {left} of the planned troubles did not come to pass")

    async def partition(self, *, owned: bool) -> int:
        """Return a partition of which `address` is the owner, or is not. Waits while bundles move."""
        async with asyncio.timeout(SETTLED_S_MAX):
            while True:
                for each in (await self.client.describe_topic(self.topic)).partitions:
                    if each.owner and (each.owner == self.address) is owned:
                        return each.partition
                await asyncio.sleep(0.1)

    async def write(self, partition: int, values: Sequence[str], **settings: object) -> None:
        """Store values as one batch. `settings`: of the producer."""
        async with self.client.producer(**settings) as producer:  # type: ignore[arg-type]  # checks give constants
            await producer.send_many(self.topic, [ledgermq.Record(v, partition=partition) for v in values])

    async def fill(self, begin: int, values: int) -> None:
        """Store so many numbers from `begin` on, each in the partition of its rest."""
        for partition in range(PARTITIONS):
            here = [str(number) for number in range(begin, begin + values) if number % PARTITIONS == partition]
            await self.write(partition, here)

    async def wait_for(self, condition: Callable[[], bool | Awaitable[bool]]) -> None:
        """Wait until it holds, for a minute at most: the caller looks at what came of it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S_MAX):
                while not (await found if inspect.isawaitable(found := condition()) else found):  # noqa: ASYNC110  brokers and the program change it
                    await asyncio.sleep(0.02)

    async def wait_until_finished(self, group: str) -> None:
        """Wait until a queue group has nothing left, for a minute at most."""

        async def has_finished() -> bool:
            try:
                return not (await self.client.queues.describe(group)).backlog
            except UnknownGroup:
                return False

        await self.wait_for(has_finished)

    async def lose_owner(self, running: Running, method: str) -> None:
        """Kill the broker beside `address` once the program has made such a call."""
        await self.wait_for(lambda: bool(self.judge.asked_for[method]) or running.ended)
        owner = next(address for address in self.cluster.fronts if address != self.address)
        self.judge.gone.add(owner)
        await self.cluster.kill(owner)

    async def restore(self) -> None:
        """Start a broker in the place of the one that was lost."""
        await self.cluster.start()
        await self.cluster.settle(self.client)

    async def stored(self, partition: int) -> list[Message]:
        """Return all records of a partition."""
        page = await self.client.read(self.topic, partition, records_max=10_000)
        return list(page.messages)

    def group(self) -> str:
        """Return a name for a group of this check."""
        return f"{self.topic}-group-{next(self._names)}"


def watch_of(level: int) -> Watch:
    return Watch(Plan(), Judge(RETRIABLE, needs_sessions=level > 1))


def compared(found: Sequence[str], wanted: Sequence[str], done: str) -> list[str]:
    """Return in words how the values differ; nothing if they are the same. `done`: what was done to them."""
    if list(found) == list(wanted):
        return []
    twice = sorted({value for value in found if found.count(value) > 1})
    missing = [value for value in wanted if value not in set(found)]
    foreign = [value for value in found if value not in set(wanted)]
    texts = [
        f"{how}: {_some(values)} ({len(values)} in all)"
        for values, how in (
            (twice, f"{done} more than once"),
            (missing, f"not {done}"),
            (foreign, f"{done}, though nobody asked for it"),
        )
        if values
    ]
    return texts or [f"{done} in another order: {_some(found)}"]


def _some(values: Sequence[str]) -> str:
    return ", ".join(map(repr, values[:5])) + (", …" if len(values) > 5 else "")
