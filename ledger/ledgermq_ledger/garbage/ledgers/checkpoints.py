"""Remove checkpoints: a checkpoint may be removed when one with a higher number exists, because the
highest number that a LIST shows is the one that counts (design C2).

The newest is never removed: its number would be free again, and a process that was paused could put
an older content under it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq_ledger import keys
from ledgermq_ledger.garbage import found
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.listing import Listing, Numbered
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.object_store.contract import ObjectStore


def find(listing: Listing) -> list[Removable]:
    return _older(listing.checkpoints, listing.checkpoint.number)


def _older(listed: Numbered, newest: int) -> list[Removable]:
    return [
        Removable.of(Kind.CHECKPOINT, info, f"checkpoint {newest} has replaced it")
        for number, info in listed.items()
        if number < newest
    ]


async def remove(store: ObjectStore, checkpoints: Sequence[Removable]) -> None:
    """Remove checkpoints; one that was replaced is never the newest again."""
    await found.delete(store, checkpoints)


async def remove_older(store: ObjectStore, bundle: int, number: int) -> None:
    """Remove those below `number`, which the caller has just seen to exist."""
    listed = {each: info async for each, info in list_numbered(store, keys.checkpoints(bundle))}
    await remove(store, _older(listed, number))
