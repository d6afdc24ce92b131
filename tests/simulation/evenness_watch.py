"""Even out the bundles of a healthy cluster under a steady load with the code of `ledgermq cluster rebalance`, which
is interrupted and begun again, in some runs of level *cluster*.

uneven move           a move of the command made the loads of bundles, as they were measured first, no more even
rebalance restless    there was something left to do behind it, or a partition moved twice
load lost             a partition that moved looked idle, though its load was steady
not rebalanced        brokers refused the command, or its moves did not end
"""

from __future__ import annotations

import asyncio

import ledgermq
from ledgermq.buffers import KIB
from ledgermq.client.admin import rebalancing as rebalance
from ledgermq.client.admin.rebalancing import Answers, Placement, Rebalancing, measured
from ledgermq.errors import LedgerMQError
from ledgermq.evenness import Partition, PlannedMove
from ledgermq.runtime.tasks import end
from tests.judges.violation import Violation
from tests.simulation.world import World

QUIET = 8 * KIB
MEASURED_S, LONGEST_S, LOOK_S = 40.0, 600.0, 1.0
LEFT_MIN = 0.4
"""Of the load of a partition: one that moves is seen in two bundles, at two moments."""


class EvennessWatch:
    """`busy`: partitions with a steady load."""

    def __init__(self, world: World, client: ledgermq.Client, busy: set[Partition]) -> None:
        self._world = world
        self._client = client
        self._busy = busy
        self._found: list[Violation] = []

    async def watch(self) -> list[Violation]:
        try:
            async with asyncio.timeout(LONGEST_S):
                await self._rebalance()
        except (LedgerMQError, TimeoutError) as error:
            self._found.append(Violation("not rebalanced", repr(error)[:300]))
        return self._found

    async def _rebalance(self) -> None:
        first = await self._run()
        looking = asyncio.create_task(self._look(first.found))
        going = asyncio.create_task(first.until_even())
        while not going.done() and not first.decided:
            await asyncio.sleep(0.1)
        await end(going)
        second = await self._run()
        await second.until_even()
        await end(looking)
        moves = [*first.decided, *second.decided]
        self._world.coverage.saw("a partition moved for its load", len(moves))
        self._judge(first.found, moves)
        if first.kept or second.kept:
            return
        third = await self._run()
        await third.until_even()
        for move in third.decided:
            self._found.append(Violation("rebalance restless", f"{move} behind {moves}"[:400]))
        self._world.coverage.saw("a rebalance came to rest")

    async def _run(self) -> Rebalancing:
        loads = await measured(self._client, MEASURED_S, self._tell, Answers())
        found = rebalance.placement_of(await self._client.list_topics(), loads)
        return Rebalancing(self._client, found, 1, None, self._tell, Answers(), quiet=QUIET)

    def _tell(self, line: str) -> None:
        self._world.note("rebalance", line[:120])

    def _judge(self, found: Placement, moves: list[PlannedMove]) -> None:
        there = {partition: each.bundle for partition, each in found.partitions.items()}
        moved: set[Partition] = set()
        for move in moves:
            before = self._row(found, there)
            there[move.partition] = move.target
            if self._row(found, there) >= before:
                self._found.append(Violation("uneven move", f"{move}: {before} became {self._row(found, there)}"))
            if move.partition in moved:
                self._found.append(Violation("rebalance restless", f"{move.partition} moved twice: {moves}"[:400]))
            moved.add(move.partition)

    @staticmethod
    def _row(found: Placement, there: dict[Partition, int]) -> list[int]:
        """Return the loads of the bundles, largest first."""
        loads = dict(found.fixed)
        for partition, bundle in there.items():
            loads[bundle] += found.partitions[partition].load
        return sorted(loads.values(), reverse=True)

    async def _look(self, before: Placement) -> None:
        """Look whether what is busy has its load, at each moment at which no bundle has just got another owner."""
        while True:
            loads = [each for each in await self._client.describe_loads() if each.bundle]
            now = rebalance.placement_of(await self._client.list_topics(), loads)
            is_known = min(each.measured_s for each in loads) >= MEASURED_S
            for partition in sorted(self._busy) if is_known else ():
                load, known = now.partitions[partition].load, before.partitions[partition].load
                if load < LEFT_MIN * known:
                    self._found.append(Violation("load lost", f"{partition} has {load} of {known} bytes a second"))
                    return
            await asyncio.sleep(LOOK_S)
