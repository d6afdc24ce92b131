"""Restore a cut into an empty root: a new cluster with the state of the cut, and another id.

    restore.json    what is restored, and the whole future cluster.json; put first, if absent
    all else        what the cut names (`copy_named`)
    (mend)          what the caller changes in the copy, such as offsets of groups
    cluster.json    put last: from now on it is a cluster

The new id is drawn once, by the process that puts `restore.json`. Every repetition puts the same bytes, so a crash
at any step, or two processes at the same time, leave what the next call continues. When `cluster.json` is there,
nothing is copied again: brokers may have deleted some of it since (design I15 to I19).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from ledgermq.errors import DataDamaged, InvalidRequest, Unavailable, UnknownCut
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import (
    ClusterSettings,
    RestoreNote,
    encode_cluster,
    encode_note,
    read_cluster,
    read_note,
    restored_from,
)
from ledgermq_ledger.cuts.reading.backup import Copied, copy_named, put_same
from ledgermq_ledger.cuts.reading.root import RootAtCut, open_at_cut
from ledgermq_ledger.cuts.record import cut_in, cuts_in, taken_in
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.topics.catalog import Catalog, read_catalog

Mend = Callable[[ObjectStore, ClusterSettings], Awaitable[None]]
"""Changes what was copied, before the copy is a cluster. It may be called again after a crash."""


@dataclass(frozen=True, slots=True)
class Restored:
    """`copied`: None if an earlier call had done all."""

    cut: fmt.CutRecord
    cluster: ClusterSettings
    copied: Copied | None


def find_cut(catalog: Catalog, wanted: str) -> fmt.CutRecord:
    """Return the cut of this name, or of this id (digits), or the newest one that was taken at or before this time (ISO
    8601; UTC unless it names a zone). Names come first.

    Raises UnknownCut, and Unavailable while the one of this name is being taken.
    """
    cuts = cuts_in(catalog)
    if wanted in cuts:
        return taken_in(catalog, wanted)
    taken = [record for record in cuts.values() if record.state == fmt.TAKEN]
    if re.fullmatch(r"\d{1,20}", wanted):
        for record in taken:
            if record.id == int(wanted):
                return record
        raise UnknownCut(
            f"there is no cut with the name or id {wanted}: `ledgermq cut list` shows those that there are"
        )
    try:
        moment = datetime.fromisoformat(wanted)
    except ValueError:
        return cut_in(catalog, wanted)  # raises, naming it
    moment_ms = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000
    before = [record for record in taken if record.taken_ms <= moment_ms]
    if not before:
        raise UnknownCut(
            f"no cut is kept that was taken at or before {wanted}: `ledgermq cut list` shows those that are"
        )
    return max(before, key=lambda record: (record.taken_ms, record.id))


async def restore_cut(
    store: ObjectStore, cluster: ClusterSettings, wanted: str, target: ObjectStore, sources: Sources, mend: Mend
) -> Restored:
    """Restore a cut of the root `store`, see `find_cut`, into the root `target`, which is empty or where this restore
    was broken off. It reads `store`, and changes nothing there.

    Raises UnknownCut (also if the cut was dropped meanwhile), InvalidRequest if the target has anything else,
    ResourceExhausted, DataDamaged if something of the cut is missing, Unavailable, the stores' errors.
    """
    _check_apart(store, target)
    record = find_cut(await _catalog(store, cluster), wanted)
    try:
        at = await open_at_cut(store, cluster, record.id)
        note = await _begin(at, cluster, target, sources)
        if await _is_done(target, note):
            return Restored(record, note.cluster, None)
        copied = await copy_named(at, target)
    except (DataDamaged, ObjectMissing):
        await _explain(store, cluster, record, target)
        raise
    await mend(target, note.cluster)
    await put_same(target, keys.CLUSTER, note.cluster_json.encode())
    return Restored(record, note.cluster, copied)


async def _catalog(store: ObjectStore, cluster: ClusterSettings) -> Catalog:
    return await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, Sources()))


def _check_apart(store: ObjectStore, target: ObjectStore) -> None:
    source, new = (f"{each.url.rstrip('/')}/" for each in (store, target))
    if store.url == target.url or ("://" in source and new.startswith(source)):
        raise InvalidRequest(f"{target.url}: it lies in the root {store.url}, which stays as it is; give another root")


async def _begin(at: RootAtCut, cluster: ClusterSettings, target: ObjectStore, sources: Sources) -> RestoreNote:
    """Return the note of this restore, put by this call or by another one."""
    cut, mine = at.store.cut, (cluster.cluster_id, (at.store.cut.id, at.store.cut.put_id.hex()))
    found = await read_note(target)
    if found is None and (other := await _first_other(target)) is not None:
        found = await read_note(target)  # a second process may do the same, and be faster
        if found is None:
            raise InvalidRequest(f"{target.url}: it is in use: there is {other}; give an empty root")
    if found is None:
        new_json = encode_cluster(restored_from(cluster, sources.new_id().hex(), sources.now_ms())).decode()
        note = encode_note(RestoreNote(*mine, cut.name, new_json))
        if await settle_put(target, keys.RESTORE, [note], sources=sources) is PutOutcome.UNKNOWN:
            raise Unavailable(f"{target.url}: outcome of the put of {keys.RESTORE} is unknown; repeat the call")
        found = await read_note(target)
    if found is None or (found.source_id, found.cut) != mine:
        said = "nothing" if found is None else f"cut {found.cut_name!r} ({found.cut[0]}) of cluster {found.source_id}"
        raise InvalidRequest(f"{target.url}: by its {keys.RESTORE}, {said} is restored there; give an empty root")
    return found


async def _first_other(target: ObjectStore) -> str | None:
    async for info in target.list(""):
        if info.key != keys.RESTORE:
            return info.key
    return None


async def _is_done(target: ObjectStore, note: RestoreNote) -> bool:
    """Return whether the target is the restored cluster already. Raises InvalidRequest if it is another one."""
    try:
        found = await read_cluster(target)
    except ObjectMissing:
        return False
    if found.cluster_id != note.cluster.cluster_id:
        raise InvalidRequest(
            f"{target.url}: brokers have made another cluster there (see its {keys.CLUSTER}); give an empty root"
        )
    return True


async def _explain(store: ObjectStore, cluster: ClusterSettings, record: fmt.CutRecord, target: ObjectStore) -> None:
    """Raise UnknownCut if the cut was dropped since it was looked up."""
    found = cuts_in(await _catalog(store, cluster)).get(record.name)
    if found is None or found.id != record.id or found.state != fmt.TAKEN:
        raise UnknownCut(
            f"cut {record.name!r} was dropped, or its time was over, while it was restored: keep a cut until then"
            f" (`ledgermq cut keep`). {target.url} is no cluster; give an empty root to restore another cut"
        )
