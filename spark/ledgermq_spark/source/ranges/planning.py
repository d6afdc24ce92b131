"""Plan what a query reads, once, in the driver: ranges of offsets, and their division into tasks.

Needs the store, no broker and no Spark.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from ledgermq.errors import InvalidConfig, OffsetOutOfRange, UnknownPartition, UnknownTopic
from ledgermq.runtime.tasks import all_of
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.archiving.archive import Archives
from ledgermq_ledger.parquet.archiving.reading import ArchiveReader
from ledgermq_ledger.topics.catalog import Catalog, read_catalog
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.fetch_index import Span
from ledgermq_ledger.view.following.followed_ledger import FollowedLedger
from ledgermq_ledger.view.ranges.range_read import OffsetRange, plan_ranges, split
from ledgermq_ledger.view.reader import LedgerReader
from ledgermq_spark.shared_root import cluster_of
from ledgermq_spark.source.options import EARLIEST, LATEST, AtTime, Offsets, SourceOptions
from ledgermq_spark.source.ranges.archived_log import ArchivedLog
from ledgermq_spark.source.ranges.move_wait import PAUSE_S, Chosen, MoveWait, gone, on_their_way, planned_whole

TASK_BATCHES = 50_000
"""Batches of a task. Their places travel to the executors with the task, about 60 bytes each."""
TASK_BYTES = 128 * 1024 * 1024
AT_HAND_BYTES_MAX = 512 * 1024
"""Records that travel with a task; Spark warns about tasks from 1000 KiB on."""
BUNDLES_AT_ONCE = 8
PARTITIONS_AT_ONCE = 32
"""Partitions searched by time concurrently; those for which the index has no room are looked up
together.
"""
INDEX_BATCHES_MAX = 2_000_000
"""Batches of one bundle in the driver's index; about 60 bytes each. Others are looked up again when
they are planned, which costs one recovery for all their partitions.
"""


class Log(Protocol):
    """A log against which offsets are resolved."""

    def log_start(self, key: PartitionId) -> int: ...

    def end(self, key: PartitionId) -> int: ...

    async def offset_at(self, key: PartitionId, timestamp_us: int) -> int | None: ...


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Rows of a topic by its name. Picklable."""

    topic: str
    range: OffsetRange


async def plan_query(
    store: ObjectStore, options: SourceOptions, *, index_batches_max: int = INDEX_BATCHES_MAX
) -> list[list[TopicRange]]:
    """Return the ranges by task. Waits for the end of moves. `index_batches_max`: of each bundle.

    Raises InvalidConfig, UnknownTopic, UnknownPartition, OffsetOutOfRange, DataDamaged, DeadlineExceeded (a move
    has not ended in time), the store's errors.
    """
    sources, wait = Sources(), MoveWait(options.move_timeout_s)
    metadata = LedgerRef(store, keys.METADATA_BUNDLE, await cluster_of(store), sources)
    planned: dict[PartitionId, list[TopicRange]] = {}
    while True:
        topics = topics_of(await read_catalog(metadata), options)
        if not topics:  # a stream waits for topics that come later
            raise UnknownTopic(
                f"topicsPattern {options.topics_pattern!r} matches no topic of the cluster; it has to match a whole"
                " name, so add .* where more may follow"
            )
        chosen = {PartitionId(topic.id, p): (topic, p) for topic in topics for p in partitions_of(topic, options)}
        left = [part for key, part in chosen.items() if key not in planned]
        due = [part for part in left if not on_their_way([part])]  # so partitions that move in turns end the wait
        followed = await _followed(metadata, due, index_batches_max)
        reasons = partial(gone, due, followed)
        found = await planned_whole(partial(_plan, store, sources, due, followed, options), reasons)
        if found is not None:
            planned |= {PartitionId(topic.id, partition): [] for topic, partition in due}
            for each in found:
                planned[each.range.key].append(each)
        if planned.keys() >= chosen.keys():
            return deal([each for key in chosen for each in planned[key]], options.min_partitions)
        wait.put_off([*on_their_way(left).values(), *reasons().values()])
        await asyncio.sleep(PAUSE_S)


async def _plan(
    store: ObjectStore, sources: Sources, chosen: Chosen, followed: Mapping[int, FollowedLedger], options: SourceOptions
) -> list[TopicRange]:
    async with Archives(store, sources) as archives:
        for url in {topic.settings.archive_url for topic, _ in chosen if options.include_archive}:
            await archives.store(url)  # so that they are not opened concurrently
        archive = ArchiveReader(store, archives.store)
        works = (
            _part(store, archive, followed[topic.bundles[partition]].reader, topic, partition, options)
            for topic, partition in chosen
        )
        parts = await all_of(works, PARTITIONS_AT_ONCE)
    return await plan_parts(parts)


@dataclass(frozen=True, slots=True)
class Part:
    """What is read of one partition: these offsets of its log, and the archived ones before them."""

    topic: str
    key: PartitionId
    reader: LedgerReader
    span: Span
    archived: Sequence[OffsetRange] = ()


async def _part(
    store: ObjectStore,
    archive: ArchiveReader,
    reader: LedgerReader,
    topic: Topic,
    partition: int,
    options: SourceOptions,
) -> Part:
    key = PartitionId(topic.id, partition)
    if not options.include_archive:
        return Part(topic.name, key, reader, await _offsets(reader, topic.name, key, options))
    log = await ArchivedLog.open(store, archive, reader, topic, partition)
    first, end = await _offsets(log, topic.name, key, options)
    return Part(topic.name, key, reader, (max(first, log.border), end), log.ranges(first, end))


async def plan_parts(parts: Sequence[Part]) -> list[TopicRange]:
    """Return the ranges in the order of the parts; all parts of one ledger are looked up together.

    Raises DataDamaged, Unavailable, the store's errors.
    """
    readers = {part.reader.bundle: part.reader for part in parts}
    spans = {bundle: {part.key: part.span for part in parts if part.reader.bundle == bundle} for bundle in readers}
    works = (plan_ranges(reader, spans[bundle]) for bundle, reader in readers.items())
    planned = {key: ranges for found in await all_of(works, BUNDLES_AT_ONCE) for key, ranges in found.items()}
    return [TopicRange(part.topic, each) for part in parts for each in (*part.archived, *planned[part.key])]


def deal(ranges: Sequence[TopicRange], tasks_min: int, task_bytes: int = TASK_BYTES) -> list[list[TopicRange]]:
    """Group neighbouring ranges up to a size; a range of unknown size stays alone. There are at
    least `tasks_min` tasks, if there are enough records.
    """
    names = {each.range.key: each.topic for each in ranges}
    total_bytes = sum(each.range.bytes if each.range.is_sized else task_bytes for each in ranges)
    bytes_max = max(1, min(task_bytes, total_bytes // tasks_min))
    parts = split([*_pieces(ranges, bytes_max)], tasks_min)
    tasks = _packed(parts, bytes_max)
    if len(tasks) < (wanted := min(tasks_min, len(parts))):
        # the largest size that gives enough tasks; with 1 byte each part is a task
        sizes = range(bytes_max, 0, -1)
        tasks = _packed(parts, sizes[bisect_left(sizes, wanted, key=lambda size: len(_packed(parts, size)))])
    return [_bounded([TopicRange(names[part.key], part) for part in task]) for task in tasks]


def _packed(parts: Sequence[OffsetRange], bytes_max: int) -> list[list[OffsetRange]]:
    """Pack the parts: one of unknown size is a task, its neighbours are grouped."""
    tasks: list[list[OffsetRange]] = []
    task: list[OffsetRange] = []
    size_bytes = batches = 0
    for part in parts:
        if not part.is_sized:
            tasks.append([part])
            continue
        part_bytes = max(1, part.bytes)
        if not task or size_bytes + part_bytes > bytes_max or batches + len(part.batches) > TASK_BATCHES:
            tasks.append(task := [])
            size_bytes = batches = 0
        task.append(part)
        size_bytes += part_bytes
        batches += len(part.batches)
    return tasks


def _bounded(task: list[TopicRange]) -> list[TopicRange]:
    """Return the task with no more bytes than may travel with it; the rest is read from the store."""
    found, room = [], AT_HAND_BYTES_MAX
    for part in task:
        size_bytes = sum(map(len, part.range.at_hand.values()))
        fits = size_bytes <= room
        room -= size_bytes if fits else 0
        found.append(part if fits else replace(part, range=replace(part.range, at_hand={})))
    return found


def _pieces(ranges: Iterable[TopicRange], bytes_max: int) -> Iterator[OffsetRange]:
    """Cut ranges in segments between batches: by their bytes, and so that few places travel with a
    task.
    """
    for each in ranges:
        whole, first = each.range, each.range.first
        for cut in whole.batches.cuts(TASK_BATCHES, bytes_max):
            yield whole.part(first, cut)
            first = cut
        yield whole if first == whole.first else whole.part(first, whole.end)


def topics_of(catalog: Catalog, options: SourceOptions) -> list[Topic]:
    """Return the topics. Raises UnknownTopic; a query reads no internal topics."""
    names = options.chosen([topic.name for topic in catalog.living_topics() if not topic.internal])
    topics = [catalog.living(name) for name in names]
    internal = [topic.name for topic in topics if topic.internal]
    if internal:
        raise InvalidConfig(f"topic {internal[0]!r} belongs to the system and cannot be read by a query")
    return topics


async def _followed(metadata: LedgerRef, chosen: Chosen, index_batches_max: int) -> dict[int, FollowedLedger]:
    """Open each bundle that holds some of these partitions."""
    wanted = {PartitionId(topic.id, partition) for topic, partition in chosen}
    followed = {
        bundle: FollowedLedger(
            replace(metadata, bundle=bundle), wanted=wanted.__contains__, index_batches_max=index_batches_max
        )
        for bundle in sorted({topic.bundles[partition] for topic, partition in chosen})
    }
    await all_of((each.open() for each in followed.values()), BUNDLES_AT_ONCE)
    return followed


def partitions_of(topic: Topic, options: SourceOptions) -> list[int]:
    named: set[int] = set(options.partitions or ())
    for offsets in (options.starting_offsets, options.ending_offsets):
        if isinstance(offsets, Mapping):
            named |= offsets.get(topic.name, {}).keys()
    beyond = [partition for partition in sorted(named) if partition >= topic.partitions]
    if beyond:
        raise UnknownPartition(
            f"topic {topic.name} has {topic.partitions} partitions, there is no partition {beyond[0]}"
        )
    return sorted(options.partitions) if options.partitions is not None else list(range(topic.partitions))


async def _offsets(reader: Log, topic: str, key: PartitionId, options: SourceOptions) -> tuple[int, int]:
    """Return first and end offset within the existing log; if that is less than requested,
    `failOnDataLoss` decides.
    """
    start, end = reader.log_start(key), reader.end(key)
    first = await resolve(reader, options.starting_offsets, topic, key, start)
    last = await resolve(reader, options.ending_offsets, topic, key, end)
    _check_order(first, last, topic, key, options)
    if options.fail_on_data_loss and (lost := _lost(first, last, start, end)):
        text = f"{topic}/{key.partition}: {lost}; failOnDataLoss=false reads the remaining records"
        raise OffsetOutOfRange(text)
    first = min(max(first, start), end)
    return first, min(max(last, first), end)


def _check_order(first: int, last: int, topic: str, key: PartitionId, options: SourceOptions) -> None:
    """Raise InvalidConfig if the query names an end below the start. An earliest record may be above the end, and
    times may lie anywhere: such a query reads nothing.
    """
    starts, ends = options.starting_offsets, options.ending_offsets
    has_start = _named(starts, topic, key, EARLIEST) or starts == "latest"
    if first > last and has_start and _named(ends, topic, key, LATEST):
        raise InvalidConfig(f"{topic}/{key.partition}: endingOffsets is {last}, below startingOffsets, {first}")


def _named(offsets: Offsets, topic: str, key: PartitionId, default: int) -> bool:
    return isinstance(offsets, Mapping) and offsets.get(topic, {}).get(key.partition, default) != default


def _lost(first: int, last: int, start: int, end: int) -> str:
    if first < start and first < last:
        return f"offset {first} is asked for, the log starts at {start}"
    beyond: Iterable[int] = (offset for offset in (first, last) if offset > end)
    return next((f"offset {offset} is asked for, the log ends at {end}" for offset in beyond), "")


async def resolve(reader: Log, offsets: Offsets, topic: str, key: PartitionId, default: int) -> int:
    """Resolve offsets; a partition that a mapping does not name is read from its begin, or to its
    end.
    """
    start, end = reader.log_start(key), reader.end(key)
    if isinstance(offsets, AtTime):
        found = await reader.offset_at(key, offsets.timestamp_us)
        return end if found is None else found
    if not isinstance(offsets, Mapping):
        return start if offsets == "earliest" else end
    named = offsets.get(topic, {}).get(key.partition, default)
    return {EARLIEST: start, LATEST: end}.get(named, named)
