"""Read and put file lists: the Parquet files of each partition, in immutable pages `files/<plan>`,
merged by powers (docs/design.md, Checkpoints).

    envelope( FilePage{ per partition: its files of this plan and of merged older pages, ascending;
                        the page before these } )

A new page takes in the page before it when that lists no more files than itself, so a partition's
list is a chain of a logarithmic number of pages, and each file is written down a logarithmic number
of times.

A file is as old as its newest record, and a record as its timestamp says, but no younger than its
append: a producer's timestamp may be of the future, and would keep the records before it until
then. The store's date of the segment proves the append (column `appended`). A file without this
column is dated by its own object, and only where its timestamps and its commit disagree.

Files below `parquet_start` are deleted and left out. Every process that runs a plan
may put the page; the one that exists counts, because all are right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from ledgermq.errors import DataDamaged, Unavailable
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import partitions_by_key
from ledgermq_ledger.log.chains.envelope import ObjectKind, seal, unseal
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.parquet.files.stored_file import StoredFile


def decode_page(data: bytes, key: str) -> fmt.FilePage:
    """Decode a page. Raises DataDamaged, FormatNotSupported, naming `key`."""
    page = unseal(ObjectKind.FILE_PAGE, fmt.FilePage(), data, key)
    if key != keys.file_page(page.bundle, page.plan):
        raise DataDamaged(f"{key}: it says bundle {page.bundle}, plan {page.plan}", object_key=key)
    for part in page.partitions:
        for file in part.files:
            name = keys.parse_parquet(file.key)
            if name is None or (name.topic_id, name.partition) != (part.topic_id, part.partition):
                where = PartitionId(part.topic_id, part.partition)
                raise DataDamaged(f"{key}: {file.key!r} is no file of partition {where}", object_key=key)
    return page


def encode_page(page: fmt.FilePage) -> bytes:
    return seal(ObjectKind.FILE_PAGE, page)


class PageReader:
    """Reads pages by number, each fetched once.

    Pages are immutable, so a reader may live as long as its bound allows.
    """

    def __init__(self, store: ObjectStore, bundle: int, pages_max: int = 64) -> None:
        self._store = store
        self._bundle = bundle
        self._pages_max = pages_max
        self._pages: dict[int, dict[PartitionId, fmt.PartitionFiles]] = {}

    async def part(self, plan: int, key: PartitionId) -> fmt.PartitionFiles:
        """Return what page `plan` holds for a partition.

        Raises ObjectMissing (look at the newest checkpoint again), DataDamaged.
        """
        if plan not in self._pages:
            object_key = keys.file_page(self._bundle, plan)
            page = decode_page(await self._store.get(object_key), object_key)
            while len(self._pages) >= self._pages_max:
                del self._pages[next(iter(self._pages))]
            self._pages[plan] = {PartitionId(part.topic_id, part.partition): part for part in page.partitions}
        part = self._pages[plan].get(key)
        if part is None:
            object_key = keys.file_page(self._bundle, plan)
            raise DataDamaged(f"{object_key}: it does not list partition {key}", object_key=object_key)
        return part

    async def files_from(self, counters: fmt.PartitionCheckpoint, offset: int) -> list[fmt.ParquetFile]:
        """Return the live files of a partition that hold records at or above `offset`, ascending."""
        found: list[fmt.ParquetFile] = []
        page = counters.newest_page if counters.parquet_start < counters.parquet_end else 0
        least = max(offset, counters.parquet_start)
        while page:
            part = await self.part(page, PartitionId(counters.topic_id, counters.partition))
            found[:0] = [file for file in part.files if file.last_offset >= least]
            if part.files and part.files[0].first_offset <= least:
                break
            page = part.previous_page
        check_run(found, counters)
        return found

    async def chain(self, counters: fmt.PartitionCheckpoint) -> list[int]:
        """Return the numbers of the pages of a partition's list, newest first, as far as files are
        still live.
        """
        found = []
        page = counters.newest_page
        while page and counters.parquet_start < counters.parquet_end:
            found.append(page)
            part = await self.part(page, PartitionId(counters.topic_id, counters.partition))
            if part.files and part.files[0].first_offset <= counters.parquet_start:
                break
            page = part.previous_page
        return found


def check_run(files: Sequence[fmt.ParquetFile], counters: fmt.PartitionCheckpoint) -> None:
    """Check safety invariant 8: one gapless run, up to the end of Parquet. Raises DataDamaged."""
    for before, after in pairwise(files):
        if after.first_offset != before.last_offset + 1:
            raise DataDamaged(
                f"the file list says that {after.key} follows {before.key}, but its offsets do not",
                object_key=after.key,
            )
    if files and files[-1].last_offset + 1 != counters.parquet_end:
        last = files[-1].key
        raise DataDamaged(
            f"{last} is the last Parquet file, but the checkpoint says that Parquet ends at {counters.parquet_end}",
            object_key=last,
        )


async def build_page(
    pages: PageReader, base: fmt.Checkpoint, plan: fmt.CompactionPlan, stored: Sequence[StoredFile]
) -> fmt.FilePage:
    """Return the page of a plan: its files that did not fail, with older pages merged in.

    `base` has finished the plan before.
    """
    page = fmt.FilePage(bundle=plan.bundle, plan=plan.number, put_id=plan.put_id)
    counters = partitions_by_key(base)
    for file in sorted(stored, key=lambda file: PartitionId(file.note.topic_id, file.note.partition)):
        if not file.note.failed:
            key = PartitionId(file.note.topic_id, file.note.partition)
            page.partitions.append(await _merged(pages, counters.get(key), file.listed(plan.number, plan.created_ms)))
    page.partitions.extend(files_of(takeover, plan.number) for takeover in plan.takeovers if takeover.files)
    page.partitions.sort(key=lambda part: PartitionId(part.topic_id, part.partition))
    return page


def files_of(takeover: fmt.PlannedTakeover, plan: int) -> fmt.PartitionFiles:
    """Return the part of a partition that is taken over in the page of a plan: the age of its files counts from
    this plan on, because numbers of the other bundle's plans say nothing here (design T5).
    """
    counters = takeover.counters
    part = fmt.PartitionFiles(topic_id=counters.topic_id, partition=counters.partition, files=takeover.files)
    for file in part.files:
        file.plan = plan
    return part


async def _merged(
    pages: PageReader, counters: fmt.PartitionCheckpoint | None, new: fmt.ParquetFile
) -> fmt.PartitionFiles:
    parsed = keys.parse_parquet(new.key)
    assert parsed is not None
    key = PartitionId(parsed.topic_id, parsed.partition)
    files = [new]
    previous = counters.newest_page if counters is not None and counters.parquet_start < counters.parquet_end else 0
    previous_count = 0
    while previous:
        assert counters is not None
        part = await pages.part(previous, key)
        live = [file for file in part.files if file.last_offset >= counters.parquet_start]
        if len(live) > len(files):
            previous_count = len(part.files)
            break
        files[:0] = live
        previous = part.previous_page if live and live[0].first_offset > counters.parquet_start else 0
    return fmt.PartitionFiles(
        topic_id=key.topic_id,
        partition=key.partition,
        files=files,
        previous_page=previous,
        previous_count=previous_count,
    )


async def put_page(store: ObjectStore, page: fmt.FilePage, sources: Sources) -> None:
    """Put the page of a plan; that of another process that runs the plan is as good.

    Raises DataDamaged if a page of another plan is there, Unavailable.
    """
    key = keys.file_page(page.bundle, page.plan)
    outcome = await settle_put(store, key, [encode_page(page)], sources=sources)
    if outcome is PutOutcome.UNKNOWN:
        raise Unavailable(f"{key}: outcome of the conditional put is unknown; retry later")
    if outcome is PutOutcome.LOST:
        there = decode_page(await store.get(key), key)
        if there.put_id != page.put_id or newest_files(there) != newest_files(page):
            raise DataDamaged(f"{key}: a page of another plan has its name", object_key=key)


def newest_files(page: fmt.FilePage) -> list[str]:
    """Return the keys of the files that the page's own plan made."""
    return [part.files[-1].key for part in page.partitions]


def written_ms(file: fmt.ParquetFile) -> int:
    """Return the time from which the age of a file counts; without any time in its records, that of its plan."""
    appended_ms, newest_ms = file.appended_max_us // 1000, file.timestamp_max_us // 1000
    if newest_ms and appended_ms:
        return min(newest_ms, appended_ms)
    return newest_ms or appended_ms or file.committed_ms


async def dated(store: ObjectStore, files: Iterable[fmt.ParquetFile], before_ms: int) -> list[fmt.ParquetFile]:
    """Return files of the log; those without times of appends, that claim records from after their own commit
    before `before_ms`, get the date of their object. One request for each of these.

    The files behind the first whose date is not before `before_ms` stay as they are: nothing behind it is due.
    Raises the store's errors.
    """
    found, looks = [], True
    for file in files:
        claims = not file.appended_max_us and file.timestamp_max_us // 1000 > file.committed_ms
        if looks and claims and file.committed_ms < before_ms:
            date_ms = await _date_ms(store, file.key)
            looks = date_ms < before_ms
            file = _with_date(file, date_ms)
        found.append(file)
    return found


async def _date_ms(store: ObjectStore, key: str) -> int:
    """Return the date of an object; 0 if another process has just moved it away."""
    try:
        return (await store.head(key)).modified_ms
    except ObjectMissing:
        return 0


def _with_date(file: fmt.ParquetFile, date_ms: int) -> fmt.ParquetFile:
    twin = fmt.ParquetFile()
    twin.CopyFrom(file)
    twin.appended_max_us = 1000 * date_ms
    return twin
