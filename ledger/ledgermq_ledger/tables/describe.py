"""Describe the table of a topic by what is stored: its newest version, and how far Parquet is. Reads only."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.delta import versions
from ledgermq_ledger.delta.actions import decode_path
from ledgermq_ledger.delta.statistics import rows_of
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.keyed.version import newest_version
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import (
    checkpoint_in_charge,
    newest_checkpoint,
    partition_of,
    partitions_by_key,
)
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.merging.names import parse_merged
from ledgermq_ledger.tables.formats.choose import open_log, table_of
from ledgermq_ledger.topics.tables import bundle_before
from ledgermq_ledger.topics.topic import Topic


@dataclass(slots=True)
class PartitionFacts:
    """`start`, `end`: what the table says. `files`, `rows`, `size_bytes`: of what its newest version names.
    `parquet_end`: None while no bundle is in charge of the partition; of a keyed topic the end of its newest version.
    """

    start: int = 0
    end: int = 0
    files: int = 0
    rows: int = 0
    size_bytes: int = 0
    parquet_end: int | None = None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """`folder`: where readers find the table, below the root; or a URL. `is_current`: the newest version is of the
    topic's generation. `version`, `oldest_held`: -1: there is none. `version_ms`: when the newest version was stored,
    by the store's clock.
    """

    folder: str
    is_current: bool
    version: int
    oldest_held: int
    version_ms: int
    partitions: list[PartitionFacts]


class ParquetEnds:
    """How far Parquet is, by the newest checkpoint of each bundle, which is read once: make one for descriptions that
    are made together. It is no help for partitions that have moved: one bundle's checkpoint sends to the next one's.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[int, Mapping[PartitionId, int]] = {}
        self._locks = defaultdict[int, asyncio.Lock](asyncio.Lock)

    async def of(self, bundle: int, place: PartitionId) -> int:
        """Raises DataDamaged, FormatNotSupported, the store's errors."""
        async with self._locks[bundle]:
            if bundle not in self._known:
                checkpoint = await newest_checkpoint(self._store, bundle)
                self._known[bundle] = {key: p.parquet_end for key, p in partitions_by_key(checkpoint).items()}
        return self._known[bundle].get(place, 0)


async def describe_table(
    store: ObjectStore, cluster_id: str, topic: Topic, ends: ParquetEnds | None = None
) -> TableFacts:
    """Return what is stored of a topic's table; a version of another topic that had the name counts, its files do not.

    Raises DataDamaged (also if another program or cluster made the table), FormatNotSupported, Unavailable, the
    store's errors.
    """
    settings = topic.settings
    of = table_of(cluster_id, topic)
    log = open_log(store, of, settings, Sources())
    table, oldest, version_ms = await log.read_dated(settings.table_keep_ms)
    is_current = versions.generation_of(table, of) == of.generation
    partitions = _partitions(table, of)
    ends = ends or ParquetEnds(store)
    for number, facts in enumerate(partitions):
        place = PartitionId(topic.id, number)
        if of.keyed:
            published = await newest_version(store, place)
            facts.parquet_end = 0 if published is None else published.version.end
            continue
        if number not in topic.moves:
            facts.parquet_end = await ends.of(topic.bundles[number], place)
            continue
        checkpoint = await checkpoint_in_charge(store, bundle_before(topic, number), place)
        if checkpoint is not None:
            facts.parquet_end = partition_of(checkpoint, *place).parquet_end
    return TableFacts(await log.place(), is_current, table.version, oldest, version_ms, partitions)


def _partitions(table: Table, of: versions.Topic) -> list[PartitionFacts]:
    found = [
        PartitionFacts(versions.registered(table, of, number, "start"), versions.registered(table, of, number, "end"))
        for number in range(of.partitions)
    ]
    for add in table.files.values():
        place = _place_of(of.folder + decode_path(add.path))
        if place is not None and place.topic_id == of.generation[0] and place.partition < of.partitions:
            facts = found[place.partition]
            facts.files += 1
            facts.rows += rows_of(add.stats)
            facts.size_bytes += add.size
    return found


def _place_of(key: str) -> PartitionId | None:
    if (version := keys.parse_keyed(key)) is not None:
        return version.place
    if (merged := parse_merged(key)) is not None:
        return merged.place
    file = keys.parse_parquet(key)
    return None if file is None else PartitionId(file.topic_id, file.partition)
