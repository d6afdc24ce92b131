"""Copy cuts as `ledgermq restore` and `ledgermq backup` do."""

from __future__ import annotations

from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.cuts.reading.restore import CutCopy, Restored, back_up_cut, restore_cut
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_tools.ledger.restore.command import only_topics
from ledgermq_tools.ledger.restore.group_offsets import end_with_their_partitions
from tests.virtual_time import virtual_sources
from tests.worlds.roots import Root


async def restore_into(
    store: ObjectStore,
    wanted: str,
    target: ObjectStore,
    seed: int = 31,
    topics: str | None = None,
    *,
    is_replica: bool = False,
) -> Restored:
    """Restore a cut of a root. `seed`: of the process that does it. `topics`: a pattern of those that are kept."""
    cluster, sources = await read_cluster(store), virtual_sources(seed)
    only = only_topics(topics)
    copy = CutCopy(store, cluster, wanted, target, sources, end_with_their_partitions, only, is_replica)
    return await restore_cut(copy)


async def back_up_into(
    store: ObjectStore, wanted: str, target: ObjectStore, seed: int = 31, topics: str | None = None
) -> Restored:
    cluster, sources = await read_cluster(store), virtual_sources(seed)
    only = only_topics(topics)
    return await back_up_cut(CutCopy(store, cluster, wanted, target, sources, end_with_their_partitions, only))


def root_of(restored: Restored, target: ObjectStore, before: Root) -> Root:
    """Return the restored root, with the topics that `before` has."""
    root = Root(target, before.sources, restored.cluster)
    root.topics = dict(before.topics)
    return root
