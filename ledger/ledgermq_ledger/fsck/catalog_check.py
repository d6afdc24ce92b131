"""Check the topics: `__metadata` matches the cluster, and the ledgers hold only its topics."""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import FORMAT_VERSION, ClusterSettings, read_cluster
from ledgermq_ledger.fsck.ledgers.ledger_check import LedgerView
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.topics.topic import METADATA, Topic


async def check_catalog(store: ObjectStore, cluster: ClusterSettings, problems: Problems) -> Catalog | None:
    """Check and return the catalog; None if it cannot be read."""
    catalog = None
    with problems.collecting(keys.ledger(keys.METADATA_BUNDLE)):
        catalog = await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, Sources()))
    if (
        catalog is not None
        and catalog.topics_by_name[METADATA.name].settings.cluster_bundles
        and (await read_cluster(store)).format_version == FORMAT_VERSION
    ):
        problems.damage(
            keys.CLUSTER,
            "EARLY_VERSION",
            f"bundles were added to this cluster, but the file has version {FORMAT_VERSION}, so earlier releases do not"
            " refuse it; the next broker that becomes the controller puts it right",
        )
    bundles = cluster.bundles if catalog is None else catalog.bundles(cluster)
    for topic in catalog.topics_by_id.values() if catalog is not None else ():
        wrong = [bundle for bundle in topic.bundles if bundle >= bundles]
        if wrong:
            problems.damage(
                keys.ledger(wrong[0]),
                "UNKNOWN_BUNDLE",
                f"topic {topic.name} has partitions in this bundle, but the cluster has no such bundle",
            )
        if not topic.bundles:
            problems.damage(keys.ledger(keys.METADATA_BUNDLE), "BAD_TOPIC", f"topic {topic.name} has no partitions")
    return catalog


def check_partitions(catalog: Catalog, views: Sequence[LedgerView], problems: Problems) -> None:
    """Check that a partition's records are only in the bundle that its topic names, and in those that it left."""
    for view in views:
        left = {PartitionId(seal.topic_id, seal.partition) for seal in view.checkpoint.state.seals}
        left |= {PartitionId(seal.topic_id, seal.partition) for index in view.valid for seal in index.seals}
        for topic_id, partition in sorted(
            view.ends.keys() | {PartitionId(e.topic_id, e.partition) for index in view.valid for e in index.batches}
        ):
            topic = catalog.topics_by_id.get(topic_id)
            where = f"topic id {topic_id} partition {partition}"
            if topic is None:
                if topic_id >= catalog.offset:
                    problems.damage(
                        keys.ledger(view.bundle),
                        "UNKNOWN_TOPIC",
                        f"{where}: no record of {keys.METADATA_TOPIC} names this topic id",
                    )
            elif partition >= topic.partitions:
                problems.damage(
                    keys.ledger(view.bundle),
                    "UNKNOWN_PARTITION",
                    f"{where}: topic {topic.name} has only {topic.partitions} partitions",
                )
            elif topic.bundles[partition] != view.bundle and not (
                PartitionId(topic_id, partition) in left or _leaves(topic, partition, view.bundle)
            ):
                text = f"{where}: the catalog has this partition of {topic.name} in bundle {topic.bundles[partition]}"
                problems.damage(keys.ledger(view.bundle), "WRONG_BUNDLE", text)


def _leaves(topic: Topic, partition: int, bundle: int) -> bool:
    """Return whether a partition is on its way from a bundle to another one."""
    move = topic.moves.get(partition)
    return move is not None and move.source == bundle and not move.ended


def removed_ids(catalog: Catalog | None, view: LedgerView) -> set[int]:
    """Return the topics whose records this bundle may have dropped.

    Without a catalog, these include the topics that the checkpoint holds nothing of, because they
    may have been removed completely.
    """
    noted = {note.topic_id for note in view.checkpoint.removed_topics}
    known = {topic_id for topic_id, _ in view.ends} | {e.topic_id for index in view.valid for e in index.batches}
    if catalog is None:
        kept = {part.topic_id for part in view.checkpoint.partitions}
        return noted | {topic_id for topic_id in known - kept if topic_id < view.checkpoint.metadata_offset}
    return noted | {topic_id for topic_id in known if catalog.is_removed(topic_id, catalog.offset)}
