"""Garbage collection: objects that nothing refers to any more (design D5; safety invariant 9).

First LIST everything, then read the plans, then the newest checkpoints and their pages: what a plan
was about to refer to at the LIST is referred to at the end. Then delete, by the rules for late
puts: only what belongs to a finished plan, after its fence is closed, and Parquet files only
`parquet_min_age` after the commit, in ascending order, each gone before the next.

    Parquet files   in no page above `parquet_start`, in no open plan: files that stand for a failed batch, once recorded
    pages           of finished plans, in no partition's chain
    snapshots       of finished plans, not in force
    fences          of finished plans

A file that is no LedgerMQ file, of another cluster, or of a plan that is not finished is never
touched; nor is anything of a bundle whose plans, checkpoint or pages cannot be read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from ledger import keys
from ledger.cluster import BUNDLES_AT_ONCE, ClusterSettings
from ledger.format import ledgermq_format_pb2 as fmt
from ledger.garbage.delete import close_finished_fences, finished_long_ago
from ledger.keys import PartitionId
from ledger.log.checkpoint import newest_checkpoint
from ledger.log.numbered import list_numbered
from ledger.log.plan_chain import read_plan
from ledger.object_store.contract import ObjectInfo, ObjectMissing, ObjectStore
from ledger.parquet.columns import FooterNote
from ledger.parquet.pages import PageReader
from ledger.parquet.stored_file import read_footer
from ledger.topics.facts import is_held
from ledgermq.errors import DataDamaged, LedgerMQError, Unavailable
from ledgermq.runtime.tasks import all_of

ATTEMPTS_MAX = 10


@dataclass(slots=True)
class Garbage:
    """`parquet`: files by (bundle, plan), keys ascending. `records`: pages and snapshots.
    `foreign`: files that are not ours to judge.

    `infos`: what the LIST said of each object, by its key. `failures`: bundles of which it cannot
    be told what is live; all of it counts as live.
    """

    parquet: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    records: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    infos: dict[str, ObjectInfo] = field(default_factory=dict)
    failures: dict[int, LedgerMQError] = field(default_factory=dict)


@dataclass(slots=True)
class Collected:
    """`keys`: what was deleted.

    `failures`: bundles of which not all could be told or deleted; the others are done.
    """

    keys: list[str] = field(default_factory=list)
    failures: dict[int, LedgerMQError] = field(default_factory=dict)


async def collect_garbage(store: ObjectStore, cluster: ClusterSettings, grace_ms: int = 0) -> Collected:
    """Delete what may be deleted now, and is older than the grace.

    Raises Unavailable, the store's errors where they concern no single bundle: then nothing more is
    deleted.
    """
    garbage = await find_garbage(store, cluster)
    done = Collected(failures=dict(garbage.failures))

    async def of_bundle(bundle: int) -> None:
        try:
            await close_finished_fences(store, bundle)
            await _delete_files(store, cluster, bundle, garbage, done.keys)
        except LedgerMQError as error:
            done.failures.setdefault(bundle, error)

    await all_of((of_bundle(bundle) for bundle in range(cluster.bundles)), BUNDLES_AT_ONCE)
    limit_ms = await store.store_time_ms() - grace_ms if grace_ms else None
    records = [key for key in garbage.records if limit_ms is None or garbage.infos[key].modified_ms <= limit_ms]
    if records:
        await store.delete(records)
    done.keys += records
    return done


async def _delete_files(
    store: ObjectStore, cluster: ClusterSettings, bundle: int, garbage: Garbage, deleted: list[str]
) -> None:
    found = [(plan, key) for (b, plan), keys_found in garbage.parquet.items() if b == bundle for key in keys_found]
    if not found:
        return
    old_enough = await finished_long_ago(store, bundle, cluster.parquet_min_age_ms)
    for key in sorted(key for plan, key in found if plan <= old_enough):
        await store.delete([key])
        deleted.append(key)


async def find_garbage(store: ObjectStore, cluster: ClusterSettings) -> Garbage:
    """What nothing refers to; deletes nothing. Raises as `collect_garbage` does."""
    for _ in range(ATTEMPTS_MAX):
        listed = await _Listed.take(store, range(cluster.bundles))
        try:
            return await _judge(store, cluster, listed)
        except ObjectMissing:
            continue  # a page or checkpoint was replaced meanwhile
    raise Unavailable("the root kept changing while garbage was listed; retry later")


@dataclass(slots=True)
class _Listed:
    parquet: list[str]
    pages: dict[int, list[int]]
    snapshots: dict[int, list[int]]
    plans: dict[int, list[int]]
    infos: dict[str, ObjectInfo] = field(default_factory=dict)

    @classmethod
    async def take(cls, store: ObjectStore, bundles: Sequence[int]) -> _Listed:
        """Parquet first: a file that shows was made by a plan that was there before."""
        listed = cls([], {}, {}, {})
        async for info in store.list(keys.PARQUET):
            listed.infos[info.key] = info
            listed.parquet.append(info.key)
        await all_of((listed._take_records(store, bundle) for bundle in bundles), BUNDLES_AT_ONCE)
        await all_of((listed._take_plans(store, bundle) for bundle in bundles), BUNDLES_AT_ONCE)
        return listed

    async def _take_records(self, store: ObjectStore, bundle: int) -> None:
        self.pages[bundle] = [number async for number in self._numbers(store, keys.file_pages(bundle))]
        self.snapshots[bundle] = [number async for number in self._numbers(store, keys.snapshots(bundle))]

    async def _take_plans(self, store: ObjectStore, bundle: int) -> None:
        self.plans[bundle] = [number async for number in self._numbers(store, keys.compactions(bundle))]

    async def _numbers(self, store: ObjectStore, prefix: str) -> AsyncIterator[int]:
        async for number, info in list_numbered(store, prefix):
            self.infos[info.key] = info
            yield number


async def _judge(store: ObjectStore, cluster: ClusterSettings, listed: _Listed) -> Garbage:
    garbage = Garbage(infos=listed.infos)
    in_use: list[_InUse] = []

    async def look(bundle: int) -> None:
        try:
            in_use.append(await _look(store, bundle, listed))
        except ObjectMissing:
            raise
        except LedgerMQError as error:
            garbage.failures[bundle] = error

    await all_of((look(bundle) for bundle in listed.pages), BUNDLES_AT_ONCE)
    checkpoints = {found.checkpoint.bundle: found.checkpoint for found in in_use}
    live = {key for found in in_use for key in found.files}
    for found in in_use:
        garbage.records += _unused(found.checkpoint, found.pages, listed)
    readable = {PartitionId(part.topic_id, part.partition) for found in in_use for part in found.checkpoint.partitions}
    for key in listed.parquet:
        name = keys.parse_parquet(key)
        if garbage.failures and name is not None and PartitionId(name.topic_id, name.partition) not in readable:
            continue  # perhaps live, of a bundle that cannot be read: to ask the footer of each of its files would take hours
        if key not in live:
            await _add(store, cluster, checkpoints, key, garbage)
    return garbage


@dataclass(slots=True)
class _InUse:
    """What a bundle's newest checkpoint and the plans after it refer to."""

    checkpoint: fmt.Checkpoint
    files: set[str] = field(default_factory=set)
    pages: set[int] = field(default_factory=set)


async def _look(store: ObjectStore, bundle: int, listed: _Listed) -> _InUse:
    """First the plans, then the checkpoint.

    Raises ObjectMissing where a page was replaced meanwhile, DataDamaged where it is lost.
    """
    plans = [await read_plan(store, bundle, number) for number in listed.plans[bundle]]
    checkpoint = await newest_checkpoint(store, bundle)
    found = _InUse(checkpoint)
    reader = PageReader(store, bundle)
    try:
        for part in checkpoint.partitions:
            if part.newest_page:
                found.pages.update(await reader.chain(part))
                found.files.update(file.key for file in await reader.files_from(part, 0))
    except ObjectMissing as error:
        if (await newest_checkpoint(store, bundle, checkpoint)).number != checkpoint.number:
            raise
        raise DataDamaged(
            f"{error.object_key}: it is missing, the newest checkpoint needs it", object_key=error.object_key
        ) from error
    found.files.update(
        file.key for plan in plans if plan is not None and plan.number > checkpoint.finished_plan for file in plan.files
    )
    return found


def _unused(checkpoint: fmt.Checkpoint, pages_used: set[int], listed: _Listed) -> list[str]:
    bundle, finished = checkpoint.bundle, checkpoint.finished_plan
    pages = [keys.file_page(bundle, n) for n in listed.pages[bundle] if n <= finished and n not in pages_used]
    snapshots = [
        keys.snapshot(bundle, n) for n in listed.snapshots[bundle] if n <= finished and n != checkpoint.snapshot_plan
    ]
    return pages + snapshots


async def _add(
    store: ObjectStore, cluster: ClusterSettings, checkpoints: dict[int, fmt.Checkpoint], key: str, garbage: Garbage
) -> None:
    """Whose is a file that nothing refers to? Its own footer says; where that cannot be read,
    nobody may delete it.
    """
    name = keys.parse_parquet(key)
    try:
        note = FooterNote.decode((await read_footer(store, key)).metadata) if name is not None else None
    except DataDamaged:
        note = None
    except ObjectMissing:
        return  # deleted meanwhile
    if (
        name is None
        or note is None
        or (note.cluster, note.topic_id, note.plan) != (cluster.cluster_id, name.topic_id, name.plan)
    ):
        garbage.foreign.append(key)
    elif (
        note.bundle in checkpoints
        and note.plan <= checkpoints[note.bundle].finished_plan
        and not is_held(checkpoints[note.bundle], note.topic_id)
    ):
        garbage.parquet.setdefault((note.bundle, note.plan), []).append(key)


def keys_of(garbage: Garbage) -> Sequence[str]:
    """Everything found, for a report."""
    return sorted([*garbage.records, *(key for found in garbage.parquet.values() for key in found)])
