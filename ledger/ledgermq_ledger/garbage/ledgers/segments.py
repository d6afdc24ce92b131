"""Segments: a segment may go when a finished plan names it and it lies below the trim slot of the
newest checkpoint, because all its records are in Parquet then, or in a snapshot (design L6, C5).

Claims and void segments are named by no plan and are never removed: an empty slot could be taken by a
writer that was fenced long ago. What an open plan names stays, and so does what lies above the trim
slot, where another plan may read it. So does what a cut keeps.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq_ledger import keys
from ledgermq_ledger.garbage import found
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.listing import Listing
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.object_store.contract import ObjectStore


def find(listing: Listing) -> list[Removable]:
    """Return removable segments, ascending by plan, then by slot."""
    return [
        Removable.of(Kind.SEGMENT, listing.segments[slot], f"plan {plan.number} has moved its records to Parquet")
        for plan in listing.read
        if plan.number <= listing.checkpoint.finished_plan
        for slot in sorted(plan.slots)
        if slot < listing.checkpoint.trim_slot
        and slot in listing.segments
        and not listing.gate.why_kept(listing.segments[slot].key)
    ]


async def remove(store: ObjectStore, bundle: int, segments: Sequence[Removable]) -> None:
    """Remove segments. The newest checkpoint is read just before, because a cached one may be of
    another ledger.
    """
    if not segments:
        return
    checkpoint = await newest_checkpoint(store, bundle)
    trim_slot = checkpoint.trim_slot
    last = max(keys.number(each.key) for each in segments)
    if last >= trim_slot:
        raise AssertionError(f"bundle {bundle}: slot {last} counts as removable, but the trim slot is {trim_slot}")
    await found.delete(store, segments, await Gate.of(store, checkpoint))


def fences_kept(listing: Listing) -> int:
    """Return how many slots below the trim slot no plan names: claims, void segments."""
    named = {slot for plan in listing.read for slot in plan.slots}
    return sum(slot < listing.checkpoint.trim_slot and slot not in named for slot in listing.segments)
