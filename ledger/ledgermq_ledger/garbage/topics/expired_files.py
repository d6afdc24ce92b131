"""Expired Parquet files: those below the log start (design D2). They go in ascending order, each gone before the next;
archived first where the topic wants it.

Only files of finished plans, whose fences are closed first, and only `parquet_min_age_ms` after the commit, because a
put that was signed before may come late (design Q1). Nothing of a topic under legal hold, and nothing by settings that
were replaced, as the newest checkpoint says just before.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from ledgermq.errors import LedgerMQError, StoreError
from ledgermq_ledger.cuts.pinned import PinReader
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.ledgers import fences
from ledgermq_ledger.garbage.topics import commit_age
from ledgermq_ledger.garbage.topics.retention import is_replaced
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import Move, newest_checkpoint
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.archiving.archive import Archives, OpenArchive
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.facts import may_remove
from ledgermq_ledger.topics.topic import Topic


async def find_expired(
    store: ObjectStore,
    checkpoint: fmt.Checkpoint,
    catalog: Catalog,
    parts: Iterable[fmt.PartitionCheckpoint] | None = None,
    pins: PinReader | None = None,
) -> AsyncIterator[tuple[Topic, fmt.ParquetFile, bool]]:
    """Yield files wholly below the log start, ascending by partition, whatever their age; and
    whether each is archived.

    Files of unknown topics, of topics that another rule removes, and of topics with a hold or newer
    settings are left out, and so are those that the gate keeps.
    """
    pages, gate = PageReader(store, checkpoint.bundle), await Gate.of(store, checkpoint, catalog, pins=pins)
    for part in checkpoint.partitions if parts is None else parts:
        topic = catalog.topics_by_id.get(part.topic_id)
        if part.parquet_start >= min(part.log_start, part.parquet_end) or topic is None or not topic.living:
            continue
        if not may_remove(checkpoint, topic, part.partition):
            continue
        for file in await pages.files_from(part, part.parquet_start):
            if file.last_offset >= part.log_start or gate.why_kept(file.key):
                break
            yield topic, file, topic.settings.delete_action == "archive" and file.last_offset >= part.deleted_to


async def remove_expired(ledger: LedgerRef, catalog: Catalog, open_archive: OpenArchive | None = None) -> int:
    """Delete whole files below the log start that are old enough, note where Parquet now begins,
    and return how many were deleted.

    A partition whose file cannot be archived, or whose file list cannot be read, stays unchanged,
    and the others continue; then the first error is raised.
    """
    store, bundle = ledger.store, ledger.bundle
    checkpoint = await newest_checkpoint(store, bundle)
    expired = [part for part in checkpoint.partitions if part.parquet_start < min(part.log_start, part.parquet_end)]
    if not expired:
        return 0
    old_enough = await commit_age.finished_long_ago(store, bundle, ledger.cluster.parquet_min_age_ms)
    await fences.close_finished(store, bundle)
    async with Archives(store, ledger.sources, open_archive) as archives:
        expiry = _Expiry(store, checkpoint, old_enough, catalog, archives)
        for part in expired:
            try:
                await expiry.delete_files(part)
            except (StoreError, ObjectMissing) as error:
                if not await is_replaced(store, checkpoint, error):
                    expiry.failed = expiry.failed or error
    if expiry.starts:
        await advance_checkpoint(ledger, _expired_move(expiry.starts))
    if expiry.young:
        await commit_age.note_finished(ledger, expiry.young)
    if expiry.failed is not None:
        raise expiry.failed
    return expiry.deleted


class _Expiry:
    """The expiry of one bundle. `starts`: where Parquet begins now, of partitions with deleted
    files.

    `young`: a plan whose files have to wait.
    """

    def __init__(
        self, store: ObjectStore, checkpoint: fmt.Checkpoint, old_enough: int, catalog: Catalog, archives: Archives
    ) -> None:
        self.starts: dict[PartitionId, int] = {}
        self.deleted = 0
        self.young = 0
        self.failed: LedgerMQError | None = None
        self._store = store
        self._checkpoint = checkpoint
        self._old_enough = old_enough
        self._catalog = catalog
        self._archives = archives
        self._pins = PinReader(store)

    async def delete_files(self, part: fmt.PartitionCheckpoint) -> None:
        """Delete files in ascending order, each archived first if the topic wants that, and deleted
        before the next.
        """
        key = PartitionId(part.topic_id, part.partition)
        async for topic, file, archives in find_expired(
            self._store, self._checkpoint, self._catalog, [part], self._pins
        ):
            if file.plan > self._old_enough:
                self.young = max(self.young, file.plan)
                break
            if file.first_offset > self.starts.get(key, part.parquet_start):
                raise AssertionError(f"{file.key} is not the oldest file of its partition")
            try:
                if archives:
                    await self._archives.keep(file.key, topic.settings.archive_url)
            except LedgerMQError as error:
                self.failed = self.failed or error
                break
            if not await self._may_remove(topic, part.partition):
                break
            gate = await Gate.of(self._store, self._checkpoint, self._catalog, pins=self._pins)
            if not await gate.delete(self._store, [file.key]):
                break
            self.starts[key] = file.last_offset + 1
            self.deleted += 1

    async def _may_remove(self, topic: Topic, partition: int) -> bool:
        """Return True if records of the partition may be removed; read just before each deletion,
        because a hold may have been set since.
        """
        self._checkpoint = await newest_checkpoint(self._store, self._checkpoint.bundle, self._checkpoint)
        return may_remove(self._checkpoint, topic, partition)


def _expired_move(starts: dict[PartitionId, int]) -> Move:
    def move(draft: fmt.Checkpoint) -> bool:
        moved = False
        for part in draft.partitions:
            start = starts.get(PartitionId(part.topic_id, part.partition), 0)
            if part.frozen:
                continue  # the other bundle deletes these files once more, and notes it
            if start > part.log_start:
                raise AssertionError(
                    f"{part.topic_id}/{part.partition}: Parquet would begin at {start}, but the log begins at"
                    f" {part.log_start}"
                )
            if start > part.parquet_start:
                part.parquet_start = start
                moved = True
        return moved

    return move
