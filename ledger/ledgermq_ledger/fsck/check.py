"""`check_root`: prove that a root is clean, or list exactly what is wrong with it. Reads only.

It may run while brokers do: a result counts only if no checkpoint has changed meanwhile; otherwise
the check runs again, a few times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.runtime.tasks import all_of
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cluster import BUNDLES_AT_ONCE, FORMAT_VERSION, ClusterSettings
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.catalog_check import check_catalog, check_partitions, removed_ids
from ledgermq_ledger.fsck.cluster_fit import contradictions
from ledgermq_ledger.fsck.copy_check import check_copies
from ledgermq_ledger.fsck.cuts_check import check_cuts
from ledgermq_ledger.fsck.files.keyed_check import KeyedCheck
from ledgermq_ledger.fsck.files.merged_check import MergedCheck
from ledgermq_ledger.fsck.files.parquet_check import ParquetCheck
from ledgermq_ledger.fsck.files.parquet_rows import check_footer, find_wrong_rows
from ledgermq_ledger.fsck.ledgers.ledger_check import LedgerView, check_ledger
from ledgermq_ledger.fsck.ledgers.move_check import check_moves, files_taken_over
from ledgermq_ledger.fsck.ledgers.offset_check import check_offsets, check_put_ids, check_sequences
from ledgermq_ledger.fsck.ledgers.round_check import check_rounds
from ledgermq_ledger.fsck.names import check_names
from ledgermq_ledger.fsck.problem import Problem, Problems, Severity
from ledgermq_ledger.fsck.sinks_check import check_sinks
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.archiving.owner import decode_mark
from ledgermq_ledger.parquet.files.stored_file import list_files, read_footer
from ledgermq_ledger.root.copies import CopyingStore
from ledgermq_ledger.tables.check import find_faults
from ledgermq_ledger.topics.catalog import Catalog, reread_bundles

ATTEMPTS_MAX = 3

OnBundle = Callable[[int, int], None]
"""(bundles done, bundles in all)"""


@dataclass(slots=True)
class Checked:
    """What was checked, and what is wrong, the worst first."""

    objects: int = 0
    segments: int = 0
    records: int = 0
    parquet_files: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def worst(self) -> Severity | None:
        return max((problem.severity for problem in self.problems), default=None)

    def add(self, problems: Problems, unread: Problems) -> None:
        """Add what another check has found. `unread`: what that could not read, which is left out where damage in
        the same ledger is known.
        """
        new = [*problems.all, *(problem for problem in unread.all if not self._explains(problem))]
        self.problems = sorted({*self.problems, *new}, key=lambda problem: (-problem.severity, problem))

    def _explains(self, problem: Problem) -> bool:
        ledger = "/".join(problem.object_key.split("/")[:2])
        return any(known.severity is Severity.DAMAGE and known.object_key.startswith(ledger) for known in self.problems)


async def check_root(
    store: ObjectStore,
    cluster: ClusterSettings,
    *,
    quick: bool = False,
    on_bundle: OnBundle = lambda done, total: None,
    run_blocking: RunBlocking = asyncio.to_thread,
    now_ms: int | None = None,
) -> Checked:
    """Check a root. `quick`: check indexes and footers only, no batch and no row.

    `now_ms`: objects that garbage collection will remove are a note for a while; without it they
    are overdue at once.

    If the root contradicts its `cluster.json`, nothing else is judged: with wrong settings,
    undamaged objects would be reported as damaged.

    Raises the store's errors that are not damage.
    """
    plain = store.inner if isinstance(store, CopyingStore) else store
    store = CopyingStore(plain, logs=False)
    contradicted = Problems()
    for text in await contradictions(store, cluster):
        contradicted.damage(
            keys.CLUSTER, "CONTRADICTED", f"{text}; nothing else was checked: put the right {keys.CLUSTER} back first"
        )
    if contradicted.all:
        return Checked(problems=contradicted.all)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        cluster = await _with_all_bundles(store, cluster)
        before = await _numbers(store, cluster)
        try:
            problems = Problems(now_ms, cluster.parquet_min_age_ms)
            checked = await _check_once(store, cluster, quick, on_bundle, run_blocking, problems)
            await check_copies(plain, problems)
        except ObjectMissing:
            if attempt == ATTEMPTS_MAX:
                raise
            continue
        is_quiet = before == await _numbers(store, await _with_all_bundles(store, cluster))
        if not is_quiet and attempt == ATTEMPTS_MAX:
            problems.note(
                keys.CLUSTER,
                "NOT_QUIET",
                "brokers put checkpoints during the check, so findings may mix two moments; check again",
            )
        if is_quiet or attempt == ATTEMPTS_MAX or problems.worst in (None, Severity.NOTE):
            checked.problems = problems.all
            return checked
    raise AssertionError("the last attempt returns")


async def _with_all_bundles(store: ObjectStore, cluster: ClusterSettings) -> ClusterSettings:
    """Return the cluster with the bundles that it has now. If the catalog cannot be read, which is another
    finding, those that have a ledger count.
    """
    try:
        return await reread_bundles(store, cluster)
    except (DataDamaged, FormatNotSupported, ObjectMissing):
        if cluster.format_version == FORMAT_VERSION:
            return cluster
        listed = [keys.parse_ledger(info.key) async for info in store.list(keys.LEDGERS)]
        last = max((bundle for bundle in listed if bundle is not None), default=0)
        return replace(cluster, bundles=max(cluster.bundles, last + 1))


async def _numbers(store: ObjectStore, cluster: ClusterSettings) -> list[int | None]:
    async def number(bundle: int) -> int | None:
        try:
            return (await newest_checkpoint(store, bundle)).number
        except (DataDamaged, FormatNotSupported):
            return None

    return await all_of((number(bundle) for bundle in range(cluster.bundles)), BUNDLES_AT_ONCE)


async def _check_once(
    store: CopyingStore,
    cluster: ClusterSettings,
    quick: bool,
    on_bundle: OnBundle,
    run_blocking: RunBlocking,
    problems: Problems,
) -> Checked:
    if not cluster.has_checksum:
        problems.note(
            keys.CLUSTER, "NO_CHECKSUM", "an early version wrote it without a checksum: keep a copy of it elsewhere"
        )
    await check_cuts(store, cluster, problems)
    checked = Checked(objects=await check_names(store.inner, cluster.bundles, problems))
    parquet = [info async for info in list_files(store)]
    keyed = [info async for info in store.list(keys.KEYED)]
    merged = [*parquet, *[info async for info in store.list(keys.MERGED)]]
    views = []
    for bundle in range(cluster.bundles):
        view = await check_ledger(store, bundle, problems, quick=quick)
        if view is not None:
            views.append(view)
            checked.segments += len(view.present)
        on_bundle(bundle + 1, cluster.bundles)
    catalog = await check_catalog(store, cluster, problems)
    live: dict[str, fmt.ParquetFile | None] = {}
    taken_over = files_taken_over([view.checkpoint for view in views])
    for view in views:
        counted = await check_rounds(store, view, problems)
        live |= {key: file for key, file in counted.items() if (view.bundle, _place(key)) not in taken_over}
        if view.whole:
            check_put_ids(view, problems)
            check_offsets(view, removed_ids(catalog, view), problems)
            check_sequences(view, cluster, problems)
    check_moves(views, problems)
    if catalog is not None:
        check_partitions(catalog, views, problems)
    if len(views) == cluster.bundles:  # otherwise it is unknown which files count
        checkpoints = [view.checkpoint for view in views]
        await ParquetCheck(store, cluster, live, checkpoints, problems, run_blocking).run(parquet, quick=quick)
        if catalog is not None:
            await KeyedCheck(store, cluster, problems, run_blocking).run(keyed, catalog, checkpoints, quick=quick)
            await MergedCheck(store, cluster, problems, run_blocking).run(merged, catalog, checkpoints, quick=quick)
    if catalog is not None:
        await _check_tables(store, cluster, catalog, problems)
    await _check_archive(store, cluster, problems, run_blocking, quick=quick)
    await check_sinks(store, problems, run_blocking, quick=quick)
    checked.parquet_files = len(parquet)
    checked.records = sum(_end(view) for view in views)
    return checked


def _end(view: LedgerView) -> int:
    ends = dict(view.ends)
    for index in view.valid:
        for entry in index.batches:
            key = PartitionId(entry.topic_id, entry.partition)
            ends[key] = max(ends.get(key, 0), entry.base_offset + entry.record_count)
    return sum(ends.values())


def _place(key: str) -> PartitionId | None:
    name = keys.parse_parquet(key)
    return None if name is None else PartitionId(name.topic_id, name.partition)


async def _check_tables(store: ObjectStore, cluster: ClusterSettings, catalog: Catalog, problems: Problems) -> None:
    """Check the tables of topics, which keep files from being deleted (design Z6)."""
    for topic in catalog.living_topics():
        if not topic.settings.table_generation:
            continue
        with problems.collecting(topic.parquet_folder):
            async for fault in find_faults(store, cluster, topic):
                code = "TABLE_FILE_MISSING" if fault.is_lost else "TABLE_AHEAD"
                problems.damage(fault.key, code, fault.text)


async def _check_archive(
    store: ObjectStore, cluster: ClusterSettings, problems: Problems, run_blocking: RunBlocking, *, quick: bool
) -> None:
    """The archive in the cluster's own root: its mark names this cluster, each file is whole.

    An archive at another URL (`archive.url`) is not read. Files may lie there that are live, too: a
    file is copied before it goes.
    """
    async for info in store.list(keys.ARCHIVE):
        key = info.key
        with problems.collecting(key):
            if key == keys.ARCHIVE_OWNER:
                if (owner := decode_mark(await store.get(key))) != cluster.cluster_id:
                    problems.damage(key, "FOREIGN_ARCHIVE", f"it says that the archive belongs to cluster {owner}")
            elif (name := keys.parse_archived(key)) is not None:
                footer = await read_footer(store, key)
                if check_footer(footer, key, name, cluster, problems) is None or quick:
                    continue
                wrong = await run_blocking(partial(find_wrong_rows, await store.get(key), key, name))
                if wrong is not None:
                    problems.damage(key, "DATA_DAMAGED", wrong)
