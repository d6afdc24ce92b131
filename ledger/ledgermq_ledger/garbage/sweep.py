"""Run the rules of this package. The module of each kind decides what may be removed.

sweep            over a whole root: `ledgermq gc`, and the compaction service once an hour
tidy_bundle      what a round leaves behind, without a look at the rest of the root
collect_garbage  what nothing in the root refers to

Each of them may be interrupted anywhere, and may run beside brokers, compactors and others of its
kind: an object that one has removed is an error for no other. One failure stops no other removal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar, TypeVarTuple

from ledgermq.errors import LedgerMQError
from ledgermq.runtime.tasks import all_of
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import BUNDLES_AT_ONCE, ClusterSettings
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.names import check_names
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.garbage import cuts, heartbeats, staged_rows
from ledgermq_ledger.garbage.found import Found, Kind, Removable, Waiting
from ledgermq_ledger.garbage.ledgers import checkpoints, fences, pages, plans, segments, snapshots
from ledgermq_ledger.garbage.listing import Listing, RootListing
from ledgermq_ledger.garbage.topics import (
    cleaned_files,
    commit_age,
    expired_files,
    merged_files,
    removed,
    retention,
    unreferenced_files,
    versions,
)
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.chains.plans import PlansByFence, open_fences
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import FENCES, ObjectInfo, ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.archiving.archive import OpenArchive
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.merging.names import parse_merged
from ledgermq_ledger.topics.catalog import Catalog, grown, reread_bundles
from ledgermq_ledger.topics.facts import may_remove
from ledgermq_ledger.topics.topic import Topic

Args = TypeVarTuple("Args")
Where = TypeVar("Where", int, str)


async def _tried(
    failures: dict[Where, LedgerMQError], where: Where, work: Callable[[*Args], Awaitable[object]], *args: *Args
) -> None:
    """Run `work`. Keep its error in `failures`, unless an earlier one of this place is there."""
    try:
        await work(*args)
    except LedgerMQError as error:
        failures.setdefault(where, error)


# After a round


async def tidy_bundle(ledger: LedgerRef, catalog: Catalog) -> None:
    """Remove what may go in a bundle now. Raises the first error, when all else is done."""
    store, bundle = ledger.store, ledger.bundle
    failures: dict[int, LedgerMQError] = {}

    async def expire() -> None:
        await _tried(failures, bundle, retention.apply, ledger, catalog)
        await _tried(failures, bundle, expired_files.remove_expired, ledger, catalog)
        await _tried(failures, bundle, merged_files.remove_behind, ledger, catalog)

    await all_of(
        (
            _tried(failures, bundle, tidy_segments, store, bundle),
            _tried(failures, bundle, fences.close_finished, store, bundle),
            expire(),
        )
    )
    await _tried(failures, bundle, cleaned_files.let_cleaned_age, ledger, catalog)
    await _tried(failures, bundle, tidy_checkpoints, store, bundle)
    if failures:
        raise failures[bundle]


async def tidy_snapshots(store: ObjectStore, bundle: int) -> None:
    """Remove what a round of internal topics leaves: it trims nothing, so plans need not be read."""
    await fences.close_finished(store, bundle)
    await tidy_checkpoints(store, bundle)


async def tidy_segments(store: ObjectStore, bundle: int) -> int:
    """Remove segments, then the plans without remaining segments; return how many segments were
    deleted.
    """
    listing = await Listing.of_finished_plans(store, bundle)
    found = segments.find(listing)
    await segments.remove(store, bundle, found)
    await plans.remove(store, plans.find(listing), listing.gate)
    return len(found)


async def tidy_checkpoints(store: ObjectStore, bundle: int) -> None:
    listing = await Listing.of_checkpoints(store, bundle)
    await checkpoints.remove(store, checkpoints.find(listing), listing.gate)
    await snapshots.remove(store, snapshots.find(listing), listing.gate)


async def tidy_keyed(ledger: LedgerRef, topic: Topic, partition: int) -> list[str]:
    """Remove what cleaning has replaced in a partition that is keyed, or was; return the keys."""
    place = PartitionId(topic.id, partition)
    if not may_remove(await newest_checkpoint(ledger.store, ledger.bundle), topic, partition):
        return []
    deleted = await versions.remove(ledger, topic, partition, await versions.find(ledger, place))
    if topic.settings.keyed:
        deleted += await cleaned_files.remove_cleaned(ledger, topic, place)
    return deleted


# What nothing refers to


@dataclass(slots=True)
class Garbage:
    """Garbage by bundle: Parquet files, and objects of the rounds: pages and snapshots.

    `failures`: bundles whose references are unknown; all of theirs stays.
    """

    files: dict[int, list[Removable]] = field(default_factory=dict)
    records: dict[int, list[Removable]] = field(default_factory=dict)
    in_folders: list[ObjectInfo] = field(default_factory=list)
    """Merged files below `parquet/`, garbage or not: the catalog is needed to judge them."""
    failures: dict[int, LedgerMQError] = field(default_factory=dict)


@dataclass(slots=True)
class Collected:
    """`keys`: deleted objects. `failures`: bundles whose garbage could not all be found or deleted."""

    keys: list[str] = field(default_factory=list)
    failures: dict[int, LedgerMQError] = field(default_factory=dict)


async def find_garbage(store: ObjectStore, cluster: ClusterSettings, listing: RootListing | None = None) -> Garbage:
    """Find garbage without deleting it. Raises the store's errors that concern no single bundle."""
    listing = listing or await RootListing.take(store, cluster.bundles)
    if listing.parquet_failure is not None:
        raise listing.parquet_failure
    files = await unreferenced_files.find_unreferenced(store, cluster, listing)
    records = {bundle: [*pages.find(found), *snapshots.find(found)] for bundle, found in listing.bundles.items()}
    in_folders = [info for key, info in listing.parquet.items() if parse_merged(key) is not None]
    return Garbage(files, records, in_folders, dict(listing.failures))


async def remove_garbage(store: ObjectStore, cluster: ClusterSettings, garbage: Garbage) -> Collected:
    done = Collected(failures=dict(garbage.failures))

    async def of_bundle(bundle: int) -> None:
        await fences.close_finished(store, bundle)
        done.keys += await unreferenced_files.remove_unreferenced(store, cluster, bundle, garbage.files.get(bundle, []))
        records = garbage.records.get(bundle, [])
        await pages.remove(store, [each for each in records if each.kind is Kind.PAGE])
        await snapshots.remove(store, [each for each in records if each.kind is Kind.SNAPSHOT])
        done.keys += [each.key for each in records]

    await all_of(
        (_tried(done.failures, bundle, of_bundle, bundle) for bundle in range(cluster.bundles)), BUNDLES_AT_ONCE
    )
    return done


async def collect_garbage(store: ObjectStore, cluster: ClusterSettings, catalog: Catalog | None = None) -> Collected:
    """Delete what may be deleted now; with a catalog, which was read just now, merged files as well. Raises what
    `read_catalog` and `find_garbage` raise.
    """
    cluster = await reread_bundles(store, cluster)
    garbage = await find_garbage(store, cluster)
    done = await remove_garbage(store, cluster, garbage)
    if catalog is not None:
        merged = await merged_files.find(store, catalog, garbage.in_folders)
        done.keys += await merged_files.remove(store, catalog, merged)
    return done


# A whole root


def name_of(bundle: int) -> str:
    """Return the name of a bundle, for a failure that concerns it."""
    return f"bundle {bundle}"


async def find_removable(store: ObjectStore, cluster: ClusterSettings, catalog: Catalog, grace_ms: int) -> Found:
    """Return what `sweep` removes, by kind; changes nothing. In a root that changes meanwhile, the answer is right,
    though not complete.

    `grace_ms`: younger objects stay, by the store's clock. Parquet files stay `parquet_min_age_ms` in any case.

    If a bundle or a kind cannot be searched, the rest is: `Found.failures`. Raises the store's
    errors.
    """
    search = _Search(store, grown(cluster, catalog), catalog, grace_ms, await store.store_time_ms())
    await search.run()
    return search.found


class _Search:
    def __init__(
        self, store: ObjectStore, cluster: ClusterSettings, catalog: Catalog, grace_ms: int, now_ms: int
    ) -> None:
        self.found = Found()
        self.garbage = Garbage()
        """Garbage that may be removed now, and is not within its grace."""
        self._store = store
        self._cluster = cluster
        self._catalog = catalog
        self._grace_ms = grace_ms
        self._now_ms = now_ms

    async def run(self) -> None:
        await self._tried("garbage", self._ledgers)
        self.found.removable.sort(key=lambda each: each.key)
        await self._tried("fences", self._fences)
        await self._tried("heartbeats", self._heartbeats)
        await self._tried("removed topics", self._removed_topics)
        await self._tried("merged files", self._merged)
        await self._tried("staged rows", self._staged_rows)
        await self._tried("cuts", self._cuts)
        await self._tried("names", self._foreign)

    async def _tried(self, where: str, search: Callable[[], Awaitable[None]]) -> None:
        await _tried(self.found.failures, where, search)

    def _add(self, candidates: list[Removable]) -> set[str]:
        """Add candidates, and return the keys of those that wait."""
        return self.found.add(candidates, self._now_ms, self._grace_ms)

    async def _ledgers(self) -> None:
        listing = await RootListing.take(self._store, self._cluster.bundles)
        for bundle, error in listing.failures.items():
            self.found.failures.setdefault(name_of(bundle), error)
        for found in listing.bundles.values():
            self._add(plans.find(found, self._add(segments.find(found))))
            self._add(checkpoints.find(found))
            self.found.fences_kept += segments.fences_kept(found)
        await all_of(
            (self._tried(name_of(n), partial(self._expired, found)) for n, found in listing.bundles.items()),
            BUNDLES_AT_ONCE,
        )
        garbage = await find_garbage(self._store, self._cluster, listing)
        self.garbage.in_folders = garbage.in_folders
        for of_kind, kept in ((garbage.files, self.garbage.files), (garbage.records, self.garbage.records)):
            for bundle, candidates in of_kind.items():
                waiting = self._add(candidates)
                kept[bundle] = [each for each in candidates if each.key not in waiting]

    async def _expired(self, listing: Listing) -> None:
        try:
            await self._add_expired(listing.checkpoint)
        except ObjectMissing:  # another process deletes the same files; the next run finds what is left
            newest = await newest_checkpoint(self._store, listing.bundle, listing.checkpoint)
            if newest.number == listing.checkpoint.number:
                raise

    async def _add_expired(self, checkpoint: fmt.Checkpoint) -> None:
        if not any(part.parquet_start < min(part.log_start, part.parquet_end) for part in checkpoint.partitions):
            return
        age_ms = max(self._cluster.parquet_min_age_ms, self._grace_ms)
        old_enough = await commit_age.finished_long_ago(self._store, checkpoint.bundle, age_ms)
        async for topic, file, archives in expired_files.find_expired(self._store, checkpoint, self._catalog):
            try:
                info = await self._store.head(file.key)
            except ObjectMissing:
                continue
            why = f"below the log start of {topic.name}" + (", goes to the archive" if archives else "")
            if file.plan > old_enough:
                free_ms = max(self._now_ms, info.modified_ms + age_ms)
                self.found.waiting.append(Waiting(Kind.PARQUET, info.key, info.size, free_ms))
            elif not self._add([Removable.of(Kind.PARQUET, info, why)]):
                self.found.archived += archives

    async def _fences(self) -> None:
        open_ = await open_fences(self._store)
        for bundle in range(self._cluster.bundles):
            await self._tried(name_of(bundle), partial(self._finished_fences, bundle, open_.get(bundle, {})))

    async def _finished_fences(self, bundle: int, open_: PlansByFence) -> None:
        self._add(await fences.find(self._store, bundle, open_))

    async def _heartbeats(self) -> None:
        self._add(await heartbeats.find(self._store, self._now_ms))

    async def _removed_topics(self) -> None:
        self._add(await removed.find_versions(self._store, self._catalog))
        self._add(await removed.find(self._store, self._catalog))

    async def _merged(self) -> None:
        self._add(await merged_files.find(self._store, self._catalog, self.garbage.in_folders))

    async def _staged_rows(self) -> None:
        self._add(await staged_rows.find(self._store))

    async def _cuts(self) -> None:
        self._add(await cuts.find(self._store, self._cluster))

    async def _foreign(self) -> None:
        problems = Problems()
        await check_names(self._store, self._cluster.bundles, problems)
        self.found.foreign += sorted({problem.object_key for problem in problems.all})


@dataclass(slots=True)
class Swept:
    """`removed`: objects found and now gone; another process may have removed them.

    `failures`: what could not be done, by where.
    """

    found: Found
    removed: list[Removable] = field(default_factory=list)
    failures: dict[str, LedgerMQError] = field(default_factory=dict)


async def sweep(compaction: Compaction, *, grace_ms: int, open_archive: OpenArchive | None = None) -> Swept:
    """Remove what may be removed now; open plans that removed topics wait for are finished.

    A failure stops nothing else: `Swept.failures`. Raises what `read_catalog` and `find_removable`
    raise.
    """
    store, catalog = compaction.store, await compaction.catalog()
    cluster = grown(compaction.cluster, catalog)
    search = _Search(store, cluster, catalog, grace_ms, await store.store_time_ms())
    await search.run()
    found = search.found
    swept = Swept(found, failures=dict(found.failures))
    aged = replace(cluster, parquet_min_age_ms=max(cluster.parquet_min_age_ms, grace_ms))
    aging = replace(compaction, cluster=aged)

    async def tidy(bundle: int) -> None:
        await cuts.unpin(aging.ledger(bundle), catalog)
        await fences.close_finished(store, bundle)
        await segments.remove(store, bundle, found.of(Kind.SEGMENT, keys.segments(bundle)))
        await plans.remove(store, found.of(Kind.PLAN, keys.compactions(bundle)))
        await checkpoints.remove(store, found.of(Kind.CHECKPOINT, keys.checkpoints(bundle)))
        await expired_files.remove_expired(aging.ledger(bundle), catalog, open_archive)
        await merged_files.remove_behind(aging.ledger(bundle), catalog)

    # in turn: brokers put segments meanwhile, and an archive takes whole files through memory
    for bundle in range(cluster.bundles):
        await _tried(swept.failures, name_of(bundle), tidy, bundle)
    removals = await removed.remove(aging, catalog)
    versions_left = (store, found.of(Kind.KEYED), catalog, cluster.bundles)
    await _tried(swept.failures, "keyed topics", removed.remove_versions, *versions_left)
    collected = await remove_garbage(store, aged, search.garbage)
    for bundle, error in (*removals.failures.items(), *collected.failures.items()):
        swept.failures.setdefault(name_of(bundle), error)
    await _tried(swept.failures, "merged files", merged_files.remove, store, catalog, found.of(Kind.MERGED))
    await _tried(swept.failures, "staged rows", staged_rows.remove, store, found.of(Kind.STAGED))
    await _tried(swept.failures, "cuts", cuts.remove, store, [*found.of(Kind.HELD), *found.of(Kind.CUT)])
    await _tried(swept.failures, "heartbeats", heartbeats.remove, store, found.of(Kind.HEARTBEAT))
    swept.removed = await _gone(store, found)
    return swept


async def _gone(store: ObjectStore, found: Found) -> list[Removable]:
    there = {info.key async for info in store.list("")} | {f"{FENCES}{name}" for name in await store.list_fences()}
    return [each for each in found.removable if each.key not in there]
