"""Snapshots of internal topics: a snapshot may go when its plan is finished and the newest checkpoint
names another one, because then no checkpoint will ever name it (design D5).

A snapshot of an open plan stays: the commit may name it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq_ledger.garbage import found
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.listing import Listing
from ledgermq_ledger.object_store.contract import ObjectStore


def find(listing: Listing) -> list[Removable]:
    if listing.unreadable is not None:
        return []
    in_force, finished = listing.checkpoint.snapshot_plan, listing.checkpoint.finished_plan
    return [
        Removable.of(Kind.SNAPSHOT, info, f"snapshot {in_force} is in force")
        for plan, info in listing.snapshots.items()
        if plan <= finished and plan != in_force and not listing.gate.why_kept(info.key)
    ]


async def remove(store: ObjectStore, snapshots: Sequence[Removable], gate: Gate | None = None) -> None:
    await found.delete(store, snapshots, gate)
