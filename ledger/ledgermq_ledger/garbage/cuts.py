"""What cuts leave when they are over: pins, objects `cuts/<id>`, and the files that were handed over to them.

A pin goes when the registry says that its cut is over (design I12). Objects are listed first, and the registry and the
pins read then: an object of a cut that is over, and a held file that no bundle's pins name, is never needed again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.pinned import Pinned, PinReader
from ledgermq_ledger.cuts.pins import unpin_move
from ledgermq_ledger.cuts.record import over_in
from ledgermq_ledger.garbage import found
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.gate import Gate, read_pinned
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.ledger_ref import LedgerRef
from ledgermq_ledger.log.recovery import bring_into_force
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.topics.catalog import Catalog, read_catalog


async def unpin(ledger: LedgerRef, catalog: Catalog) -> bool:
    """Remove the pins of cuts that are over from one bundle. Return whether there were any."""
    checkpoint = await newest_checkpoint(ledger.store, ledger.bundle)
    over = {pin.cut for pin in checkpoint.pins if over_in(catalog, pin.cut)}
    return bool(over) and await bring_into_force(ledger, unpin_move(over))


async def find(store: ObjectStore, cluster: ClusterSettings) -> list[Removable]:
    """Return held files that no pin names, and objects of cuts that are over and have no pin. Two LISTs if there are
    none.
    """
    listed = [info async for info in store.list(names.HELD) if names.is_held(info.key)]
    objects = {
        cut_id: info async for info in store.list(names.CUTS) if (cut_id := names.parse_cut(info.key)) is not None
    }
    if not listed and not objects:
        return []
    catalog = await read_catalog(LedgerRef(store, keys.METADATA_BUNDLE, cluster, Sources()))
    pinned, pins, pinning = Pinned(), PinReader(store), set[int]()
    for bundle in range(catalog.bundles(cluster)):
        checkpoint = await newest_checkpoint(store, bundle)
        pinning |= {pin.cut for pin in checkpoint.pins}
        pinned.add(await read_pinned(store, checkpoint, pins))
    return [*_unnamed(listed, pinned), *_over(objects, pinning, catalog)]


def _unnamed(listed: Sequence[ObjectInfo], pinned: Pinned) -> list[Removable]:
    named = {names.held(key) for key in pinned.files}
    return [Removable.of(Kind.HELD, info, "no cut needs it") for info in listed if info.key not in named]


def _over(objects: dict[int, ObjectInfo], pinning: set[int], catalog: Catalog) -> list[Removable]:
    return [
        Removable.of(Kind.CUT, info, f"cut {cut_id} is over")
        for cut_id, info in objects.items()
        if cut_id not in pinning and over_in(catalog, cut_id)
    ]


async def remove(store: ObjectStore, removable: Sequence[Removable]) -> None:
    await found.delete(store, removable, Gate())
