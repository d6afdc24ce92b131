"""What single mistakes of archives need, and dice alone hardly bring: puts into the archive whose outcome is unknown,
and a compactor that goes on by the settings from before the archive.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterDefaults
from ledgermq_ledger.garbage.sweep import tidy_bundle
from tests.simulation.ambush import NO_AMBUSH
from tests.simulation.disturbances import Disturbances
from tests.simulation.loop import SimulatedLoop
from tests.simulation.plan import RunPlan
from tests.simulation.rounds_plan import BUNDLES, SLEEPERS_AMONG_MERGES, RoundsPlan, rounds_plan_of, with_merges
from tests.simulation.rounds_processes import Compactor, Worker
from tests.simulation.rounds_run import RoundsRun

SILENT, OLD = "silent", "old"
REQUESTS = 3000
HEARD_S_MAX = 4.0
SILENT_S_MAX = 30.0
OLD_COMPACTOR = "c0"


def ambush_of_archives(seed: int) -> str:
    """Return SILENT, OLD or nothing, which is drawn in half of the runs that archive."""
    if not rounds_plan_of(seed).archives:
        return ""
    return random.Random(f"ambush of archives {seed}").choice((SILENT, OLD, "", ""))


def with_archives(plan: RoundsPlan) -> RoundsPlan:
    """Return a plan in which much expires soon after the topic was told to archive."""
    return replace(
        plan,
        seconds=120.0,
        compactors=3,
        retention_ms=500,
        records_s=3.0,
        round_every_s=1.0,
        stale_catalog=0.0,
        topic_every_s=3.0,
        cluster=ClusterDefaults(BUNDLES, 100, 1000, 4000),
        by_hand=0.2,
        ambush=NO_AMBUSH,
        holds=0.0,
    )


def calm(plan: RunPlan) -> RunPlan:
    """Return a plan of a run in which little else happens, so that rounds and retention get far."""
    return replace(
        plan, event_every_s=20.0, pause_s_max=5.0, slow=0.0, naps=0.0, stalls=0.0, full=0.0, requests_max=REQUESTS
    )


class OldCompactor(Compactor):
    """Tidies by the catalog that it has read first, for as long as it lives."""

    async def step(self) -> None:
        self._known = self._known or await self._catalog()
        bundle = self._random.randrange(1, BUNDLES)
        await tidy_bundle(self._compaction.ledger(bundle), self._known)
        self._world.coverage.saw("a bundle was tidied by an old catalog")


class ArchivesRun(RoundsRun):
    """Level *rounds*, with these ambushes in some of its runs, and with merges in others."""

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self._ambush = ambush_of_archives(seed)
        if self._ambush:
            self.rounds = with_archives(self.rounds)
            self.plan = calm(self.plan)
        else:
            self.rounds = with_merges(self.rounds, seed)
            self.plan = calm(self.plan) if self.rounds.ambush in SLEEPERS_AMONG_MERGES else self.plan

    def _kind_of(self, name: str) -> type[Worker]:
        return OldCompactor if self._ambush == OLD and name == OLD_COMPACTOR else super()._kind_of(name)

    async def _let_run(self) -> None:
        silence = self.world.loop.in_world(self._silence_archives()) if self._ambush == SILENT else None
        await super()._let_run()
        if silence is not None:
            silence.cancel()

    async def _silence_archives(self) -> None:
        """Most of the time puts into the archive get no answer. Until cancelled."""
        world, r = self.world, random.Random(f"silent archives {self.world.seed}")
        while True:
            await asyncio.sleep(r.uniform(0, HEARD_S_MAX))
            world.weather.silent = keys.ARCHIVE
            world.coverage.saw("disturbance: puts into the archive get no answer")
            await asyncio.sleep(r.uniform(0, SILENT_S_MAX))
            world.weather.silent = ""

    async def _heal(self, disturbances: Disturbances) -> None:
        self.world.weather.silent = ""
        await super()._heal(disturbances)
