"""Run rounds: over a whole root by hand, or one round of one bundle in the background of a broker."""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.errors import InvalidConfig, LedgerMQError, StoreFull
from ledgermq.runtime.tasks import all_of
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import BUNDLES_AT_ONCE, ClusterSettings, read_cluster
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage import cuts
from ledgermq_ledger.garbage.sweep import collect_garbage, tidy_bundle, tidy_snapshots
from ledgermq_ledger.garbage.topics import removed
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint, partitions_by_key
from ledgermq_ledger.log.history import History, read_history
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import bring_into_force, recover
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.compacting.plan import Fate, backlogs_of, fate_of, needs_newer_catalog
from ledgermq_ledger.parquet.compacting.round import run_round
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.engine import Engine
from ledgermq_ledger.parquet.hand_over import forget_handed_over, is_elsewhere
from ledgermq_ledger.parquet.merging.merge import merge_bundle
from ledgermq_ledger.parquet.report import CompactionReport, Lag, OnProgress, RoundReport
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.topics.catalog import Catalog, grown
from ledgermq_ledger.topics.removal import take_in_facts


async def compact_root(
    store: ObjectStore,
    sources: Sources,
    engine: Engine,
    *,
    bundles: Sequence[int] | None = None,
    on_progress: OnProgress | None = None,
) -> CompactionReport:
    """Move all current records to Parquet, whatever the lag settings, clean keyed topics, and
    delete what is no longer needed.

    Records produced meanwhile may or may not be included. A bundle that cannot be compacted is
    reported, and the others continue. Raises InvalidConfig (no cluster at this root),
    FormatNotSupported.
    """
    try:
        cluster = await read_cluster(store)
    except ObjectMissing as error:
        raise InvalidConfig(
            f"{store.url}: there is no cluster here ({keys.CLUSTER} is missing); check the root URL"
        ) from error
    report, compaction = CompactionReport(), Compaction(store, cluster, sources, engine, on_progress=on_progress)
    try:
        catalog = await compaction.catalog()
    except LedgerMQError as error:
        report.failures[keys.METADATA_BUNDLE] = error
        return report
    cluster = grown(cluster, catalog)

    async def compact(bundle: int) -> None:
        try:
            await _compact_all(compaction, bundle, catalog, report)
        except LedgerMQError as error:
            report.failures[bundle] = error

    await all_of(
        (compact(bundle) for bundle in (bundles if bundles is not None else range(cluster.bundles))), BUNDLES_AT_ONCE
    )
    report.rounds.sort(key=lambda done: (done.bundle, done.plan))
    await _collect(store, cluster, catalog, report)
    return report


async def _collect(store: ObjectStore, cluster: ClusterSettings, catalog: Catalog, report: CompactionReport) -> None:
    try:
        collected = await collect_garbage(store, cluster, catalog)
        report.collected += collected.keys
        report.not_collected += collected.failures.values()
    except LedgerMQError as error:
        report.not_collected.append(error)
    try:
        versions = await removed.find_versions(store, catalog)
        report.collected += await removed.remove_versions(store, versions, catalog, catalog.bundles(cluster))
    except LedgerMQError as error:
        report.not_collected.append(error)


async def compact_bundle(
    compaction: Compaction, bundle: int, catalog: Catalog, *, everything: bool, only_internal: bool = False
) -> RoundReport | None:
    """Run `round_of_bundle`, then delete what is no longer needed.

    Raises what that raises, and errors of the deletion when the round is done.
    """
    report = await round_of_bundle(compaction, bundle, catalog, everything=everything, only_internal=only_internal)
    if only_internal:
        await tidy_snapshots(compaction.store, bundle)
    elif (error := await try_to_tidy(compaction, bundle, catalog)) is not None:
        raise error
    return report


async def round_of_bundle(
    compaction: Compaction, bundle: int, catalog: Catalog, *, everything: bool, only_internal: bool = False
) -> RoundReport | None:
    """Run one round by the facts of the catalog, or finish an open one; None if nothing was due.

    `only_internal`: plan only internal topics, which trims nothing. Raises DataDamaged (naming the
    object), Unavailable, the store's errors.
    """
    checkpoint = await bring_facts_into_force(compaction.ledger(bundle), catalog)
    await forget_handed_over(compaction.ledger(bundle), checkpoint)
    await cuts.unpin(compaction.ledger(bundle), catalog)
    return await _round_with_room(compaction, bundle, catalog, everything=everything, only_internal=only_internal)


async def _round_with_room(
    compaction: Compaction, bundle: int, catalog: Catalog, *, everything: bool, only_internal: bool = False
) -> RoundReport | None:
    """Run a round. If the store had no room for all of it, delete what the moved part frees, and
    repeat while that frees something.
    """
    while True:
        trim_slot = (await newest_checkpoint(compaction.store, bundle)).trim_slot
        try:
            return await run_round(compaction, bundle, catalog, everything=everything, only_internal=only_internal)
        except StoreFull:
            await try_to_tidy(compaction, bundle, catalog)
            if (await newest_checkpoint(compaction.store, bundle)).trim_slot == trim_slot:
                raise


async def try_to_tidy(compaction: Compaction, bundle: int, catalog: Catalog) -> LedgerMQError | None:
    """Delete what is no longer needed. Return the error that kept some of it, for the caller to
    log: no round has to wait for it.
    """
    try:
        await tidy_bundle(compaction.ledger(bundle), catalog)
    except LedgerMQError as error:
        return error
    return None


async def bring_facts_into_force(ledger: LedgerRef, catalog: Catalog) -> fmt.Checkpoint:
    """Put into the bundle's newest checkpoint what protects records, and which topics were removed,
    so that the next plan leaves them out. Return that checkpoint, or an older one with the same partitions.

    Raises Unavailable.
    """
    move, checkpoint = take_in_facts(catalog), await newest_checkpoint(ledger.store, ledger.bundle)
    if move(checkpoint):  # one read is cheap, and mostly enough
        await bring_into_force(ledger, move)
    return checkpoint


async def _compact_all(compaction: Compaction, bundle: int, catalog: Catalog, report: CompactionReport) -> None:
    checkpoint = await bring_facts_into_force(compaction.ledger(bundle), catalog)
    await forget_handed_over(compaction.ledger(bundle), checkpoint)
    goal = await _ends(compaction, bundle, catalog)
    while True:
        done = await _round_with_room(compaction, bundle, catalog, everything=True)
        if done is None:
            break
        report.rounds.append(done)
        goal = await _not_in_parquet(goal, compaction, bundle)
        if not goal:
            break
    report.lags[bundle] = await lag_of_bundle(compaction, bundle, catalog)
    untidied = await try_to_tidy(compaction, bundle, catalog)
    try:
        report.cleaned += await clean_bundle(compaction, bundle, catalog, everything=True)
        report.merged += await merge_bundle(compaction, bundle, catalog)
    except LedgerMQError:
        report.not_collected += [untidied] if untidied is not None else []
        raise
    if untidied is not None:
        raise untidied


async def lag_of_bundle(compaction: Compaction, bundle: int, catalog: Catalog) -> Lag:
    """Return what of the bundle is not in Parquet now. Raises what `round_of_bundle` raises."""
    history = await read_history(compaction.ledger(bundle))
    if needs_newer_catalog(history, catalog):
        catalog = await compaction.catalog()
    return lag_of(history, catalog)


def lag_of(history: History, catalog: Catalog) -> Lag:
    """Return how far Parquet is behind a ledger. Pure.

    Raises Unavailable if the catalog is older than the newest checkpoint's view of it.
    """
    backlogs = [
        backlog for backlog in backlogs_of(history, catalog).values() if backlog.fate in (Fate.WRITE, Fate.WAIT)
    ]
    return Lag(
        records=sum(
            backlog.end - max(backlog.counters.parquet_end, backlog.batches[0][2].base_offset) for backlog in backlogs
        ),
        bytes=sum(backlog.bytes for backlog in backlogs),
        written_ms=min((backlog.batches[0][1] for backlog in backlogs), default=None),
    )


async def _ends(compaction: Compaction, bundle: int, catalog: Catalog) -> dict[PartitionId, int]:
    """Return the ends up to which partitions have to be in Parquet: with active producers, "all
    records" has to mean one moment.
    """
    recovered = await recover(compaction.ledger(bundle))
    parts = partitions_by_key(recovered.checkpoint)
    return {
        key: end
        for key, end in recovered.state.ends.items()
        if fate_of(key.topic_id, recovered.checkpoint, catalog) not in (Fate.DROP, Fate.STAGED)
        and not is_elsewhere(recovered.state.moves, key, parts.get(key))
    }


async def _not_in_parquet(goal: dict[PartitionId, int], compaction: Compaction, bundle: int) -> dict[PartitionId, int]:
    """Return the ends that Parquet has not reached, of topics that the next plan will take further:
    one may have been deleted meanwhile.
    """
    checkpoint = await newest_checkpoint(compaction.store, bundle)
    parts = partitions_by_key(checkpoint)
    missing = {
        key: end
        for key, end in goal.items()
        if key not in parts
        or not (parts[key].HasField("parked") or parts[key].forgotten or parts[key].parquet_end >= end)
    }
    if not missing:
        return missing
    catalog = await compaction.catalog()
    return {
        key: end
        for key, end in missing.items()
        if fate_of(key.topic_id, checkpoint, catalog) in (Fate.WRITE, Fate.INTERNAL)
    }
