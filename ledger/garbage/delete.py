"""Deletes what is no longer needed, and exactly that (design L6, D2; safety invariants 1, 8 and 9).

segments        those that finished plans name, below the trim slot of the newest checkpoint, read just before; so claims
                and void segments are never deleted, and no slot forgets its fence
plans           finished, and all their slots deleted; at once where they name none
fences          of finished plans; closed before any file of theirs is deleted
Parquet files   below the log start, ascending, each gone before the next; not before `parquet_min_age` after their commit; of topics
                that archive only once a copy was read back; of topics under legal hold, and by settings that were replaced, none
checkpoints, snapshots      older than the newest checkpoint and the one that it names
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from ledger import keys
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.garbage.commit_age import note_finished
from ledger.garbage.retention import new_log_starts
from ledger.keys import PartitionId
from ledger.log.checkpoint import (
    Move,
    delete_older_checkpoints,
    newest_checkpoint,
    partitions_by_key,
    replace_partitions,
)
from ledger.log.ledger_ref import LedgerRef
from ledger.log.numbered import list_numbered
from ledger.log.plan_chain import read_plan
from ledger.log.recovery import advance_checkpoint
from ledger.object_store.contract import ObjectMissing, ObjectStore
from ledger.parquet.archive import Archives, OpenArchive
from ledger.parquet.pages import PageReader
from ledger.root.two_clocks import TwoClocks
from ledger.topics.catalog import Catalog, Topic
from ledger.topics.facts import is_held, may_remove, refuse_held
from ledger.topics.removal import note_of
from ledgermq.errors import LedgerMQError, StoreError, UnknownTopic
from ledgermq.runtime.tasks import all_of

DELETE_BATCH = 500


async def tidy_bundle(ledger: LedgerRef, catalog: Catalog) -> None:
    """Everything that may be deleted in a bundle now. Safe to be cut off anywhere and to be run by
    several at once.

    What fails keeps none of the rest from going; then its error is raised, the first of several.
    """
    store, bundle = ledger.store, ledger.bundle
    failures: list[LedgerMQError] = []

    async def tried(chore: Callable[[], Awaitable[object]]) -> None:
        try:
            await chore()
        except LedgerMQError as error:
            failures.append(error)

    async def retain() -> None:
        await tried(partial(apply_retention, ledger, catalog))
        await tried(partial(delete_expired_parquet, ledger, catalog))

    await all_of(
        (tried(partial(delete_segments, store, bundle)), tried(partial(close_finished_fences, store, bundle)), retain())
    )
    await tried(partial(_let_cleaned_logs_age, ledger, catalog))
    await tried(partial(delete_replaced, store, bundle))
    if failures:
        raise failures[0]


async def tidy_snapshots(store: ObjectStore, bundle: int) -> None:
    """What a round of internal topics alone leaves behind: it trims nothing, so looking through all
    plans would find nothing.
    """
    await close_finished_fences(store, bundle)
    await delete_replaced(store, bundle)


async def delete_segments(store: ObjectStore, bundle: int) -> int:
    """Delete what finished plans name below the trim slot, then plans of which nothing is left; how
    many segments were deleted.
    """
    plans = [number async for number, _ in list_numbered(store, keys.compactions(bundle))]
    if not plans:
        return 0
    checkpoint = await newest_checkpoint(store, bundle)
    trim_slot = checkpoint.trim_slot
    there = await _slots_below(
        store, bundle, trim_slot
    )  # others have deleted some: most of what a large plan names, round after round
    deleted = 0
    for at, number in enumerate(plans):
        plan = await read_plan(store, bundle, number)
        checkpoint = await newest_checkpoint(store, bundle, checkpoint)  # just before deleting: a remembered one lies
        finished = checkpoint.finished_plan
        if plan is None:
            continue
        slots = [slot.slot for slot in plan.slots if slot.slot < trim_slot]
        if number > finished:
            break
        if plan.slots and not slots:  # the plans after it name later slots, or none
            await _delete_plans_without_slots(store, bundle, [later for later in plans[at + 1 :] if later <= finished])
            break
        left = [slot for slot in slots if slot in there]
        for i in range(0, len(left), DELETE_BATCH):
            await store.delete([keys.segment(bundle, slot) for slot in left[i : i + DELETE_BATCH]])
        deleted += len(left)
        if len(slots) == len(plan.slots):
            await store.delete([keys.compaction(bundle, number)])
    return deleted


async def _delete_plans_without_slots(store: ObjectStore, bundle: int, finished: Sequence[int]) -> None:
    """The newest ones. A round that the store had no room for leaves one each time: they must not
    use up what room there is.
    """
    for number in reversed(finished):
        plan = await read_plan(store, bundle, number)
        if plan is None:
            continue
        if plan.slots:
            break
        await store.delete([keys.compaction(bundle, number)])


async def _slots_below(store: ObjectStore, bundle: int, trim_slot: int) -> set[int]:
    found = set()
    async for slot, _ in list_numbered(store, keys.segments(bundle)):
        if slot >= trim_slot:
            break
        found.add(slot)
    return found


async def close_finished_fences(store: ObjectStore, bundle: int) -> None:
    fences = [
        fence
        for name in await store.list_fences()
        if (fence := keys.parse_fence(name)) is not None and fence.bundle == bundle
    ]
    if not fences:
        return
    finished = (await newest_checkpoint(store, bundle)).finished_plan
    for fence in fences:
        if fence.plan <= finished:
            await store.close_fence(keys.fence(fence.bundle, fence.plan, fence.put_id))


async def apply_retention(ledger: LedgerRef, catalog: Catalog) -> None:
    """Move log starts where the retention settings of topics say so, by both clocks: a log start
    never goes back.

    Partitions whose file list cannot be read stay as they are, the others go on; then the first
    error is raised.
    """
    store = ledger.store
    checkpoint = await newest_checkpoint(store, ledger.bundle)
    pages = PageReader(store, ledger.bundle)
    failed: StoreError | ObjectMissing | None = None

    async def starts_by(now_ms: int) -> dict[PartitionId, int]:
        nonlocal failed
        found, failed = await new_log_starts(pages, checkpoint, catalog, now_ms)
        return found

    starts = await TwoClocks(store, ledger.sources).due(starts_by)
    if failed is not None and await _is_replaced(store, checkpoint, failed):
        failed = None
    if starts:
        await advance_checkpoint(ledger, log_start_move(starts, catalog))
    if failed is not None:
        raise failed


async def _is_replaced(store: ObjectStore, checkpoint: fmt.Checkpoint, error: LedgerMQError) -> bool:
    """Something is missing for others are doing the same: the file list that was read is in force
    no more.
    """
    return (
        isinstance(error, ObjectMissing)
        and (await newest_checkpoint(store, checkpoint.bundle)).number != checkpoint.number
    )


def log_start_move(starts: dict[PartitionId, int], catalog: Catalog | None = None) -> Move:
    """Raise the log start of partitions of living topics that are not held; declines where none
    would move.

    `catalog`: whose settings said so; where the draft knows newer ones of a topic, its log stays.
    One above the partition's end is a bug.
    """

    def move(draft: fmt.Checkpoint) -> bool:
        parts = partitions_by_key(draft)
        ends = {PartitionId(end.topic_id, end.partition): end.end for end in draft.state.ends}
        moved = False
        removed = {topic.topic_id for topic in draft.removed_topics}
        for key, start in starts.items():
            if key.topic_id in removed or is_held(draft, key.topic_id):
                continue
            if catalog is not None and not may_remove(draft, catalog.topics_by_id[key.topic_id]):
                continue
            if start > ends.get(key, 0):
                raise AssertionError(
                    f"bundle {draft.bundle}: the log of {key} would start at {start}, it ends at {ends.get(key, 0)}"
                )
            part = parts.setdefault(key, fmt.PartitionCheckpoint(topic_id=key.topic_id, partition=key.partition))
            if start > part.log_start:
                part.log_start = start
                moved = True
        replace_partitions(draft, parts.values())
        return moved

    return move


def deletion_move(topic: Topic, befores: Mapping[int, int]) -> Move:
    """Of partitions, records below these offsets are deleted on demand, and go to no archive;
    declines where no log start would move.

    Raises LegalHold, UnknownTopic (it was removed meanwhile) when it is applied.
    """
    raise_log_starts = log_start_move(
        {PartitionId(topic.id, partition): before for partition, before in befores.items()}
    )

    def move(draft: fmt.Checkpoint) -> bool:
        refuse_held(draft, topic)
        if note_of(draft, topic.id) is not None:
            raise UnknownTopic(f"topic {topic.name!r} is being deleted")
        old = {key: part.log_start for key, part in partitions_by_key(draft).items()}
        if not raise_log_starts(draft):
            return False
        for key, part in partitions_by_key(draft).items():
            if part.log_start > old.get(key, 0):
                part.deleted_to = part.log_start
        return True

    return move


async def expired_files(
    store: ObjectStore,
    checkpoint: fmt.Checkpoint,
    catalog: Catalog,
    parts: Iterable[fmt.PartitionCheckpoint] | None = None,
) -> AsyncIterator[tuple[Topic, fmt.ParquetFile, bool]]:
    """Files wholly below the log start, ascending by partition, whatever their age; and whether
    each goes to the archive.

    Not those of topics that are not known yet, or that leave another way; nor where a hold or newer
    settings forbid it.
    """
    pages = PageReader(store, checkpoint.bundle)
    for part in checkpoint.partitions if parts is None else parts:
        topic = catalog.topics_by_id.get(part.topic_id)
        if part.parquet_start >= min(part.log_start, part.parquet_end) or topic is None or topic.removed:
            continue
        if not may_remove(checkpoint, topic):
            continue
        for file in await pages.files_from(part, part.parquet_start):
            if file.last_offset >= part.log_start:
                break
            yield topic, file, topic.settings.delete_action == "archive" and file.last_offset >= part.deleted_to


async def delete_expired_parquet(ledger: LedgerRef, catalog: Catalog, open_archive: OpenArchive | None = None) -> int:
    """Delete whole files below the log start that are old enough, write down from where Parquet now
    begins; how many were deleted.

    A partition of which a file cannot be archived, or the file list not be read, stays as it is,
    the others go on; then the first error is raised.
    """
    store, bundle = ledger.store, ledger.bundle
    checkpoint = await newest_checkpoint(store, bundle)
    expired = [part for part in checkpoint.partitions if part.parquet_start < min(part.log_start, part.parquet_end)]
    if not expired:
        return 0
    old_enough = await finished_long_ago(store, bundle, ledger.cluster.parquet_min_age_ms)
    await close_finished_fences(store, bundle)
    async with Archives(store, ledger.sources, open_archive) as archives:
        expiry = _Expiry(store, checkpoint, old_enough, catalog, archives)
        for part in expired:
            try:
                await expiry.delete_files(part)
            except (StoreError, ObjectMissing) as error:
                if not await _is_replaced(store, checkpoint, error):
                    expiry.failed = expiry.failed or error
    if expiry.starts:
        await advance_checkpoint(ledger, _parquet_start_move(expiry.starts))
    if expiry.young:
        await note_finished(ledger, expiry.young)
    if expiry.failed is not None:
        raise expiry.failed
    return expiry.deleted


class _Expiry:
    """Of one bundle. `starts`: where Parquet begins now, of partitions of which files are gone.

    `young`: a plan whose files must wait.
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

    async def delete_files(self, part: fmt.PartitionCheckpoint) -> None:
        """In ascending order, each archived before it goes where the topic wants that, and gone
        before the next.
        """
        key = PartitionId(part.topic_id, part.partition)
        async for topic, file, archives in expired_files(self._store, self._checkpoint, self._catalog, [part]):
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
            if not await self._may_remove(topic):
                break
            await self._store.delete([file.key])
            self.starts[key] = file.last_offset + 1
            self.deleted += 1

    async def _may_remove(self, topic: Topic) -> bool:
        """Looked at just before each deletion: a hold may have come since."""
        self._checkpoint = await newest_checkpoint(self._store, self._checkpoint.bundle, self._checkpoint)
        return may_remove(self._checkpoint, topic)


def _parquet_start_move(starts: dict[PartitionId, int]) -> Move:
    def move(draft: fmt.Checkpoint) -> bool:
        moved = False
        for part in draft.partitions:
            start = starts.get(PartitionId(part.topic_id, part.partition), 0)
            if start > part.log_start:
                raise AssertionError(
                    f"{part.topic_id}/{part.partition}: Parquet would begin at {start}, the log at {part.log_start}"
                )
            if start > part.parquet_start:
                part.parquet_start = start
                moved = True
        return moved

    return move


async def finished_long_ago(store: ObjectStore, bundle: int, age_ms: int) -> int:
    """The highest plan of which it is certain that it was committed at least `age_ms` ago, by the
    store's clock.

    Witnesses: the newest checkpoint, if it is that old; what it notes; and pages: page p was put
    after plan p−1 had been committed.
    """
    limit_ms = await store.store_time_ms() - age_ms
    checkpoint = await newest_checkpoint(store, bundle)
    witnessed = checkpoint.witnessed_plan if checkpoint.witnessed_ms <= limit_ms else 0
    try:
        if (await store.head(keys.checkpoint(bundle, checkpoint.number))).modified_ms <= limit_ms:
            return checkpoint.finished_plan
    except ObjectMissing:
        pass  # none yet, or a newer one exists
    async for number, info in list_numbered(store, keys.file_pages(bundle)):
        if info.modified_ms <= limit_ms:
            witnessed = max(witnessed, number - 1)
    return min(witnessed, checkpoint.finished_plan)


async def _let_cleaned_logs_age(ledger: LedgerRef, catalog: Catalog) -> None:
    """The files that cleaning will replace wait for their age as those that have expired do."""
    keyed = {topic.id for topic in catalog.living_topics() if topic.settings.keyed and ledger.bundle in topic.bundles}
    if not keyed:
        return
    parts = (await newest_checkpoint(ledger.store, ledger.bundle)).partitions
    waits_for = max(
        (part.newest_page for part in parts if part.topic_id in keyed and part.parquet_start < part.parquet_end),
        default=0,
    )
    if waits_for:
        await note_finished(ledger, waits_for)


async def delete_replaced(store: ObjectStore, bundle: int) -> None:
    """Checkpoints below the newest, and snapshots below the one that it names."""
    checkpoint = await newest_checkpoint(store, bundle)
    await delete_older_checkpoints(store, bundle, checkpoint.number)
    older = [
        info.key
        async for number, info in list_numbered(store, keys.snapshots(bundle))
        if number < checkpoint.snapshot_plan
    ]
    if older:
        await store.delete(older)
