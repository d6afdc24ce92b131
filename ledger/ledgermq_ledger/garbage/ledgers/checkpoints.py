"""Remove checkpoints: a checkpoint may be removed when one with a higher number exists, because the
highest number that a LIST shows is the one that counts (design C2).

The newest is never removed: its number would be free again, and a process that was paused could put
an older content under it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage import found
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.listing import Listing, Numbered
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.object_store.contract import ObjectStore


def find(listing: Listing) -> list[Removable]:
    return _older(listing.checkpoints, listing.checkpoint)


def _older(listed: Numbered, newest: fmt.Checkpoint) -> list[Removable]:
    gate = Gate.of_checkpoints(newest)
    return [
        Removable.of(Kind.CHECKPOINT, info, f"checkpoint {newest.number} has replaced it")
        for number, info in listed.items()
        if number < newest.number and not gate.why_kept(info.key)
    ]


async def remove(store: ObjectStore, checkpoints: Sequence[Removable], gate: Gate | None = None) -> None:
    """Remove checkpoints; one that was replaced is never the newest again."""
    await found.delete(store, checkpoints, gate)


async def remove_older(store: ObjectStore, newest: fmt.Checkpoint) -> None:
    """Remove those below `newest`, which the caller has just seen to exist, but not the bases of cuts."""
    listed = {each: info async for each, info in list_numbered(store, keys.checkpoints(newest.bundle))}
    await remove(store, _older(listed, newest), Gate.of_checkpoints(newest))
