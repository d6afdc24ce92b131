"""Leave topics out of a copy: there they are deleted for good, as if an operator had done that right after the cut.

Their Parquet files and versions are not copied. The catalog of the copy says that they are removed, and each bundle's
checkpoint names that, so no reader asks for their files (design D4, I20). What segments hold of them goes with rounds.
Their tables and archives are outside of the root and belong to the source, so the records that say so name no table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from ledgermq.errors import UnknownTopic
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.cuts.reading.appending import append_records
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.log_record import LogRecord
from ledgermq_ledger.log.recovery import bring_into_force
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.topics.catalog import Catalog, grown, read_catalog
from ledgermq_ledger.topics.removal import take_in_facts
from ledgermq_ledger.topics.topic import Topic, encode_topic_record, removed, topic_key

TABLE = "table."


@dataclass(frozen=True, slots=True)
class OnlyTopics:
    """The topics that a copy keeps. `pattern`: as the caller wrote it, which a repetition has to repeat."""

    pattern: str
    matches: Callable[[str], bool]


def left_out(catalog: Catalog, only: OnlyTopics | None) -> list[Topic]:
    """Return the topics of a cut that its copy leaves out. Raises UnknownTopic if none of a user would be left."""
    if only is None:
        return []
    mine = [topic for topic in catalog.topics_by_id.values() if not topic.internal and not topic.removed]
    if not any(only.matches(topic.name) for topic in mine):
        raise UnknownTopic(f"the cut has no topic that {only.pattern[:100]!r} matches; a pattern matches whole names")
    return [topic for topic in mine if not only.matches(topic.name)]


def is_of(key: str, topic_ids: Collection[int]) -> bool:
    """Return whether an object is a file or a version of one of these topics."""
    file, keyed = keys.parse_parquet(key), keys.parse_keyed(key)
    return (file is not None and file.topic_id in topic_ids) or (
        keyed is not None and keyed.place.topic_id in topic_ids
    )


async def remove_topics(
    store: ObjectStore, cluster: ClusterSettings, topics: Sequence[Topic], sources: Sources
) -> None:
    """Remove topics from a copy for good. A repetition is harmless.

    Raises Unavailable if another process has claimed bundle 0, DataDamaged, the store's errors.
    """
    ledger = LedgerRef(store, keys.METADATA_BUNDLE, cluster, sources)
    wanted = {topic.id for topic in topics}

    async def decide() -> list[LogRecord]:
        catalog = await read_catalog(ledger)
        found = [topic for topic in catalog.topics_by_id.values() if topic.id in wanted and not topic.removed]
        return [_removal_of(topic) for topic in sorted(found, key=lambda topic: topic.id)]

    if await decide():
        await append_records(ledger, PartitionId(keys.METADATA_TOPIC_ID, 0), decide)
    catalog = await read_catalog(ledger)
    for bundle in range(grown(cluster, catalog).bundles):
        await bring_into_force(LedgerRef(store, bundle, cluster, sources), take_in_facts(catalog))


def _removal_of(topic: Topic) -> LogRecord:
    raw = {name: text for name, text in topic.raw_settings.items() if not name.startswith(TABLE)}
    return LogRecord(topic_key(topic.name), encode_topic_record(removed(replace(topic, raw_settings=raw))))
