"""A job that commits, again and again, what it finds at the ends of partitions, in some runs of the level *cuts*.

The places of a cut are taken one after the other. So a cut may have a commit, and not the record before it, which is
above the place of another bundle. `ahead_of_data` finds such commits by the store alone (I6, I19).
"""

from __future__ import annotations

import asyncio
import random

from ledgermq.errors import LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import run_inline
from ledgermq_ledger.cluster import ClusterSettings, read_cluster
from ledgermq_ledger.cuts.reading.root import open_named
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.history import read_history
from ledgermq_ledger.log.internal_topic import read_internal
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from ledgermq_offsets.classic.records import stored_offsets
from tests.simulation.cluster_clients import SimulatedClient
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.cuts_clients import Book, Taken
from tests.simulation.drawn_epochs import Cutter, comes_apart
from tests.simulation.network import Network
from tests.simulation.world import World

GROUP, RACED = "racer", "main"
RACED_RECORDS_S = 40.0
PAUSE_S = 0.02
KEPT_MAX = 3


def races(seed: int) -> bool:
    """Return whether there is such a job in this run."""
    return comes_apart(seed) and random.Random(f"racing commits {seed}").random() < 0.6


class KeepingCutter(Cutter):
    """Keeps the first cuts in which a group is ahead of data, so that one of them is restored at the end."""

    def __init__(self, world: World, network: Network, plan: ClusterPlan, name: str, book: Book) -> None:
        super().__init__(world, network, plan, name)
        self._book = book
        self._kept = 0

    async def let_go(self, name: str) -> None:
        store = self._world.line("last")
        at = await open_named(store, await read_cluster(store), name)
        if self._kept < KEPT_MAX and await ahead_of_data(self._world, at.store, at.cluster):
            self._kept += 1
            self._book.cuts[name] = Taken(frozenset(), frozenset(self._book.begun))
        else:
            await super().let_go(name)


class Racer(SimulatedClient):
    async def work(self) -> None:
        while not self.stopped.is_set():
            try:
                planned = await self.client.groups.plan_reset(GROUP, "latest", [RACED])
                await self.client.groups.reset(GROUP, planned)
            except LedgerMQError as error:
                self._world.judge_error(error)
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")
            await asyncio.sleep(self.random.expovariate(1 / PAUSE_S))


async def ahead_of_data(world: World, store: ObjectStore, cluster: ClusterSettings) -> list[str]:
    """Return the committed offsets of a root that are above the ends of their partitions, in words."""
    sources = world.sources("reader of groups")
    catalog = await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, sources))
    topic, found = catalog.topics_by_name.get(keys.OFFSETS_TOPIC), []
    for number, bundle in enumerate(topic.bundles if topic is not None else ()):
        assert topic is not None
        history = await read_history(LedgerRef(store, bundle, cluster, sources))
        records = await read_internal(store, history, topic.id, number)
        for group in stored_offsets((record.key, record.value) for record in records).groups.values():
            for topic_id, values in group.offsets.items():
                for partition, value in values.items():
                    end = await _end(world, store, cluster, catalog, PartitionId(topic_id, partition))
                    if value.offset is not None and end is not None and value.offset > end:
                        found.append(f"{group.name} at {value.offset} of {topic_id}/{partition}, which ends at {end}")
    return found


async def _end(
    world: World, store: ObjectStore, cluster: ClusterSettings, catalog: Catalog, place: PartitionId
) -> int | None:
    """Return the end of a partition; None if its topic is gone."""
    topic = catalog.topics_by_id.get(place.topic_id)
    if topic is None or topic.removed:
        return None
    ref = LedgerRef(store, topic.bundles[place.partition], cluster, world.sources("reader of ends"))
    ledger = FollowedLedger(ref, run_blocking=run_inline)
    await ledger.open()
    return ledger.reader.end(place)
