"""Copy a cut into an empty root. `restore_cut`: as a new cluster with another id, beside the one that goes on.
`back_up_cut`: as the same cluster, to take the place of what is lost.

    restore.json    what is copied, and the whole future cluster.json; put first, if absent
    all else        what the cut names (`copy_named`), but for topics that are left out, which are removed then
    (mend)          offsets of groups are set back
    cluster.json    put last: from now on it is a cluster

A new id is drawn once, by the process that puts `restore.json`. Every repetition puts the same bytes, so a crash
at any step, or two processes at the same time, leave what the next call continues. When `cluster.json` is there,
nothing is copied again: brokers may have deleted some of it since (design I15 to I19).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

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
from ledgermq_ledger.cuts.reading.copying import Copied, copy_named, put_same
from ledgermq_ledger.cuts.reading.left_out import OnlyTopics, left_out, remove_topics
from ledgermq_ledger.cuts.reading.replica import whole_cut
from ledgermq_ledger.cuts.reading.root import open_at_cut
from ledgermq_ledger.cuts.record import cut_id_of, cut_in, cuts_in, is_taken, moment_ms_of, taken_in
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.topics.catalog import Catalog, read_catalog

Mend = Callable[[ObjectStore, ClusterSettings, Sources], Awaitable[int]]
"""Sets offsets of groups back in what was copied, before the copy is a cluster, and returns how many (I19). It may be
called again after a crash.
"""


@dataclass(frozen=True, slots=True)
class CutCopy:
    """Which cut is copied, and where to. `store`: the root that has the cut; it is only read. `cluster`: its settings.
    `wanted`: see `find_cut`. `target`: an empty root, or one where this very copy was broken off. `only`: without the
    other topics of users. `is_replica`: objects come to the root in any order, so the cut is found by `whole_cut`.
    """

    store: ObjectStore
    cluster: ClusterSettings
    wanted: str
    target: ObjectStore
    sources: Sources
    mend: Mend
    only: OnlyTopics | None = None
    is_replica: bool = False


@dataclass(frozen=True, slots=True)
class Restored:
    """`cluster`: of the copy. `copied`: None if an earlier call had done all. `set_back`: offsets of groups that lay
    behind the cut.
    """

    cut: fmt.CutRecord
    cluster: ClusterSettings
    copied: Copied | None
    set_back: int = 0


def find_cut(catalog: Catalog, wanted: str) -> fmt.CutRecord:
    """Return the cut of this name, or of this id (digits), or the newest one that was taken at or before this time (ISO
    8601; UTC unless it names a zone). Names come first.

    Raises UnknownCut, and Unavailable while the one of this name is being taken.
    """
    cuts = cuts_in(catalog)
    if wanted in cuts:
        return taken_in(catalog, wanted)
    taken = [record for record in cuts.values() if record.state == fmt.TAKEN]
    if (cut_id := cut_id_of(wanted)) is not None:
        for record in taken:
            if record.id == cut_id:
                return record
        raise UnknownCut(
            f"there is no cut with the name or id {wanted}: `ledgermq cut list` shows those that there are"
        )
    moment_ms = moment_ms_of(wanted)
    if moment_ms is None:
        return cut_in(catalog, wanted)  # raises, naming it
    before = [record for record in taken if record.taken_ms <= moment_ms]
    if not before:
        raise UnknownCut(
            f"no cut is kept that was taken at or before {wanted}: `ledgermq cut list` shows those that are"
        )
    return max(before, key=lambda record: (record.taken_ms, record.id))


async def restore_cut(copy: CutCopy) -> Restored:
    """Restore a cut as a new cluster. Nothing of the root `copy.store` is changed.

    Raises UnknownCut (also if the cut was dropped meanwhile), UnknownTopic, InvalidRequest if the target has anything
    else, ResourceExhausted, DataDamaged if something of the cut is missing, Unavailable, the stores' errors.
    """
    sources = copy.sources

    def new() -> str:
        return encode_cluster(restored_from(copy.cluster, sources.new_id().hex(), sources.now_ms())).decode()

    return await _copy(copy, new)


async def back_up_cut(copy: CutCopy) -> Restored:
    """As `restore_cut`, but the copy keeps the id: it has the `cluster.json` of its source. Raises the same."""
    same = (await copy.store.get(keys.CLUSTER)).decode()
    return await _copy(copy, lambda: same)


async def _copy(copy: CutCopy, cluster_json: Callable[[], str]) -> Restored:
    _check_apart(copy)
    target, record = copy.target, await _wanted(copy)
    try:
        at = await open_at_cut(copy.store, copy.cluster, record.id)
        without = left_out(at.catalog, copy.only)
        cut = at.store.cut
        pattern = "" if copy.only is None else copy.only.pattern
        mine = RestoreNote(copy.cluster.cluster_id, (cut.id, cut.put_id.hex()), cut.name, cluster_json(), pattern)
        note = await _begin(mine, target, copy.sources)
        if await _is_done(target, note):
            return Restored(record, note.cluster, None)
        copied = await copy_named(at, target, {topic.id for topic in without})
    except (DataDamaged, ObjectMissing):
        if not copy.is_replica:
            await _explain(copy, record)
        raise
    if without:
        await remove_topics(target, replace(note.cluster, bundles=at.cluster.bundles), without, copy.sources)
    set_back = await copy.mend(target, note.cluster, copy.sources)
    await put_same(target, keys.CLUSTER, note.cluster_json.encode())
    return Restored(record, note.cluster, copied, set_back)


async def _wanted(copy: CutCopy) -> fmt.CutRecord:
    """Return the record of the cut, of a replica one with what its object says."""
    if not copy.is_replica:
        return find_cut(await cuts_catalog(copy.store, copy.cluster), copy.wanted)
    begun = await read_note(copy.target)
    if begun is not None and begun.source_id != copy.cluster.cluster_id:
        begun = None
    found = await whole_cut(copy.store, copy.wanted, None if begun is None else begun.cut[0])
    return fmt.CutRecord(id=found.id, name=found.name, state=fmt.TAKEN, taken_ms=found.created_ms)


async def cuts_catalog(store: ObjectStore, cluster: ClusterSettings) -> Catalog:
    """Return the catalog of a root, which has the records of its cuts. Raises what `read_catalog` raises."""
    return await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, Sources()))


def _check_apart(copy: CutCopy) -> None:
    store, target = copy.store, copy.target
    source, new = (f"{each.url.rstrip('/')}/" for each in (store, target))
    if store.url == target.url or ("://" in source and new.startswith(source)):
        raise InvalidRequest(f"{target.url}: it lies in the root {store.url}, which stays as it is; give another root")


async def _begin(mine: RestoreNote, target: ObjectStore, sources: Sources) -> RestoreNote:
    """Return the note of this copy, put by this call or by another one."""
    found = await read_note(target)
    if found is None and (other := await _first_other(target)) is not None:
        found = await read_note(target)  # a second process may do the same, and be faster
        if found is None:
            raise InvalidRequest(f"{target.url}: it is in use: there is {other}; give an empty root")
    if found is None:
        if await settle_put(target, keys.RESTORE, [encode_note(mine)], sources=sources) is PutOutcome.UNKNOWN:
            raise Unavailable(f"{target.url}: outcome of the put of {keys.RESTORE} is unknown; repeat the call")
        found = await read_note(target)
    if found is None or not found.continues(mine):
        said = "nothing is restored" if found is None else found.describe()
        raise InvalidRequest(f"{target.url}: by its {keys.RESTORE}, {said} there; give an empty root")
    return found


async def _first_other(target: ObjectStore) -> str | None:
    async for info in target.list(""):
        if info.key != keys.RESTORE:
            return info.key
    return None


async def _is_done(target: ObjectStore, note: RestoreNote) -> bool:
    """Return whether the target is the copied cluster already. Raises InvalidRequest if it is another one."""
    try:
        found = await read_cluster(target)
    except ObjectMissing:
        return False
    if found.cluster_id != note.cluster.cluster_id:
        raise InvalidRequest(
            f"{target.url}: brokers have made another cluster there (see its {keys.CLUSTER}); give an empty root"
        )
    return True


async def _explain(copy: CutCopy, record: fmt.CutRecord) -> None:
    """Raise UnknownCut if the cut was dropped since it was looked up."""
    if not is_taken(await cuts_catalog(copy.store, copy.cluster), record):
        raise UnknownCut(
            f"cut {record.name!r} was dropped, or its time was over, while it was copied: keep a cut until then"
            f" (`ledgermq cut keep`). {copy.target.url} is no cluster; give an empty root for another cut"
        )
