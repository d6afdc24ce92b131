"""Check the table of a topic against what is stored: each file that a version names which a reader may have open has
to be there (design Z6), and no partition may be registered beyond its log. Reads only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from ledgermq.sources import Sources
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.delta import versions
from ledgermq_ledger.delta.actions import decode_path
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import checkpoint_in_charge, partition_of
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.tables.formats.choose import is_of_former, open_log, table_of
from ledgermq_ledger.tables.latest import newest_number
from ledgermq_ledger.topics.tables import bundle_before
from ledgermq_ledger.topics.topic import Topic


class Fault(NamedTuple):
    """`is_lost`: a named file is gone. Otherwise the log is older than its table."""

    key: str
    text: str
    is_lost: bool


async def find_faults(store: ObjectStore, cluster: ClusterSettings, topic: Topic) -> AsyncIterator[Fault]:
    """Yield what is wrong with a topic's table. None yet, or one of another generation, or of a cluster that this one
    was restored from: nothing is promised.

    Raises DataDamaged, FormatNotSupported, the store's errors.
    """
    of = table_of(cluster.cluster_id, topic)
    log = open_log(store, of, topic.settings, Sources())
    table, named = await log.read_named(topic.settings.table_keep_ms)
    if is_of_former(table, cluster) or versions.generation_of(table, of) != of.generation:
        return
    stored = {info.key async for info in store.list(of.folder)}
    for path, version in sorted(named.items()):
        key = of.folder + decode_path(path)
        if key not in stored and await _is_gone(store, key):
            yield Fault(key, f"version {version} of the table names it, and it is gone", True)
    for partition in range(topic.partitions):
        place = PartitionId(topic.id, partition)
        if of.keyed:
            shown = versions.registered(table, of, partition, "version")
            if shown > await newest_number(store, place):
                text = f"it shows version {shown} of partition {partition}, which is not there: it is of another root"
                yield Fault(of.place or f"{of.folder}_delta_log/", text, False)
            continue
        checkpoint = await checkpoint_in_charge(store, bundle_before(topic, partition), place)
        end = versions.registered(table, of, partition, "end")
        if checkpoint is not None and end > partition_of(checkpoint, *place).parquet_end:
            text = f"it has partition {partition} up to offset {end}, where the log is not yet: it is of another root"
            yield Fault(of.place or f"{of.folder}_delta_log/", text, False)


async def _is_gone(store: ObjectStore, key: str) -> bool:
    try:
        await store.head(key)
    except ObjectMissing:
        return True
    return False  # it came after the LIST
