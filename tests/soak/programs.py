"""The programs with transactions of a soak, as processes that are killed and started again."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path

import ledgermq
from ledgermq.errors import LedgerMQError
from tests.chaos.children import Child, Children
from tests.chaos.cluster import ChaosCluster
from tests.judges.violation import Violation
from tests.soak.transactor import MOVERS, SOURCE

PROGRAMS = {"writer": "write", "mover-0": "move", "mover-1": "move"}
"""By name, which is the transactional id too: what each does."""
KILL_EVERY_S = 13.0
WORK_OFF_S_MAX = 300.0
STOP_S_MAX = 90.0


class Programs:
    def __init__(self, children: Children, cluster: ChaosCluster, folder: Path, seed: int) -> None:
        self.kills = 0
        self._children, self._cluster, self._folder = children, cluster, folder
        self._random = random.Random(f"programs {seed}")
        self._running: dict[str, Child] = {}
        self._violations: list[Violation] = []

    def start(self) -> None:
        """Start those that do not run."""
        for name, role in PROGRAMS.items():
            child = self._running.get(name)
            if child is None or child.code is not None:
                command = [sys.executable, "-m", "tests.soak.transactor", role]
                place = [self._cluster.target, name, str(self._folder)]
                self._running[name] = self._children.spawn(name, [*command, *place])

    async def kill_them(self) -> None:
        """For ever, one after the other. A program that ended by itself is a bug."""
        while True:
            await asyncio.sleep(KILL_EVERY_S)
            name = self._random.choice(list(PROGRAMS))
            self._check()
            await self._running[name].kill()
            self.kills += 1
            await asyncio.sleep(self._random.choice((0.0, 1.0, 5.0)))
            self.start()

    def _check(self) -> None:
        for child in self._running.values():
            if child.code is not None and child.code != -signal.SIGKILL:
                self._violations.append(Violation("program ended", f"{child.log.name}: {child.text()[-1000:]}"))

    async def end(self) -> list[Violation]:
        """Let the movers work off what is left, without kills; then stop all."""
        self._check()
        self.start()  # the end may have come between a kill and a start
        await self._work_off()
        self._check()
        for child in self._running.values():
            child.signal(signal.SIGTERM)
        for child in self._running.values():
            if await child.ended(STOP_S_MAX) != 0:
                self._violations.append(Violation("program ended", f"{child.log.name}: {child.text()[-1000:]}"))
        return self._violations

    async def _work_off(self) -> None:
        offsets: dict[int, int] = {}
        async with ledgermq.connect(self._cluster.target, timeout_s=60) as client:
            ends = await client.list_offsets(SOURCE, "latest")
            try:
                async with asyncio.timeout(WORK_OFF_S_MAX):
                    while offsets != ends:
                        await asyncio.sleep(1.0)
                        with suppress(LedgerMQError):  # offsets are pending
                            found = (await client.groups.describe(MOVERS)).committed
                            offsets = {at.partition: known.stored.offset for at, known in found.items()}
            except TimeoutError:
                text = f"movers have committed {offsets} of {ends} after {WORK_OFF_S_MAX:.0f} s without kills"
                self._violations.append(Violation("stuck", text))
