"""Merge the small files of a bundle's partitions: files, lists, then one checkpoint that names the lists.

    newest checkpoint, its lists of small files | a merged file of each run | a new list of each partition |
    checkpoint: the lists are in force, where no other merge and no retention came between

A merge is no plan: nothing waits for it, and it holds up no round. Whatever it has put before it ends early is garbage
(`ledgermq_ledger.garbage.topics.merged_files`). Small files stay, so plain readers, tables and cuts notice nothing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from ledgermq.errors import DataDamaged
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import Move, newest_checkpoint, partitions_by_key, replace_partitions
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.compaction import Compaction, MergeSearch, MergeSearches
from ledgermq_ledger.parquet.files.stored_file import StoredFile
from ledgermq_ledger.parquet.merging.merged_list import Unread, place_of, put_list, read_files
from ledgermq_ledger.parquet.merging.names import files_there
from ledgermq_ledger.parquet.merging.plan import Run, choose_run, has_delta_table, may_list, wants_merges, with_file
from ledgermq_ledger.parquet.merging.task import MergeTask
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.parquet.report import MergeReport
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.facts import has_table
from ledgermq_ledger.topics.settings import TopicSettings
from ledgermq_ledger.topics.topic import Topic

BYTES_MAX = 512 * 1024 * 1024
"""Of small files that are read for one checkpoint; a larger run goes alone."""
ROUNDS_MAX = 100
"""Checkpoints in one run."""


@dataclass(frozen=True, slots=True)
class Merge:
    """One partition's part of a checkpoint. `counters`: those from which it is made. `listed`: the list in force."""

    counters: fmt.PartitionCheckpoint
    task: MergeTask
    listed: Sequence[fmt.ParquetFile]

    @property
    def place(self) -> PartitionId:
        return place_of(self.counters)


async def merge_bundle(
    compaction: Compaction, bundle: int, catalog: Catalog, *, bytes_max: int | None = None
) -> list[MergeReport]:
    """Merge until no run of the bundle is due. `bytes_max`: leave out runs of more bytes.

    A partition with a file that cannot be read is left out, and then the error is raised. Raises DataDamaged (naming
    the object), Unavailable, the store's errors. What was merged before stays.
    """
    reports: list[MergeReport] = []
    damaged: dict[PartitionId, DataDamaged] = {}
    for _ in range(ROUNDS_MAX):
        merges: list[Merge] = []
        try:
            merges = await find_merges(compaction, bundle, catalog, bytes_max=bytes_max, without=damaged)
            if not merges:
                break
            reports += await _run(compaction, bundle, merges)
        except ObjectMissing:
            break  # retention, or another process, was faster; the next run looks again
        except DataDamaged as error:
            places = {m.place for m in merges if any(file.key == error.object_key for file in m.task.files)}
            if not places:
                raise
            damaged |= dict.fromkeys(places, error)
    for why in damaged.values():
        raise why
    return reports


async def _run(compaction: Compaction, bundle: int, merges: Sequence[Merge]) -> list[MergeReport]:
    store, tasks = compaction.store, [merge.task for merge in merges]
    made: list[StoredFile] = await compaction.engine.run(store, tasks, lambda task, outcome: None)
    lists = []
    for merge, stored in zip(merges, made, strict=True):
        new = stored.listed(merge.task.number, max(file.committed_ms for file in merge.task.files))
        listed = fmt.MergedList(
            topic_id=merge.place.topic_id,
            partition=merge.place.partition,
            number=merge.task.number,
            put_id=merge.task.put_id,
            files=with_file(merge.listed, new, merge.counters),
        )
        await put_list(store, listed, compaction.sources)
        lists.append(listed)
    move = ListMove(merges, lists)
    if await advance_checkpoint(compaction.ledger(bundle), move.edit) is None:
        return []
    return [
        MergeReport(
            bundle=bundle,
            topic=merge.task.topic,
            partition=merge.place.partition,
            files=len(merge.task.inputs),
            source_bytes=merge.task.source_bytes,
            stored_bytes=stored.size,
        )
        for merge, stored in zip(merges, made, strict=True)
        if merge.place in move.listed
    ]


async def find_merges(
    compaction: Compaction,
    bundle: int,
    catalog: Catalog,
    *,
    bytes_max: int | None = None,
    without: Container[PartitionId] = (),
) -> list[Merge]:
    """Return the merges that are due, one of each partition at most, but for those `without`. Free where no topic asks
    for merges.

    Raises ObjectMissing if a list was replaced meanwhile, DataDamaged, the store's errors.
    """
    wanted = {topic.id: topic for topic in catalog.living_topics() if wants_merges(topic)}
    if not wanted:
        return []
    compaction.merge_searches.keep(wanted)
    store = compaction.store
    checkpoint, pages = await newest_checkpoint(store, bundle), PageReader(store, bundle)
    looks = _Looks(compaction.merge_searches, pages, bytes_max)
    found: list[Merge] = []
    size = 0
    for counters in checkpoint.partitions:
        topic = wanted.get(counters.topic_id)
        if topic is None or place_of(counters) in without or not may_list(checkpoint, counters):
            continue
        if not await looks.may_find(counters, topic.settings):
            continue
        listed = await read_files(store, counters)
        if listed is Unread.LATER:
            continue  # it is not for this release to replace
        if listed is Unread.LOST:
            if await _may_be_named(store, topic, checkpoint, counters):
                continue  # `fsck` reports it
            listed = []
        files = await pages.files_from(counters, counters.parquet_start)
        run = choose_run(files, listed, counters, topic.settings)
        if not looks.fits(run):
            looks.note(counters, topic.settings, run)
            continue
        if found and size + run.size > BYTES_MAX:
            break
        size += run.size
        task = MergeTask(
            store_url=store.url,
            cluster_id=compaction.cluster.cluster_id,
            bundle=bundle,
            place=place_of(counters),
            topic=topic.name,
            number=counters.merged.number + 1,
            put_id=compaction.sources.new_id(),
            table_of=topic.name if has_delta_table(topic) else "",
            inputs=tuple(file.SerializeToString(deterministic=True) for file in run.files),
            bloom=topic.settings.parquet_bloom_key,
            row_group_bytes=topic.settings.parquet_row_group_bytes,
        )
        found.append(Merge(counters, task, listed))
    return found


class _Looks:
    """Looks of one process for runs of at most `bytes_max` bytes, each from where the last one ended."""

    def __init__(self, searches: MergeSearches, pages: PageReader, bytes_max: int | None) -> None:
        self._searches, self._pages, self._bytes_max = searches, pages, bytes_max

    def fits(self, run: Run) -> bool:
        return run.is_due and (self._bytes_max is None or run.size <= self._bytes_max)

    def _state(self, counters: fmt.PartitionCheckpoint, settings: TopicSettings) -> tuple[object, ...]:
        """What decides about runs, beside the small files. The log start only makes fewer of them."""
        merged = counters.merged
        of_list = merged.number, merged.put_id, merged.first
        return *of_list, settings.parquet_merge_files, settings.parquet_target_bytes, self._bytes_max

    def note(self, counters: fmt.PartitionCheckpoint, settings: TopicSettings, run: Run) -> None:
        """Note that this run is not to be merged, nor one before it."""
        first = run.files[0].first_offset if run.files else counters.parquet_end
        search = MergeSearch(self._state(counters, settings), first, counters.newest_page, counters.parquet_end)
        self._searches.put(place_of(counters), search)

    async def may_find(self, counters: fmt.PartitionCheckpoint, settings: TopicSettings) -> bool:
        """Return whether a run may be due, by the files from where the last look ended. The list of merged files is
        not read for it, so the answer may be wrong where it is True.
        """
        last = self._searches.get(place_of(counters), self._state(counters, settings))
        if last is None:
            return True
        if (last.page, last.end) == (counters.newest_page, counters.parquet_end):
            return False
        run = choose_run(await self._pages.files_from(counters, last.first), [], counters, settings)
        if not run.is_due:
            self.note(counters, settings, run)
        return run.is_due


async def _may_be_named(
    store: ObjectStore, topic: Topic, checkpoint: fmt.Checkpoint, counters: fmt.PartitionCheckpoint
) -> bool:
    """Return whether a Delta table may name files of a list that is lost. A new list would make them garbage, so it
    waits until none of them is left from the front on.
    """
    is_set_since = has_table(checkpoint, topic.id) and not topic.settings.table_generation
    if not has_delta_table(topic) and not is_set_since:
        return False
    there = await files_there(store, place_of(counters), topic.name)
    return any(
        name.number <= counters.merged.number and name.offsets is not None and name.offsets[0] >= counters.parquet_start
        for name in there
    )


class ListMove:
    """The change that brings lists of merged files into force. `listed`: the partitions of the last draft in which it
    did.
    """

    def __init__(self, merges: Sequence[Merge], lists: Sequence[fmt.MergedList]) -> None:
        self._merges = list(zip(merges, lists, strict=True))
        self.listed: set[PartitionId] = set()

    def edit(self, draft: fmt.Checkpoint) -> bool:
        """Name the lists of those partitions for which they are right still (design Q11)."""
        parts, self.listed = partitions_by_key(draft), set()
        for merge, new in self._merges:
            counters = parts.get(merge.place)
            if counters is not None and _is_right(draft, counters, merge):
                counters.merged.CopyFrom(
                    fmt.MergedFiles(number=new.number, put_id=new.put_id, first=new.files[0].first_offset)
                )
                self.listed.add(merge.place)
        replace_partitions(draft, parts.values())
        return bool(self.listed)


def _is_right(draft: fmt.Checkpoint, counters: fmt.PartitionCheckpoint, merge: Merge) -> bool:
    """Return whether no other merge came since, the bundle is in charge, and all small files of the run are listed."""
    return (
        may_list(draft, counters)
        and counters.merged.number == merge.task.number - 1
        and counters.parquet_start <= merge.task.files[0].first_offset
    )


def forget_front(place: PartitionId, number: int, first: int) -> Move:
    """Return the change that notes that files below `first` of list `number` are gone. Another list may have more."""

    def move(draft: fmt.Checkpoint) -> bool:
        parts = partitions_by_key(draft)
        counters = parts.get(place)
        if counters is None or not may_list(draft, counters) or counters.merged.number != number:
            return False
        if counters.merged.first >= first:
            return False
        counters.merged.first = first
        replace_partitions(draft, parts.values())
        return True

    return move
