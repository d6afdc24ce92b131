"""What single mistakes about moved partitions need, and dice alone hardly bring: a compactor that comes just between
two steps of a move. In some runs of level *moves*, for each move that is decided.

lists       garbage is looked for by the list of the new bundle from before the files are taken over, and by that of
            the old bundle from after it has forgotten them
cleaning    a keyed partition is cleaned in the old bundle, by a catalog from before the move, when the new bundle has
            just taken its files over, and the old one has not forgotten them yet
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from ledgermq.errors import LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.garbage.sweep import find_garbage, remove_garbage
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import LocalEngine
from ledgermq_ledger.parquet.hand_over import has_forgotten
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import PartitionMove
from tests.simulation.ledger_clients import TOPIC_ID
from tests.simulation.moves_broker import OTHER, is_keyed, overtakes, read_records
from tests.simulation.parquet_watch import ParquetWatch
from tests.simulation.plan import RunPlan, undisturbed
from tests.simulation.world import World

SHARE = 0.4
MOVE_S_MAX = 60.0
"""What a move takes longer is not waited for."""
LOOK_S = 0.02
REQUESTS = 6000
CLEANED_TIMES = 5


def comes_between(seed: int) -> bool:
    """Return whether a compactor comes between two steps of each move."""
    return not overtakes(seed) and random.Random(f"between two bundles {seed}").random() < SHARE


def lists_between(seed: int) -> bool:
    return comes_between(seed) and not is_keyed(seed)


def cleans_between(seed: int) -> bool:
    return comes_between(seed) and is_keyed(seed)


def calm(plan: RunPlan) -> RunPlan:
    """Return a plan of a run in which little else happens, so that moves come to their end within it."""
    return replace(
        undisturbed(plan),
        seconds=60.0,
        requests_max=REQUESTS,
        event_every_s=20.0,
        pause_s_max=5.0,
        compact_every_s=0.3,
    )


class _Late(StoreWrapper):
    """The store of a process that lists what is below `folder` when something has happened."""

    def __init__(self, inner: ObjectStore, folder: str, happened: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._folder = folder
        self._happened = happened

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        if prefix.startswith(self._folder):
            await self._happened()
        async for info in self.inner.list(prefix, start_after):
            yield info


class MovesAmbush:
    """`records`: those of `__metadata`, as they come."""

    def __init__(self, world: World, cluster: ClusterSettings, records: Sequence[bytes], watch: ParquetWatch) -> None:
        self._world = world
        self._cluster = cluster
        self._records = records
        self._watch = watch

    async def decided(self, partition: int, move: PartitionMove, records: int) -> None:
        """Lie in ambush for a move. `records`: how many there were before its decision."""
        key = PartitionId(TOPIC_ID, partition)
        try:
            await (self._clean(key, move, records) if is_keyed(self._world.seed) else self._collect(key, move))
        except LedgerMQError as error:
            self._world.judge_error(error)

    async def _until(self, happened: Callable[[], Awaitable[bool]]) -> bool:
        end_s = self._world.loop.time() + MOVE_S_MAX
        while not self._world.healed and self._world.loop.time() < end_s:
            if await happened():
                return True
            await asyncio.sleep(LOOK_S)
        return False

    async def _collect(self, key: PartitionId, move: PartitionMove) -> None:
        world = self._world

        async def is_forgotten() -> bool:
            return has_forgotten(await newest_checkpoint(world.store, move.source), key, move.id)

        async def forgotten() -> None:
            if await self._until(is_forgotten):
                world.coverage.saw("garbage was looked for by lists from before and after a move")

        store = _Late(world.store, keys.ledger(move.source), forgotten)
        cluster = replace(self._cluster, bundles=OTHER + 1)
        collected = await remove_garbage(store, cluster, await find_garbage(store, cluster))
        for error in collected.failures.values():
            world.judge_error(error)

    async def _clean(self, key: PartitionId, move: PartitionMove, records: int) -> None:
        world, old = self._world, Catalog()
        read_records(old, self._records[:records])

        async def is_taken_over() -> bool:
            return self._watch.taken_over(key) >= move.id

        if not await self._until(is_taken_over):
            return
        sources = world.sources(f"cleaning between two bundles {move.id}")
        compaction = Compaction(world.store, self._cluster, sources, LocalEngine(sources, run_inline))
        for _ in range(CLEANED_TIMES):
            is_between = not has_forgotten(await newest_checkpoint(world.store, move.source), key, move.id)
            world.coverage.saw("a keyed partition was to be cleaned between two bundles", int(is_between))
            await clean_bundle(compaction, move.source, old, everything=True)
            await asyncio.sleep(LOOK_S)
