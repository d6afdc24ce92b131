"""Compaction plans: a plan may go when it is finished and every segment that it names is gone,
because it alone says which segments may go (design L6). One that names no segment may go at once.

Never the open plan: runners that read another plan under its number would write other files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ledgermq_ledger.garbage import found
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.garbage.listing import Listing
from ledgermq_ledger.object_store.contract import ObjectStore


def find(listing: Listing, segments_kept: Collection[str] = ()) -> list[Removable]:
    """Plans that may go once the segments that `segments.find` returns are gone.

    `segments_kept`: keys of those that are too young to go. A plan stays as long as a cut keeps one of its segments.
    """
    return [
        Removable.of(
            Kind.PLAN, listing.plans[plan.number], "the plan is finished, and all its temporary files are removed"
        )
        for plan in listing.read
        if plan.number <= listing.checkpoint.finished_plan
        and all(slot < listing.checkpoint.trim_slot for slot in plan.slots)
        and not any(_is_kept(listing, slot, segments_kept) for slot in plan.slots)
        and not listing.gate.why_kept(listing.plans[plan.number].key)
    ]


def _is_kept(listing: Listing, slot: int, segments_kept: Collection[str]) -> bool:
    key = listing.segments[slot].key if slot in listing.segments else ""
    return bool(key) and (key in segments_kept or bool(listing.gate.why_kept(key)))


async def remove(store: ObjectStore, plans: Sequence[Removable], gate: Gate | None = None) -> None:
    """Remove plans, after the segments that they name."""
    await found.delete(store, plans, gate)
