"""Run one round of cleaning of one partition: read the newest version, write the files of the next
one, publish it by one put.

    newest version n | what the log holds above its end | tasks, under a separate attempt id |
    put version n+1, unless a rival has

Rivals may do the same at the same time; each has its own files, one wins the number. What a round
that ends early leaves is garbage, which no process has to finish. Safety (docs/decisions/0022):
every version holds the latest record of each key below its end, once. Of a topic that is under
legal hold nothing is cleaned, nor by settings that were replaced: looked at first, and again before
the put.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ledgermq.errors import DataDamaged, Unavailable
from ledgermq.runtime.reread import Rereads
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keyed.plan import CleaningPlan, make_cleaning_plan
from ledgermq_ledger.keyed.task import CleaningOutcome, CleaningTask
from ledgermq_ledger.keyed.version import KeyedVersion, Published, encode_version, newest_version
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import checkpoint_in_charge, newest_checkpoint, partition_of
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.pages import PageReader, dated
from ledgermq_ledger.parquet.report import CleaningReport
from ledgermq_ledger.root.two_clocks import TwoClocks
from ledgermq_ledger.topics.facts import may_remove
from ledgermq_ledger.topics.topic import Topic

ATTEMPTS_MAX = 10

OnCleaned = Callable[[CleaningTask, CleaningOutcome], None]


def _rereads_of(place: PartitionId) -> Rereads:
    return Rereads(
        ATTEMPTS_MAX,
        f"{keys.keyed_folder(place)}: other processes changed it during each attempt to read it; retry later",
    )


def place_of(topic: Topic, partition: int) -> PartitionId:
    return PartitionId(topic.id, partition)


async def clean_partition(
    compaction: Compaction,
    topic: Topic,
    partition: int,
    *,
    everything: bool,
    bytes_max: int | None = None,
    on_done: OnCleaned = lambda task, outcome: None,
) -> CleaningReport | None:
    """Publish the next version. Return None if none is due or allowed, or if a rival published it.

    `everything`: ignore the dirty ratio. `bytes_max`: return None if the round would read more than
    this.

    Raises DataDamaged (naming the object), Unavailable, the store's errors.
    """
    store, cluster = compaction.store, compaction.cluster
    place, bundle = place_of(topic, partition), topic.bundles[partition]
    rereads = _rereads_of(place)
    while True:
        rereads.begin()
        unpublished = await _unpublished(compaction, place) if not topic.settings.keyed else frozenset[int]()
        published, checkpoint, log = await _look(store, topic, partition)
        if not may_remove(checkpoint, topic, partition):
            return None
        now_ms = await TwoClocks(store, compaction.sources).earlier_ms()
        log = await dated(store, log, now_ms - topic.settings.min_compaction_lag_ms)
        plan = make_cleaning_plan(
            place,
            topic.name,
            cluster.cluster_id,
            published,
            partition_of(checkpoint, place.topic_id, place.partition),
            log,
            topic.settings,
            everything=everything,
            now_ms=now_ms,
            min_age_ms=cluster.parquet_min_age_ms,
            altered_ms=max(topic.created_ms, topic.altered_ms),
            unpublished=unpublished,
        )
        if plan is None or (bytes_max is not None and _bytes_of(plan) > bytes_max):
            return None
        try:
            return await _run(compaction, bundle, plan, topic, on_done)
        except ObjectMissing as error:
            await _explain(store, place, bundle, plan, error)


async def _unpublished(compaction: Compaction, place: PartitionId) -> frozenset[int]:
    """Return the numbers of versions for which files were put `parquet_min_age_ms` ago.

    Listed before the newest version is read: files that it names are not above it, so a number above
    it has files and no published version.
    """
    limit_ms = await compaction.store.store_time_ms() - compaction.cluster.parquet_min_age_ms
    old = [
        keys.parse_keyed(info.key)
        async for info in compaction.store.list(keys.keyed_files(place))
        if info.modified_ms <= limit_ms
    ]
    return frozenset(name.number for name in old if name is not None)


async def _look(
    store: ObjectStore, topic: Topic, partition: int
) -> tuple[Published | None, fmt.Checkpoint, list[fmt.ParquetFile]]:
    """Return the newest version, the newest checkpoint, and the log above the version's end, all
    consistent with one moment.

    For a topic that is no longer keyed, without the log: none of it has to be cleaned.
    """
    place, bundle = place_of(topic, partition), topic.bundles[partition]
    rereads = _rereads_of(place)
    while True:
        rereads.begin()
        published = await newest_version(store, place)
        checkpoint = await newest_checkpoint(store, bundle)
        counters = partition_of(checkpoint, place.topic_id, place.partition)
        start = max(published.version.end if published is not None else 0, counters.parquet_start)
        try:
            log = await PageReader(store, bundle).files_from(counters, start) if topic.settings.keyed else []
        except ObjectMissing:
            continue  # a page was replaced: a newer checkpoint has the new one
        if published is None or start == published.version.end or start <= counters.log_start:
            return published, checkpoint, log


def _bytes_of(plan: CleaningPlan) -> int:
    return sum(each.size for group in plan.groups for each in group)


async def _run(
    compaction: Compaction, bundle: int, plan: CleaningPlan, topic: Topic, on_done: OnCleaned
) -> CleaningReport | None:
    store, sources = compaction.store, compaction.sources
    attempt, number = sources.new_id(), plan.base.number + 1
    tasks = [
        CleaningTask(
            store_url=store.url,
            cluster_id=compaction.cluster.cluster_id,
            place=plan.base.place,
            topic=topic.name,
            number=number,
            attempt=attempt,
            inputs=group,
            dirty=plan.dirty,
            end=plan.end,
            floor=plan.floor,
            aged_end=plan.aged_end,
            expired_us=plan.expired_us,
            bloom=topic.settings.parquet_bloom_key,
            row_group_bytes=topic.settings.parquet_row_group_bytes,
        )
        for group in plan.groups
    ]
    outcomes: list[CleaningOutcome] = await compaction.engine.run(store, tasks, on_done) if tasks else []
    version = replace(
        plan.base,
        cluster=compaction.cluster.cluster_id,
        number=number,
        attempt=attempt,
        end=plan.end,
        files=plan.kept + tuple(outcome.file for outcome in outcomes if outcome.file is not None),
        earlier=plan.earlier,
        tombstones_to=plan.aged_end,
        expired_ms=plan.expired_ms,
    )
    check_version(plan, version)
    if not may_remove(await newest_checkpoint(store, bundle), topic, version.place.partition) or not await _publish(
        store, version, sources
    ):
        return None
    return CleaningReport(
        bundle=bundle,
        topic=topic.name,
        partition=version.place.partition,
        number=number,
        end=version.end,
        read=sum(outcome.read for outcome in outcomes),
        records=sum(file.rows for file in version.files),
        dirty_bytes=sum(each.size for each in plan.dirty),
        stored_bytes=version.size,
    )


def check_version(plan: CleaningPlan, version: KeyedVersion) -> None:
    """Assert that nothing goes back, and that the files fit the version.

    A violation is a bug of LedgerMQ, so it stops the caller.
    """
    base = plan.base
    for name in ("end", "tombstones_to", "expired_ms"):
        if getattr(version, name) < getattr(base, name):
            raise AssertionError(
                f"{version.key}: {name} would go back from {getattr(base, name)} to {getattr(version, name)}"
            )
    start = base.end
    for each in plan.dirty:
        if each.first > max(start, plan.floor):
            raise AssertionError(f"{version.key}: offsets {start} to {each.first - 1} would be left out")
        start = each.last + 1
    if plan.dirty and start != version.end:
        raise AssertionError(f"{version.key}: it ends at {version.end}, but the records read end at {start}")


async def _publish(store: ObjectStore, version: KeyedVersion, sources: Sources) -> bool:
    """Publish a version. Return False if a rival's version has the number."""
    outcome = await settle_put(store, version.key, [encode_version(version)], sources=sources)
    if outcome is PutOutcome.UNKNOWN:
        raise Unavailable(f"{version.key}: outcome of the conditional put is unknown; retry later")
    return outcome is PutOutcome.WON


async def _explain(
    store: ObjectStore, place: PartitionId, bundle: int, plan: CleaningPlan, missing: ObjectMissing
) -> None:
    """Explain why a file of version n, or of the log above it, is missing.

    Raises DataDamaged unless other processes have published a newer version, or the partition has moved.
    """
    newest = await newest_version(store, place)
    checkpoint = await checkpoint_in_charge(store, bundle, place)
    log_start = partition_of(checkpoint, *place).log_start if checkpoint is not None else 0
    has_left = checkpoint is None or checkpoint.bundle != bundle
    if has_left or (newest.version.number if newest is not None else 0) > plan.base.number or log_start > plan.floor:
        return
    raise DataDamaged(
        f"{missing.message}, but {plan.base.key} is still the newest version", object_key=missing.object_key
    ) from missing
