"""Garbage collection of a whole root: removes what `find` finds, each kind by the rules that keep
everything else whole.

segments, plans      again below the trim slot of the newest checkpoint, segments before the plan that names them
fences               before any Parquet file of their plans
Parquet files        ascending, each gone before the next, `parquet_min_age` after their commit; archived first where the topic wants it
removed topics       step by step, as the controller does it; their names are freed by the controller
staged rows          of Spark sinks that nobody will publish
heartbeats           only where they are still the same
Safe to be cut off anywhere, beside brokers, compactors and others of its kind: what one has removed is missing for nobody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace

from ledger import keys
from ledger.cluster import ClusterSettings
from ledger.garbage.delete import DELETE_BATCH, close_finished_fences, delete_expired_parquet
from ledger.garbage.find import find_removable, of_bundle
from ledger.garbage.gc import collect_garbage
from ledger.garbage.removable import Found, Kind, Removable
from ledger.garbage.removal import remove_topics
from ledger.log.checkpoint import newest_checkpoint
from ledger.object_store.contract import FENCES, ObjectMissing, ObjectStore
from ledger.parquet.archive import OpenArchive
from ledger.parquet.compaction import Compaction
from ledgermq.errors import LedgerMQError


@dataclass(slots=True)
class Swept:
    """`removed`: what is gone now, of what was found; others may have removed it.

    `failures`: what could not be done, by where.
    """

    found: Found
    removed: list[Removable] = field(default_factory=list)
    failures: dict[str, LedgerMQError] = field(default_factory=dict)


async def sweep(compaction: Compaction, *, grace_ms: int, open_archive: OpenArchive | None = None) -> Swept:
    """Remove what may be removed now; open plans that removed topics wait for are finished.

    What fails keeps nothing else from going: `Swept.failures`. Raises as `read_catalog` and
    `find_removable` do.
    """
    store, cluster = compaction.store, compaction.cluster
    catalog = await compaction.catalog()
    found = await find_removable(store, cluster, catalog, grace_ms)
    swept = Swept(found, failures=dict(found.failures))
    aged = replace(cluster, parquet_min_age_ms=max(cluster.parquet_min_age_ms, grace_ms))
    aging = replace(compaction, cluster=aged)

    async def tried(where: str, chore: Awaitable[object]) -> None:
        try:
            await chore
        except LedgerMQError as error:
            swept.failures.setdefault(where, error)

    async def tidy(bundle: int) -> None:
        await close_finished_fences(store, bundle)
        await _delete_segments(store, bundle, found)
        await _delete_replaced(store, bundle, found)
        await delete_expired_parquet(aging.ledger(bundle), catalog, open_archive)

    for bundle in range(
        cluster.bundles
    ):  # in turn: brokers put segments meanwhile, and an archive takes whole files through memory
        await tried(of_bundle(bundle), tidy(bundle))
    removals = await remove_topics(aging, catalog)
    for bundle, error in removals.failures.items():
        swept.failures.setdefault(of_bundle(bundle), error)
    await tried("keyed topics", _delete(store, found.keys(Kind.KEYED)))
    await tried("garbage", _collect(store, aged, grace_ms, swept))
    await tried("staged rows", _delete(store, found.keys(Kind.STAGED)))
    await tried("heartbeats", _delete_heartbeats(store, found))
    swept.removed = await _gone(store, found)
    return swept


async def _delete(store: ObjectStore, wanted: Sequence[str]) -> None:
    for i in range(0, len(wanted), DELETE_BATCH):
        await store.delete(wanted[i : i + DELETE_BATCH])


async def _collect(store: ObjectStore, cluster: ClusterSettings, grace_ms: int, swept: Swept) -> None:
    collected = await collect_garbage(store, cluster, grace_ms)
    for bundle, error in collected.failures.items():
        swept.failures.setdefault(of_bundle(bundle), error)


async def _delete_segments(store: ObjectStore, bundle: int, found: Found) -> None:
    segments = [key for key in found.keys(Kind.SEGMENT) if key.startswith(keys.segments(bundle))]
    trim_slot = (await newest_checkpoint(store, bundle)).trim_slot
    if segments and keys.number(segments[-1]) >= trim_slot:
        raise AssertionError(
            f"bundle {bundle}: slot {keys.number(segments[-1])} is found removable, the trim slot is {trim_slot}"
        )
    await _delete(store, segments)
    await _delete(store, [key for key in found.keys(Kind.PLAN) if key.startswith(keys.compactions(bundle))])


async def _delete_replaced(store: ObjectStore, bundle: int, found: Found) -> None:
    """Checkpoints and snapshots: those that were found to be replaced are replaced for ever."""
    replaced = [*found.keys(Kind.CHECKPOINT), *found.keys(Kind.SNAPSHOT)]
    await _delete(store, [key for key in replaced if key.startswith(keys.ledger(bundle))])


async def _delete_heartbeats(store: ObjectStore, found: Found) -> None:
    for each in found.removable:
        if each.kind is not Kind.HEARTBEAT:
            continue
        try:
            if (await store.head(each.key)).modified_ms == each.modified_ms:
                await store.delete([each.key])
        except ObjectMissing:
            continue


async def _gone(store: ObjectStore, found: Found) -> list[Removable]:
    there = {info.key async for info in store.list("")} | {f"{FENCES}{name}" for name in await store.list_fences()}
    return [each for each in found.removable if each.key not in there]
