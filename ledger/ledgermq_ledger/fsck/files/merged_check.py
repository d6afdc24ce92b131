"""Check merged files: those that a list names exist and are whole, and each stands for a run of small ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ledgermq.errors import DataDamaged
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.files.parquet_rows import find_wrong_rows
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keys import ParquetName
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.files.columns import FooterNote
from ledgermq_ledger.parquet.files.stored_file import read_footer
from ledgermq_ledger.parquet.merging.merged_list import list_key, place_of, read_list, standing
from ledgermq_ledger.parquet.merging.names import MergedName, parse_merged
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.topics.catalog import Catalog

USE_SMALL = "brokers, Spark's source and `ledgermq sql` take the small files instead"


class MergedCheck:
    def __init__(
        self, store: ObjectStore, cluster: ClusterSettings, problems: Problems, run_blocking: RunBlocking
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._problems = problems
        self._run_blocking = run_blocking
        self._named: set[str] = set()

    async def run(
        self, listed: Sequence[ObjectInfo], catalog: Catalog, checkpoints: Sequence[fmt.Checkpoint], *, quick: bool
    ) -> None:
        """Check all. `listed`: objects below `merged/`, from before the checkpoints were read."""
        parts: dict[keys.PartitionId, fmt.PartitionCheckpoint] = {}
        for checkpoint in checkpoints:
            for counters in checkpoint.partitions:
                if not counters.forgotten and not catalog.is_removed(counters.topic_id, catalog.offset):
                    parts[place_of(counters)] = counters
                    if counters.merged.number:
                        await self._check_partition(checkpoint, counters, catalog, quick=quick)
        used_ms = max((checkpoint.created_ms for checkpoint in checkpoints), default=0)
        for info in listed:
            if (name := parse_merged(info.key)) is not None and info.key not in self._named:
                self._left_over(name, info, parts.get(name.place), used_ms)

    async def _check_partition(
        self, checkpoint: fmt.Checkpoint, counters: fmt.PartitionCheckpoint, catalog: Catalog, *, quick: bool
    ) -> None:
        key = list_key(place_of(counters), counters.merged)
        self._named.add(key)
        with self._problems.collecting(key):
            try:
                files = (await read_list(self._store, counters)).files
            except ObjectMissing:
                text = f"it is missing, but the newest checkpoint of bundle {checkpoint.bundle} names it"
                self._problems.damage(key, "MERGED_FILE_MISSING", f"{text}; {USE_SMALL}")
                return
            pages = PageReader(self._store, checkpoint.bundle)
            small = await pages.files_from(counters, counters.parquet_start)
            firsts, lasts = {file.first_offset for file in small}, {file.last_offset for file in small}
            topic = catalog.topics_by_id.get(counters.topic_id)
            for file in standing(files, counters):
                self._named.add(file.key)
                if file.first_offset not in firsts or file.last_offset not in lasts:
                    text = "its list says so, but it does not begin and end where small files do"
                    self._problems.damage(file.key, "WRONG_LIST", text)
                elif topic is not None:
                    await self._check_file(file, topic.name, quick=quick)

    async def _check_file(self, file: fmt.ParquetFile, topic: str, *, quick: bool) -> None:
        name = parse_merged(file.key)
        assert name is not None, file.key
        with self._problems.collecting(file.key):
            try:
                size = (await self._store.head(file.key)).size
                note = FooterNote.decode((await read_footer(self._store, file.key)).metadata)
            except ObjectMissing:
                text = f"it is missing, but a list of merged files names it; {USE_SMALL}"
                self._problems.damage(file.key, "MERGED_FILE_MISSING", text)
                return
            if note is None or not self._cluster.wrote(note.cluster) or size != file.size or not _fits(note, name):
                text = f"its size or footer is not what the list of merged files says; {USE_SMALL}"
                self._problems.damage(file.key, "WRONG_LIST", text)
                return
            if quick:
                return
            data = await self._store.get(file.key)
            plain = ParquetName(topic, name.place.partition, note.first_offset, note.last_offset, note.topic_id, 0)
            try:
                wrong = await self._run_blocking(partial(find_wrong_rows, data, file.key, plain))
            except DataDamaged as error:
                wrong = error.message
            if wrong:
                self._problems.damage(file.key, "DATA_DAMAGED", f"{wrong}; {USE_SMALL}")

    def _left_over(
        self, name: MergedName, info: ObjectInfo, counters: fmt.PartitionCheckpoint | None, used_ms: int
    ) -> None:
        newest = counters.merged.number if counters is not None else name.number
        is_behind = counters is not None and name.offsets is not None and name.offsets[0] < counters.parquet_start
        if name.number > newest and not is_behind:
            self._problems.note(info.key, "UNPUBLISHED", f"it belongs to merge {name.number}, which is not listed yet")
        else:
            text = "no list of merged files names it"
            self._problems.leftover(info.key, "UNREFERENCED", text, put_ms=info.modified_ms, used_ms=used_ms)


def _fits(note: FooterNote, name: MergedName) -> bool:
    said = (note.topic_id, note.partition, note.first_offset, note.last_offset, note.plan, note.plan_put_id)
    assert name.offsets is not None
    return said == (*name.place, *name.offsets, name.number, name.put_id.hex())
