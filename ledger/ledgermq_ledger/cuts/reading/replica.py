"""Say which cuts of a root are whole: whether all that each names is there (design R4).

It is for a root that the store itself replicates, in any order. It reads the objects of cuts and what those name, and
never the catalog, of which segments may not have come. Reads only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

from ledgermq.errors import DataDamaged, FormatNotSupported, UnknownCut
from ledgermq_ledger import keys
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.cut import read_cut
from ledgermq_ledger.cuts.reading.copying import named_by
from ledgermq_ledger.cuts.reading.store import CutStore
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore

MISSING_MAX = 5


@dataclass(frozen=True, slots=True)
class CutInReplica:
    """`name`, `created_ms`: empty and 0 if the object of the cut cannot be read. `missing`: the first objects that it
    lacks. `lacks`: how many; at least so many if what says more is missing. `objects`: that it names.
    """

    id: int
    name: str = ""
    created_ms: int = 0
    objects: int = 0
    lacks: int = 0
    missing: tuple[str, ...] = ()
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        return not self.lacks and not self.problem


async def cuts_of_replica(store: ObjectStore) -> AsyncIterator[CutInReplica]:
    """Yield the cuts whose objects are there, newest first. Raises the store's errors."""
    ids = [names.parse_cut(info.key) async for info in store.list(names.CUTS)]
    for cut_id in sorted((each for each in ids if each is not None), reverse=True):
        yield await _look(store, cut_id)


async def _look(store: ObjectStore, cut_id: int) -> CutInReplica:
    name, created_ms = "", 0
    try:
        cut = await read_cut(store, cut_id)
        if cut is not None:
            name, created_ms = cut.name, cut.created_ms
        wanted = await _named(await CutStore.open(store, cut_id))
    except (ObjectMissing, DataDamaged) as error:
        key = error.object_key or names.cut(cut_id)
        return CutInReplica(cut_id, name, created_ms, lacks=1, missing=(key,), problem=error.message)
    except (FormatNotSupported, UnknownCut) as error:
        return CutInReplica(cut_id, name, created_ms, problem=error.message)
    lacking = await _lacking(store, wanted)
    return CutInReplica(cut_id, name, created_ms, len(wanted), len(lacking), tuple(lacking[:MISSING_MAX]))


async def _named(at: CutStore) -> set[str]:
    wanted = {keys.checkpoint(each.bundle, each.base) for each in at.cut.bundles}
    for bundle in at.cut.bundles:
        wanted |= {key async for key in named_by(at, bundle, at.base(bundle.bundle))}
    return wanted


async def _lacking(store: ObjectStore, wanted: Collection[str]) -> list[str]:
    """Return what is not there, ascending. One listing for each folder; a Parquet file may be handed over."""
    there, wanted = set[str](), set(wanted)
    moved = {names.held(key): key for key in wanted if keys.parse_parquet(key) is not None}
    folders = {key.rpartition("/")[0] + "/" for key in (*wanted, *moved)}
    for folder in sorted(folders):
        async for info in store.list(folder):
            if info.key in wanted:
                there.add(info.key)
            elif info.key in moved:
                there.add(moved[info.key])
    return sorted(wanted - there)
