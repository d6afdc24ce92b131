"""Parquet files of the log: a file may go when no read of the log needs it.

expired         below the log start (design D2), ascending, each gone before the next; archived first where the topic
                wants it
cleaned         of a keyed topic: it ends below the end of a version that is `parquet_min_age_ms` old
                (docs/decisions/0022). First a checkpoint moves `parquet_start` above it, then all below that go,
                ascending
unreferenced    in no page above `parquet_start`, in no open plan (design D5): it stands for a batch that was recorded
                as failed, or a process died during one of the two above. Of a partition that has moved: not in the list
                of the one bundle that is in charge of it, which is read later than the file's plan is finished
                (design D10); while the partition is between two bundles, all its files stay

In all cases: only files of finished plans, whose fences are closed first, and only `parquet_min_age_ms`
after the commit, because a put that was signed before may come late (design Q1). Nothing of a topic
under legal hold, and nothing by settings that were replaced, as the newest checkpoint says just
before. A file that is no LedgerMQ file, of another cluster, or of a bundle that cannot be read is
never touched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

from ledgermq.errors import DataDamaged, FormatNotSupported, LedgerMQError, StoreError
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage import commit_age, fences, versions
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.listing import RootListing
from ledgermq_ledger.garbage.retention import is_replaced
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.checkpoint import Move, checkpoint_in_charge, is_in_charge, newest_checkpoint, partition_of
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.moves import key_of
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.archive import Archives, OpenArchive
from ledgermq_ledger.parquet.columns import FooterNote
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.parquet.stored_file import read_footer
from ledgermq_ledger.topics.catalog import Catalog, Topic
from ledgermq_ledger.topics.facts import has_table, is_held, may_remove


async def find_expired(
    store: ObjectStore,
    checkpoint: fmt.Checkpoint,
    catalog: Catalog,
    parts: Iterable[fmt.PartitionCheckpoint] | None = None,
) -> AsyncIterator[tuple[Topic, fmt.ParquetFile, bool]]:
    """Yield files wholly below the log start, ascending by partition, whatever their age; and
    whether each is archived.

    Files of unknown topics, of topics that another rule removes, and of topics with a hold or newer
    settings are left out, and so are those that the gate keeps.
    """
    pages, gate = PageReader(store, checkpoint.bundle), Gate(catalog, checkpoint)
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

    async def delete_files(self, part: fmt.PartitionCheckpoint) -> None:
        """Delete files in ascending order, each archived first if the topic wants that, and deleted
        before the next.
        """
        key = PartitionId(part.topic_id, part.partition)
        async for topic, file, archives in find_expired(self._store, self._checkpoint, self._catalog, [part]):
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
            if not await Gate(self._catalog, self._checkpoint).delete(self._store, [file.key]):
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


async def let_cleaned_age(ledger: LedgerRef, catalog: Catalog) -> None:
    """Let the files that cleaning will replace wait for their age, as expired ones do."""
    keyed = {topic.id for topic in catalog.living_topics() if topic.settings.keyed and ledger.bundle in topic.bundles}
    if not keyed:
        return
    parts = (await newest_checkpoint(ledger.store, ledger.bundle)).partitions
    waits_for = max(
        (part.newest_page for part in parts if part.topic_id in keyed and part.parquet_start < part.parquet_end),
        default=0,
    )
    if waits_for:
        await commit_age.note_finished(ledger, waits_for)


async def remove_cleaned(ledger: LedgerRef, topic: Topic, place: PartitionId) -> list[str]:
    """Remove whole files of the log below the end of what has been in a version for
    `parquet_min_age_ms`.
    """
    store, bundle = ledger.store, ledger.bundle
    end = await versions.aged_end(store, ledger.cluster, place)
    checkpoint = await newest_checkpoint(store, bundle)
    counters, gate = partition_of(checkpoint, *place), Gate(checkpoint=checkpoint)
    if end <= counters.parquet_start:
        return []
    old_enough = await commit_age.finished_long_ago(store, bundle, ledger.cluster.parquet_min_age_ms)
    files = [
        file
        for file in await PageReader(store, bundle).files_from(counters, counters.parquet_start)
        if file.last_offset < end and file.plan <= old_enough and not gate.why_kept(file.key)
    ]
    if not files:
        return []
    await fences.close_finished(store, bundle)
    move = cleaned_move(topic, place.partition, files[-1].last_offset + 1)
    await advance_checkpoint(ledger, move)
    checkpoint = await newest_checkpoint(store, bundle)
    after = partition_of(checkpoint, place.topic_id, place.partition)
    # it declined, or what was won is not the newest: its number was free again
    if after.parquet_start <= files[-1].last_offset:
        return []
    # Not only these: the process that moved the start before may still be deleting, and a higher file must not go
    # before a lower one.
    return await _delete_below(store, Gate(checkpoint=checkpoint), topic, place, after.parquet_start)


async def _delete_below(store: ObjectStore, gate: Gate, topic: Topic, place: PartitionId, start: int) -> list[str]:
    """Delete every file of the log that ends below `start`, in ascending order, each before the next. The process
    that moved the start has seen in the list that they are old enough. The numbers in their names do not say so: if
    the partition has moved, they are of another bundle's plans (design Y16).
    """
    listed = [keys.parse_parquet(info.key) async for info in store.list(topic.parquet_folder_of(place.partition))]
    deleted = []
    for name in listed:
        if name is None or name.topic_id != place.topic_id or name.last_offset >= start:
            continue
        if not await gate.delete(store, [name.key]):
            break
        deleted.append(name.key)
    return deleted


def cleaned_move(topic: Topic, partition: int, start: int) -> Move:
    """Return the move that lets the log begin at `start`, because a version holds the records
    below. It declines for a topic that is removed, held or was altered, or whose table may name a file below.
    """

    def move(draft: fmt.Checkpoint) -> bool:
        if any(note.topic_id == topic.id for note in draft.removed_topics) or not may_remove(draft, topic, partition):
            return False
        for part in draft.partitions:
            if (part.topic_id, part.partition) == (topic.id, partition) and part.parquet_start < start:
                if has_table(draft, topic.id) and start > part.table_start:
                    return False
                if start > part.parquet_end:
                    raise AssertionError(
                        f"{topic.name}/{partition}: the log would begin at {start}, but Parquet ends at"
                        f" {part.parquet_end}"
                    )
                part.parquet_start = start
                return True
        return False

    return move


async def find_unreferenced(
    store: ObjectStore, cluster: ClusterSettings, listing: RootListing
) -> dict[int, list[Removable]]:
    """Return unreferenced files by bundle, ascending. Reads the footers of files that no readable
    bundle refers to.
    """
    bundles = {number: bundle for number, bundle in listing.bundles.items() if number not in listing.failures}
    lists = _Lists(store)
    live = {key for bundle in bundles.values() for key in bundle.files}
    readable = {(part.topic_id, part.partition) for bundle in bundles.values() for part in bundle.checkpoint.partitions}
    removable: dict[int, list[Removable]] = {}
    for key, info in sorted(listing.parquet.items()):
        name = keys.parse_parquet(key)
        if name is None or key in live:
            continue
        if listing.failures and (name.topic_id, name.partition) not in readable:
            continue  # perhaps live, of a bundle that cannot be read: to read all their footers would take hours
        note = await _note_of(store, cluster, key)
        if note is None or (bundle := bundles.get(note.bundle)) is None:
            continue
        if note.plan > bundle.checkpoint.finished_plan or is_held(bundle.checkpoint, note.topic_id):
            continue
        gate = await lists.gate_of(key, bundle.checkpoint)
        if gate is not None and not gate.why_kept(key):
            why = f"nothing has referred to it since plan {note.plan}"
            found = Removable.of(Kind.PARQUET, info, why, cluster.parquet_min_age_ms)
            removable.setdefault(note.bundle, []).append(found)
    return removable


def _place(name: keys.ParquetName) -> PartitionId:
    return PartitionId(name.topic_id, name.partition)


class _List(NamedTuple):
    checkpoint: fmt.Checkpoint  # of the bundle in charge
    files: frozenset[str]


class _Lists:
    """The lists of partitions that have left the bundles that made their files. Each is read once, when it is first
    asked for.

    A list says something of a file only if it is read when the file's plan is finished: from then on the file is
    in the list of the bundle in charge, or in no list ever, because a list comes from no other one than that.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[tuple[int, PartitionId], _List | None] = {}

    async def gate_of(self, key: str, checkpoint: fmt.Checkpoint) -> Gate | None:
        """Return the gate of a file that nothing in its bundle refers to, which a finished plan of this bundle made;
        None if another list names it, or may. `checkpoint`: of that bundle. Raises the store's errors.
        """
        name = keys.parse_parquet(key)
        assert name is not None, key
        if not is_in_charge(checkpoint, *_place(name)):
            listed = await self._list_of(key, checkpoint.bundle)
            if listed is None or key in listed.files:
                return None
            checkpoint = listed.checkpoint
        return Gate(checkpoint=checkpoint, was_listed=False)

    async def is_lowest(self, key: str, bundle: int) -> bool:
        """Return whether each lower file of the partition is in the list of the bundle in charge. Otherwise another
        bundle's file has to go first, so that a plain reader finds no gap (design D10). Raises the store's errors.
        """
        name, listed = keys.parse_parquet(key), await self._list_of(key, bundle)
        if name is None or listed is None:
            return False
        async for info in self._store.list(key[: key.rindex("/") + 1]):
            if info.key >= key:
                return True
            lower = keys.parse_parquet(info.key)
            if lower is not None and lower.topic_id == name.topic_id and info.key not in listed.files:
                return False
        return True

    async def _list_of(self, key: str, bundle: int) -> _List | None:
        name = keys.parse_parquet(key)
        assert name is not None, key
        at = bundle, _place(name)
        if at not in self._known:
            self._known[at] = await self._listed(*at)
        return self._known[at]

    async def _listed(self, bundle: int, place: PartitionId) -> _List | None:
        """Return the list of a partition; None if they stay: it is between two bundles, or under legal hold, or its
        list cannot be read.
        """
        try:
            checkpoint = await checkpoint_in_charge(self._store, bundle, place)
            if checkpoint is None or is_held(checkpoint, place.topic_id):
                return None
            counters = partition_of(checkpoint, *place)
            files = await PageReader(self._store, checkpoint.bundle).files_from(counters, 0)
        except (DataDamaged, FormatNotSupported, ObjectMissing):  # the last one: it is another list by now
            return None
        return _List(checkpoint, frozenset(file.key for file in files))


async def _note_of(store: ObjectStore, cluster: ClusterSettings, key: str) -> FooterNote | None:
    """Return the note of a file of this cluster, which names its bundle; None if it cannot be read
    or contradicts the name.
    """
    name = keys.parse_parquet(key)
    try:
        note = FooterNote.decode((await read_footer(store, key)).metadata)
    except (DataDamaged, ObjectMissing):
        return None
    if name is None or note is None:
        return None
    said, named = (note.cluster, note.topic_id, note.plan), (cluster.cluster_id, name.topic_id, name.plan)
    return note if said == named else None


async def remove_unreferenced(
    store: ObjectStore, cluster: ClusterSettings, bundle: int, files: Sequence[Removable]
) -> list[str]:
    """Remove those of the bundle's files that are old enough, ascending, and return the keys. Of a partition that has
    moved, one waits for another pass while a lower one is left, which may be another bundle's.
    """
    if not files:
        return []
    await fences.close_finished(store, bundle)
    old_enough = await commit_age.finished_long_ago(store, bundle, cluster.parquet_min_age_ms)
    checkpoint = await newest_checkpoint(store, bundle)  # a hold may have come since they were found
    lists, state = _Lists(store), checkpoint.state
    moved = {*map(key_of, state.seals), *map(key_of, state.opens)}
    deleted = []
    for key in sorted(each.key for each in files):
        name = keys.parse_parquet(key)
        if name is None or name.plan > old_enough or is_held(checkpoint, name.topic_id):
            continue
        gate = await lists.gate_of(key, checkpoint)
        if gate is None or (_place(name) in moved and not await lists.is_lowest(key, bundle)):
            continue
        deleted += await gate.delete(store, [key])
    return deleted
