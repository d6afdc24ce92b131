"""Check `cluster.json` against the rest of its root: whether all of it was written under these
values (decision 30).

    bundles               no ledger beyond them; each bundle has a ledger once the cluster has lived, for brokers
                          claim all of them
    cluster_id            that of the Parquet files that file lists name, or of the files of keyed partitions; or one
                          of those that the cluster was restored from
    producer_states_max   no checkpoint remembers more producers
    the others            nothing in the root shows them

For files without a checksum, and for `ledgermq fsck`, which must not report sound objects as
damaged. An object that cannot be read is ignored here. Changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.runtime.tasks import all_of
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import BUNDLES_AT_ONCE, ClusterSettings
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keyed.note import KeyedNote
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.files.columns import FooterNote
from ledgermq_ledger.parquet.files.stored_file import read_footer
from ledgermq_ledger.parquet.pages import PageReader

YOUNG_SLOTS = 8
"""A ledger with more slots is not that of a cluster that has just begun: all bundles have been
claimed.
"""
UNREADABLE = (DataDamaged, FormatNotSupported, ObjectMissing)


async def check_fit(store: ObjectStore, cluster: ClusterSettings) -> None:
    """Refuse a `cluster.json` without checksum that contradicts the root.

    Raises DataDamaged, the store's errors.
    """
    if not cluster.has_checksum and (found := await contradictions(store, cluster)):
        raise DataDamaged(
            f"{keys.CLUSTER}: {'; '.join(found)}; put the object back from a copy", object_key=keys.CLUSTER
        )


async def contradictions(store: ObjectStore, cluster: ClusterSettings) -> list[str]:
    """Return what in the root was not written under this `cluster.json`.

    With a checksum only `cluster_id` is in question: the file may be another cluster's.
    """
    checkpoints = await all_of((_checkpoint(store, bundle) for bundle in range(cluster.bundles)), BUNDLES_AT_ONCE)
    known = [checkpoint for checkpoint in checkpoints if checkpoint is not None]
    found = []
    if not cluster.has_checksum:
        found += [text async for text in _about_bundles(store, cluster, known)]
        found += _about_producers(cluster, known)
    found += [text async for text in _about_id(store, cluster, known)]
    return found


async def _checkpoint(store: ObjectStore, bundle: int) -> fmt.Checkpoint | None:
    try:
        return await newest_checkpoint(store, bundle)
    except UNREADABLE:
        return None


async def _about_bundles(
    store: ObjectStore, cluster: ClusterSettings, checkpoints: list[fmt.Checkpoint]
) -> AsyncIterator[str]:
    says = f"it says that there are {cluster.bundles} bundles, 0 to {cluster.bundles - 1}"
    async for info in store.list(keys.LEDGERS, start_after=keys.ledger(cluster.bundles).removesuffix("/")):
        if keys.parse_ledger(info.key) is not None:
            yield f"{says}, but there is {info.key}"
            break
    last = keys.ledger(cluster.bundles - 1)
    if not await _has_objects(store, last) and await _has_lived(store, cluster, checkpoints):
        yield f"{says}, but {last} is empty while other bundles are in use"


async def _has_objects(store: ObjectStore, ledger: str) -> bool:
    async for info in store.list(ledger):
        if keys.parse_ledger(info.key) is not None:
            return True
    return False


async def _has_lived(store: ObjectStore, cluster: ClusterSettings, checkpoints: list[fmt.Checkpoint]) -> bool:
    if any(checkpoint.number for checkpoint in checkpoints):
        return True
    for bundle in range(cluster.bundles):
        async for _ in list_numbered(store, keys.segments(bundle), after=YOUNG_SLOTS):
            return True
    return False


def _about_producers(cluster: ClusterSettings, checkpoints: list[fmt.Checkpoint]) -> list[str]:
    most = max(checkpoints, key=lambda checkpoint: len(checkpoint.state.producers), default=fmt.Checkpoint())
    count = len(most.state.producers)
    if count <= cluster.producer_states_max:
        return []
    key = keys.checkpoint(most.bundle, most.number)
    return [f"it says producer_states_max {cluster.producer_states_max}, but {key} remembers {count} producers"]


async def _about_id(
    store: ObjectStore, cluster: ClusterSettings, checkpoints: list[fmt.Checkpoint]
) -> AsyncIterator[str]:
    """Yield contradictions of the cluster id. One file that it wrote proves the id; without any,
    a file of another cluster that this root's lists name contradicts it.
    """
    others: dict[str, str] = {}
    async for key, cluster_id in _written_by(store, checkpoints):
        if cluster.wrote(cluster_id):
            return
        others.setdefault(cluster_id, key)
    for cluster_id, key in others.items():
        yield f"it says cluster_id {cluster.cluster_id}, but {key} was written by cluster {cluster_id}"


async def _written_by(store: ObjectStore, checkpoints: list[fmt.Checkpoint]) -> AsyncIterator[tuple[str, str]]:
    """Yield (Parquet file, cluster): the first that each bundle lists, then the first of keyed
    partitions.
    """
    for checkpoint in checkpoints:
        try:
            key = await _listed_file(store, checkpoint)
            note = FooterNote.decode((await read_footer(store, key)).metadata) if key else None
        except UNREADABLE:
            continue
        if key and note is not None:
            yield key, note.cluster
    async for info in store.list(keys.KEYED):
        if (name := keys.parse_keyed(info.key)) is None or not name.is_file:
            continue
        try:
            keyed = KeyedNote.decode((await read_footer(store, info.key)).metadata)
        except UNREADABLE:
            continue
        if keyed is not None:
            yield info.key, keyed.cluster
            return


async def _listed_file(store: ObjectStore, checkpoint: fmt.Checkpoint) -> str | None:
    pages = PageReader(store, checkpoint.bundle)
    for part in checkpoint.partitions:
        if files := await pages.files_from(part, 0):
            return files[0].key
    return None
