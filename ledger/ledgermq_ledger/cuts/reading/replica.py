"""Say which cuts of a root are whole: whether all that each names is there (design R4).

It is for a root that the store itself replicates, in any order. It reads the objects of cuts and what those name, and
never the catalog, of which segments may not have come. Reads only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace

from ledgermq.errors import DataDamaged, FormatNotSupported, UnknownCut
from ledgermq_ledger import keys
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.cut import read_cut
from ledgermq_ledger.cuts.reading.copying import named_by
from ledgermq_ledger.cuts.reading.store import CutStore
from ledgermq_ledger.cuts.record import cut_id_of, moment_ms_of
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

    @property
    def what_lacks(self) -> str:
        """Say what is missing: "3 objects, the first of them segments/000001/…"."""
        if self.problem:
            return f"at least one object ({self.problem})"
        return f"{self.lacks} object{'s' if self.lacks > 1 else ''}, the first of them {self.missing[0]}"


async def cuts_of_replica(store: ObjectStore) -> AsyncIterator[CutInReplica]:
    """Yield the cuts whose objects are there, newest first. Raises the store's errors."""
    for cut_id in await _ids(store):
        yield await _look(store, await _header(store, cut_id))


async def whole_cut(store: ObjectStore, wanted: str, begun: int | None = None) -> CutInReplica:
    """Return a cut that is whole. `wanted`: its name, its id (digits), or a time (ISO 8601; UTC unless it names a
    zone): the newest whole one that was taken at or before it; empty: the newest whole one. Names come first. Of
    several cuts of one name, since a replica may keep what was dropped, it is the newest or none. `begun`: the id of a
    cut that is taken if it is what is wanted, too.

    Raises UnknownCut, which says what the newest of those that fit lacks; the store's errors.
    """
    found = [await _header(store, cut_id) for cut_id in await _ids(store)]
    fitting = _fitting(found, wanted)
    newest: CutInReplica | None = None
    for each in [one for one in fitting if one.id == begun] or fitting:
        looked = await _look(store, each)
        if looked.is_whole:
            return looked
        newest = newest or looked
    which = f"the cut {wanted!r}" if wanted else "a cut"
    if newest is None:
        raise UnknownCut(f"{store.url}: {which} is not there: `ledgermq replica status` shows those that are")
    raise UnknownCut(
        f"{store.url}: {which} is not whole there yet: cut {newest.name!r} ({newest.id}) lacks {newest.what_lacks}."
        " Wait until more has been replicated, or name another cut: `ledgermq replica status --all` shows them"
    )


def _fitting(found: Sequence[CutInReplica], wanted: str) -> Sequence[CutInReplica]:
    """Return those of `found`, newest first, that may be taken, in the order in which they are to be tried."""
    if not wanted:
        return found
    if named := [each for each in found if each.name == wanted]:
        return named[:1]
    if (cut_id := cut_id_of(wanted)) is not None:
        return [each for each in found if each.id == cut_id]
    until_ms = moment_ms_of(wanted)
    return [each for each in found if until_ms is not None and 0 < each.created_ms <= until_ms]


async def _ids(store: ObjectStore) -> list[int]:
    ids = [names.parse_cut(info.key) async for info in store.list(names.CUTS)]
    return sorted((each for each in ids if each is not None), reverse=True)


async def _header(store: ObjectStore, cut_id: int) -> CutInReplica:
    """Return what the object of a cut says, and nothing about what it names."""
    key = names.cut(cut_id)
    try:
        cut = await read_cut(store, cut_id)
    except DataDamaged as error:
        return CutInReplica(cut_id, lacks=1, missing=(key,), problem=error.message)
    except FormatNotSupported as error:
        return CutInReplica(cut_id, problem=error.message)
    if cut is None:
        return CutInReplica(cut_id, lacks=1, missing=(key,), problem=f"{key} was deleted")
    return CutInReplica(cut_id, cut.name, cut.created_ms)


async def _look(store: ObjectStore, header: CutInReplica) -> CutInReplica:
    if header.problem:
        return header
    try:
        wanted = await _named(await CutStore.open(store, header.id))
    except (ObjectMissing, DataDamaged) as error:
        key = error.object_key or names.cut(header.id)
        return replace(header, lacks=1, missing=(key,), problem=error.message)
    except (FormatNotSupported, UnknownCut) as error:
        return replace(header, problem=error.message)
    lacking = await _lacking(store, wanted)
    return replace(header, objects=len(wanted), lacks=len(lacking), missing=tuple(lacking[:MISSING_MAX]))


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
