"""Restore cuts as `ledgermq restore` does."""

from __future__ import annotations

from ledgermq_ledger.cluster import ClusterSettings, read_cluster
from ledgermq_ledger.cuts.reading.restore import Restored, restore_cut
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_tools.ledger.restore.group_offsets import end_with_their_partitions
from tests.virtual_time import virtual_sources
from tests.worlds.roots import Root


async def restore_into(store: ObjectStore, wanted: str, target: ObjectStore, seed: int = 31) -> Restored:
    """Restore a cut of a root. `seed`: of the process that does it."""
    sources = virtual_sources(seed)

    async def mend(copy: ObjectStore, cluster: ClusterSettings) -> None:
        await end_with_their_partitions(copy, cluster, sources)

    return await restore_cut(store, await read_cluster(store), wanted, target, sources, mend)


def root_of(restored: Restored, target: ObjectStore, before: Root) -> Root:
    """Return the restored root, with the topics that `before` has."""
    root = Root(target, before.sources, restored.cluster)
    root.topics = dict(before.topics)
    return root
