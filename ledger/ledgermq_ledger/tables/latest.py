"""Read what the table of a keyed topic may show: the newest version of each partition, and how much stays because of
the table.
"""

from __future__ import annotations

from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.delta.latest import Latest
from ledgermq_ledger.delta.statistics import Statistics, Value, encode_statistics
from ledgermq_ledger.delta.versions import ListedFile
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keyed.replaced import find_replaced
from ledgermq_ledger.keyed.version import KeyedFile, newest_version
from ledgermq_ledger.keys import PartitionId, keyed_versions, parse_keyed
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.topics.facts import versions_kept_from
from ledgermq_ledger.topics.topic import Topic


async def newest_number(store: ObjectStore, place: PartitionId) -> int:
    """Return the number of the newest version of a partition; 0: there is none yet."""
    return max([number async for number, _ in list_numbered(store, keyed_versions(place))], default=0)


async def bytes_held(
    store: ObjectStore, place: PartitionId, cluster: ClusterSettings, checkpoint: fmt.Checkpoint
) -> int:
    """Return the bytes of the files that could go but for the table. `checkpoint`: of the bundle in charge. Raises as
    `read_latest`.
    """
    limit_ms = await store.store_time_ms() - cluster.parquet_min_age_ms
    kept_from = versions_kept_from(checkpoint, *place)

    def may_be_shown(key: str) -> bool:
        name = parse_keyed(key)
        return name is not None and not name.is_file and name.number >= kept_from

    without = await find_replaced(store, place, limit_ms, lambda key: False)
    beside = {info.key for info in (await find_replaced(store, place, limit_ms, may_be_shown)).files}
    return sum(info.size for info in without.files if info.key not in beside)


async def read_latest(store: ObjectStore, topic: Topic) -> dict[int, Latest]:
    """Return the newest version of each partition by a LIST made now. Raises DataDamaged, FormatNotSupported, the
    store's errors.
    """
    found = {}
    for partition in range(topic.partitions):
        published = await newest_version(store, PartitionId(topic.id, partition))
        if published is None:
            found[partition] = Latest()
            continue
        files = [_listed(file, topic.name, partition, published.published_ms) for file in published.version.files]
        found[partition] = Latest(published.version.number, published.version.end, files)
    return found


def _listed(file: KeyedFile, topic: str, partition: int, published_ms: int) -> ListedFile:
    """Without bounds of offsets and timestamps: those of a version may be wider than what a file holds, and engines
    answer for the least and the greatest value by them.
    """
    same: dict[str, Value] = {"topic": topic, "partition": partition}
    found = Statistics(file.rows, dict(same), dict(same))
    return ListedFile(file.key, file.first, file.last + 1, file.size, published_ms, encode_statistics(found))
