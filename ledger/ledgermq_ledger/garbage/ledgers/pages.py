"""Pages of the lists of Parquet files: a page may go when its plan is finished and no partition's
chain leads to it from the newest checkpoint, because pages are merged into new ones and never named
again (design D5).

A page of an open plan stays: the commit may name it.
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
    return [
        Removable.of(Kind.PAGE, info, "nothing refers to it")
        for plan, info in listing.pages.items()
        if plan <= listing.checkpoint.finished_plan
        and plan not in listing.pages_in_use
        and not listing.gate.why_kept(info.key)
    ]


async def remove(store: ObjectStore, pages: Sequence[Removable], gate: Gate | None = None) -> None:
    await found.delete(store, pages, gate)
